"""Applies changes: what a request's own record allows is written at once, the rest is decided on the current rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from uuid import UUID

import asyncpg

from tenure.errors import Refused, RowPoisoned
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.records import Job
from tenure.stores.base import CONFLICTS_MAX, conflicts_exhausted
from tenure.stores.contract import Busy, Failure, Outcome, Request, decide_request, disjoint_batches
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.apply_batch import ChangeBatches
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.signals import signal_waiting
from tenure.stores.postgres.wakeups import PostgresNotifier

HOLDERS_SECONDS = 1.0
"""How long the sessions that have locked rows are remembered."""


class PostgresApplier:
    """Performs requests with the statements that `fetches` sends: each in a transaction of its own, or all in one."""

    def __init__(
        self,
        fetches: Fetches,
        policies: PostgresPolicies,
        batches: ChangeBatches,
        notifier: PostgresNotifier | None = None,
    ) -> None:
        self._fetches, self._policies, self._batches, self._notifier = fetches, policies, batches, notifier
        self._holders: dict[UUID, str] = {}
        self._holders_until_seconds = 0.0

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcome of each request, in order. Several for one job follow each other."""
        if len(requests) == 1 and not self._batches.in_block:
            sent = await signal_waiting(self._fetches, self._policies, requests[0], notifier=self._notifier)
            if sent is not None:
                return [sent]
        outcomes: dict[int, Outcome] = {}
        for wave in disjoint_batches(requests):
            await self._round(wave, outcomes)
        if locked := [number for number, outcome in outcomes.items() if isinstance(outcome, Busy)]:
            holders = await self._lock_holders([requests[number].job_id for number in locked])
            outcomes.update({number: _with_holder(outcomes[number], holders) for number in locked})
        return [outcomes[number] for number in range(len(requests))]

    async def _lock_holders(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        """The sessions that have locked these rows. They are looked up once in a while: a claim that meets rows which
        another one has just taken locks them for the rest of its statement."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds >= self._holders_until_seconds:
            found = await self._fetches.fetch("jobs/select_lock_holders", {"ids": list(job_ids)})
            self._holders = {answer["id"]: _session(answer) for answer in found}
            self._holders_until_seconds = now_seconds + HOLDERS_SECONDS
        return self._holders

    async def _round(self, requests: list[tuple[int, Request]], outcomes: dict[int, Outcome]) -> None:
        changes: dict[int, Change] = {}
        for number, request in requests:
            if request.fresh and isinstance(request.job, Job) and not request.signal_count:
                try:
                    changes[number] = decide_chain(
                        request.job, request.operations, request.actor, request_id=request.request_id
                    ).with_owner_steps(request.steps)
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
            "signals": [request.signal_count > 0 for request in requests.values()],
        }
        answers = await self._fetches.fetch("jobs/select_with_events", values)
        policies = await self._policies.of(answers)
        changes: dict[int, Change] = {}
        asked = list(requests.items())
        for ordinal, group in groupby(answers, key=lambda answer: int(answer["number"])):
            found = list(group)
            number, request = asked[ordinal - 1]
            try:
                current = None if found[0]["id"] is None else row.job_from(found[0], policies, with_token=True)
            except RowPoisoned as problem:
                outcomes[number] = Failure(problem)
                continue
            logged = [row.logged_from(answer) for answer in found if answer["event_rev"] is not None]
            signals, now = found[0]["signals"], found[0]["now"]
            verdict = decide_request(current, request, logged=logged, now=now, signals=signals)
            if isinstance(verdict, Change):
                changes[number] = verdict
            else:
                outcomes[number] = verdict
        return changes


def _with_holder(outcome: Outcome, holders: Mapping[UUID, str]) -> Outcome:
    return Busy(outcome.job, holders.get(outcome.job.id)) if isinstance(outcome, Busy) else outcome


def _session(answer: asyncpg.Record) -> str:
    """One session in words: `process 4711 (psql, idle in transaction for 12 s)`."""
    program = answer["application_name"] or "unnamed program"
    state, seconds = answer["state"] or "unknown state", answer["open_seconds"] or 0.0
    return f"process {answer['pid']} ({program}, {state}, transaction open for {seconds:.0f} s)"
