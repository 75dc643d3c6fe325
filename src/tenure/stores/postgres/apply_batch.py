"""Writing in batches: one statement for all, and when one row makes it fail, the others all the same."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from tenure.errors import GuardViolated, RowPoisoned
from tenure.lifecycle.decide import Change
from tenure.stores.contract import Applied, Busy, Failure, Outcome, shown
from tenure.stores.postgres.apply_parameters import (
    apply_parameters,
    completion_parameters,
    heartbeat_parameters,
    is_completion,
    is_heartbeat,
)
from tenure.stores.postgres.connections import ABOUT_A_ROW, Fetches
from tenure.stores.quarantine import Bisection

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
        others, completions, beats = self._sorted(changes)
        await self._isolating(self._apply, others, answers)
        await self._isolating(self._complete, completions, answers)
        await self._isolating(self._beat, beats, answers)
        return [answers.get(change.before.origin.id) for change in changes]

    def _sorted(self, changes: Sequence[Change]) -> tuple[Sequence[Change], list[Change], list[Change]]:
        """Everything can go through `apply`; the two commonest changes have leaner statements."""
        # Only `apply` knows where events of a transaction that was open for a while belong in the log.
        if self._in_block:
            return changes, [], []
        others: list[Change] = []
        completions: list[Change] = []
        beats: list[Change] = []
        for change in changes:
            (completions if is_completion(change) else beats if is_heartbeat(change) else others).append(change)
        return others, completions, beats

    async def _isolating(self, send: Send, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        batches = Bisection(changes)
        for batch in batches:
            try:
                await send(batch, answers)
            except POISON as problem:
                if batches.isolates(batch):
                    job_id = batch[0].before.id
                    log.error("job %s cannot be written: %s", job_id, said(problem))
                    answers[job_id] = Failure(RowPoisoned(job_id, said(problem)))

    async def _apply(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("jobs/apply", {**apply_parameters(changes), "in_block": self._in_block}):
            if row["id"] is not None:
                answers[row["id"]] = Applied(shown(by_id[row["id"]]), row["updated_at"], row["renewed"])

    async def _complete(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        [answer] = await self._fetches.fetch("jobs/complete", completion_parameters(changes))
        if answer["ids"] is None:
            at = answer["now"]
            answers.update({change.before.origin.id: Applied(shown(change), at) for change in changes})
            return
        by_id = {change.before.origin.id: change for change in changes}
        for job_id, at in zip(answer["ids"], answer["ats"], strict=True):
            if job_id is not None:
                answers[job_id] = Applied(shown(by_id[job_id]), at)

    async def _beat(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("jobs/renew_leases", heartbeat_parameters(changes)):
            if row["locked"]:
                answers[row["id"]] = Busy(shown(by_id[row["id"]]).before)
            elif row["id"] is not None:
                answers[row["id"]] = Applied(shown(by_id[row["id"]]), row["updated_at"], row["renewed"])


def said(problem: Exception) -> str:
    """What the database said, without the row that it quotes: that holds the lease's secret and the payload."""
    return str(getattr(problem, "message", None) or problem)
