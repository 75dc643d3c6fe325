"""Applies changes: what a request's own record allows is written at once, the rest is decided on the current rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tenure.errors import Refused
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.records import Job
from tenure.stores.base import CONFLICTS_MAX, conflicts_exhausted
from tenure.stores.contract import Failure, Outcome, Request, decide_request, disjoint_batches
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.apply_batch import ChangeBatches
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import PostgresPolicies


class PostgresApplier:
    """Performs requests with the statements that `fetches` sends: each in a transaction of its own, or all in one."""

    def __init__(self, fetches: Fetches, policies: PostgresPolicies, batches: ChangeBatches) -> None:
        self._fetches, self._policies, self._batches = fetches, policies, batches

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcome of each request, in order. Several for one job follow each other."""
        outcomes: dict[int, Outcome] = {}
        for wave in disjoint_batches(requests):
            await self._round(wave, outcomes)
        return [outcomes[number] for number in range(len(requests))]

    async def _round(self, requests: list[tuple[int, Request]], outcomes: dict[int, Outcome]) -> None:
        changes: dict[int, Change] = {}
        for number, request in requests:
            if request.fresh and isinstance(request.job, Job):
                try:
                    changes[number] = decide_chain(
                        request.job, request.operations, request.actor, request_id=request.request_id
                    )
                except Refused:
                    continue
        await self._write(changes, outcomes)
        open_ = {number: request for number, request in requests if number not in outcomes}
        for _ in range(CONFLICTS_MAX):
            if not open_:
                return
            changes = await self._judge(open_, outcomes)
            await self._write(changes, outcomes)
            open_ = {number: request for number, request in open_.items() if number not in outcomes}
        for number, request in open_.items():
            outcomes[number] = Failure(conflicts_exhausted(request.job_id))

    async def _write(self, changes: dict[int, Change], outcomes: dict[int, Outcome]) -> None:
        if changes:
            answers = await self._batches.write(list(changes.values()))
            outcomes.update({n: answer for n, answer in zip(changes, answers, strict=True) if answer is not None})

    async def _judge(self, requests: dict[int, Request], outcomes: dict[int, Outcome]) -> dict[int, Change]:
        values = {
            "ids": [request.job_id for request in requests.values()],
            "requests": [request.request_id for request in requests.values()],
        }
        answers = await self._fetches.fetch("jobs/select_with_events", values)
        policies = await self._policies.of(answers)
        changes: dict[int, Change] = {}
        asked = list(requests.items())
        for ordinal, group in groupby(answers, key=lambda answer: int(answer["number"])):
            found = list(group)
            number, request = asked[ordinal - 1]
            current = None if found[0]["id"] is None else row.job_from(found[0], policies, with_token=True)
            logged = [row.logged_from(answer) for answer in found if answer["event_rev"] is not None]
            verdict = decide_request(current, request, logged=logged, now=found[0]["now"])
            if isinstance(verdict, Change):
                changes[number] = verdict
            else:
                outcomes[number] = verdict
        return changes
