"""Writing in batches: one statement for all, and when one row makes it fail, the others all the same."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import asyncpg

from tenure.errors import GuardViolated, RowPoisoned
from tenure.lifecycle.decide import Change
from tenure.lifecycle.records import CONTRACT_VERSION
from tenure.seams import Clock
from tenure.stores.contract import Applied, Busy, ClaimRequest, Failure, Finding, Outcome, shown
from tenure.stores.postgres.changes import (
    apply_parameters,
    completion_parameters,
    heartbeat_parameters,
    is_completion,
    is_heartbeat,
)
from tenure.stores.postgres.connections import ABOUT_A_ROW, Fetches
from tenure.stores.postgres.floors import Floors

ASIDE_SECONDS = 60.0

POISON = (*ABOUT_A_ROW, GuardViolated)
Send = Callable[[Sequence[Change], dict[UUID, Outcome]], Awaitable[None]]
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

log = logging.getLogger("tenure.stores.postgres")


class Batches:
    """Sends batches, and finds by halving the row that makes one fail."""

    def __init__(self, fetches: Fetches, clock: Clock, *, in_block: bool = False) -> None:
        self._fetches, self._clock, self._in_block = fetches, clock, in_block
        self._set_aside: dict[UUID, tuple[float, str]] = {}
        self._floors = Floors()

    async def write(self, changes: Sequence[Change]) -> list[Outcome | None]:
        """What became of each change; None where the row was not the one decided upon."""
        answers: dict[UUID, Outcome] = {}
        ways: dict[Send, list[Change]] = {self._apply: [], self._complete: [], self._beat: []}
        for change in changes:
            ways[self._way(change)].append(change)
        for send, alike in ways.items():
            await self._isolating(send, alike, answers)
        return [answers.get(change.before.id) for change in changes]

    def _way(self, change: Change) -> Send:
        """Everything can go through `apply`; the two commonest changes have leaner statements."""
        # Only `apply` knows where events of a transaction that was open for a while belong in the log.
        if is_completion(change) and not self._in_block:
            return self._complete
        return self._beat if is_heartbeat(change) else self._apply

    async def _isolating(self, send: Send, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        if not changes:
            return
        try:
            await send(changes, answers)
        except POISON as problem:
            if len(changes) == 1:
                job_id = changes[0].before.id
                log.error("job %s cannot be written and was set aside: %s", job_id, _said(problem))
                answers[job_id] = Failure(RowPoisoned(job_id, _said(problem)))
                return
            middle = len(changes) // 2
            await self._isolating(send, changes[:middle], answers)
            await self._isolating(send, changes[middle:], answers)

    async def _apply(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("apply", {**apply_parameters(changes), "in_block": self._in_block}):
            if row["id"] is not None:
                answers[row["id"]] = Applied(shown(by_id[row["id"]]), row["updated_at"])

    async def _complete(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("complete", completion_parameters(changes)):
            if row["id"] is not None:
                answers[row["id"]] = Applied(shown(by_id[row["id"]]), row["updated_at"])

    async def _beat(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("heartbeat", heartbeat_parameters(changes)):
            if row["locked"]:
                answers[row["id"]] = Busy(shown(by_id[row["id"]]).before)
            elif row["id"] is not None:
                answers[row["id"]] = Applied(shown(by_id[row["id"]]), row["updated_at"], row["renewed"])

    async def claim(self, request: ClaimRequest) -> list[asyncpg.Record]:
        """The rows won, or the row that says what this request won before. Poisoned rows are passed over."""
        parameters = {
            "request_id": request.request_id,
            "body": request.body(),
            "kinds": list(request.kinds),
            "worker": request.worker,
            "token": request.token,
            "actor": str(request.actor),
            "chain": 2 if request.start else 1,
            "version": CONTRACT_VERSION,
        }
        claimer = self._floors.of(request)
        while True:
            began = self._clock.monotonic_seconds()
            values = {
                **parameters,
                **claimer.parameters(began),
                "limit": request.limit,
                "excluded": self._still_set_aside(),
            }
            try:
                answers = await self._fetches.fetch("claim", values)
            except POISON as problem:
                self._pass_over(problem)
                continue
            rows = [row for row in answers if row["id"] is not None]
            if not answers or answers[0]["won"] is not None:
                return answers
            claimer.learn(
                rows,
                walked=answers[0]["walked"] or 0,
                began_seconds=began,
                now_seconds=self._clock.monotonic_seconds(),
            )
            return rows

    def _pass_over(self, problem: Exception) -> None:
        """Remember the row that made a claim fail, so that the next one leaves it out.

        The same request sent twice at once meets its own row in `claims`; asked again, it finds the answer there.
        """
        cause = problem.__cause__ or problem
        if getattr(cause, "constraint_name", None) == "claims_pkey":
            return
        named = _ID.search(f"{getattr(cause, 'detail', None) or ''} {cause}")
        if named is None or UUID(named[0]) in self._set_aside:
            raise problem
        until = self._clock.monotonic_seconds() + ASIDE_SECONDS
        self._set_aside[UUID(named[0])] = (until, _said(problem))
        log.error("job %s cannot be claimed and is passed over for a while: %s", named[0], _said(problem))

    def _still_set_aside(self) -> list[UUID]:
        now = self._clock.monotonic_seconds()
        self._set_aside = {job_id: aside for job_id, aside in self._set_aside.items() if aside[0] > now}
        return list(self._set_aside)

    def findings(self) -> list[Finding]:
        """What `doctor` should know of rows that this process passes over."""
        return [
            Finding("error", "poisoned row", f"job {job_id}: {says}", "run `tenure verify` to see what is wrong")
            for job_id, (_, says) in self._set_aside.items()
        ]


def _said(problem: Exception) -> str:
    """What the database said, without the row that it quotes: that holds the lease's secret and the payload."""
    return str(getattr(problem, "message", None) or problem)
