"""Writing in batches: one statement for all, and when one row makes it fail, the others all the same."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from tenure.errors import GuardViolated, RowPoisoned
from tenure.lifecycle.decide import Change
from tenure.stores.contract import Applied, Busy, Failure, Outcome, shown
from tenure.stores.postgres.changes import (
    apply_parameters,
    completion_parameters,
    heartbeat_parameters,
    is_completion,
    is_heartbeat,
)
from tenure.stores.postgres.connections import ABOUT_A_ROW, Fetches

POISON = (*ABOUT_A_ROW, GuardViolated)
Send = Callable[[Sequence[Change], dict[UUID, Outcome]], Awaitable[None]]

log = logging.getLogger("tenure.stores.postgres")


class Batches:
    """Sends batches, and finds by halving the row that makes one fail."""

    def __init__(self, fetches: Fetches, *, in_block: bool = False) -> None:
        self._fetches, self._in_block = fetches, in_block

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
        if self._in_block:
            return self._apply
        if is_completion(change):
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
                log.error("job %s cannot be written and was set aside: %s", job_id, said(problem))
                answers[job_id] = Failure(RowPoisoned(job_id, said(problem)))
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


def said(problem: Exception) -> str:
    """What the database said, without the row that it quotes: that holds the lease's secret and the payload."""
    return str(getattr(problem, "message", None) or problem)
