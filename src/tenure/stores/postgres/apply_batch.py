"""Writing in batches: one statement for all, and when one row makes it fail, the others all the same."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tenure.errors import GuardViolated, RowPoisoned
from tenure.lifecycle.decide import Change, expand
from tenure.lifecycle.operations import Complete, DeadLetter, Heartbeat, Signal
from tenure.lifecycle.records import CONTRACT_VERSION, EventType, Job
from tenure.lifecycle.statuses import RETRY, WAITING
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.contract import Applied, Busy, Failure, Outcome, redacted
from tenure.stores.postgres.connections import ABOUT_A_ROW, Fetches
from tenure.stores.postgres.rows import arrays, once
from tenure.stores.quarantine import Bisection

POISON = (*ABOUT_A_ROW, GuardViolated)
Send = Callable[[Sequence[Change], dict[UUID, Outcome]], Awaitable[None]]

WRITING = datetime(9000, 1, 1, tzinfo=UTC)
AS_IT_WAS = -1
OR_SOONER = -2

_HURRIES = frozenset({EventType.SIGNALLED, EventType.WOKEN, EventType.CANCEL_REQUESTED})
"""Events that make a waiting job due now, unless it is due already: the statement takes the sooner time."""

_CHANGE = (
    "ids", "revs", "tokens", "guards", "statuses", "transition_counts", "attempts", "failures", "losses", "losts",
    "cancel_requests", "owners", "dues", "leases", "heartbeats", "timeouts", "starts", "finishes", "commits",
    "progresses", "messages", "committed_results", "results", "partials", "errors", "last_errors", "reasons",
)  # fmt: skip
_STEP = (
    "step_ids", "step_revs", "step_attempts", "step_types", "step_froms", "step_tos", "step_untils", "step_commits",
    "step_actors", "step_requests", "step_causes", "step_digests", "step_details",
)  # fmt: skip
_LETTER = ("letter_ids", "letter_stages")
_SIGNAL = ("signal_ids", "signal_revs", "signal_names", "signal_payloads")
_RENEWAL = ("ids", "revs", "tokens", "actors", "requests", "lease_ms", "heartbeat_ms")

log = logging.getLogger("tenure.stores.postgres")


class ChangeBatches:
    """Sends batches, and finds by halving the row that makes one fail."""

    def __init__(self, fetches: Fetches, *, in_block: bool = False) -> None:
        self._fetches, self._in_block = fetches, in_block

    async def write(self, changes: Sequence[Change]) -> list[Outcome | None]:
        """What became of each change; None where the row was not the one decided upon."""
        answers: dict[UUID, Outcome] = {}
        others, completions, renewals = self._sorted(changes)
        await self._isolate(self._apply, others, answers)
        await self._isolate(self._complete, completions, answers)
        await self._isolate(self._renew, renewals, answers)
        return [answers.get(change.before.origin.id) for change in changes]

    def _sorted(self, changes: Sequence[Change]) -> tuple[Sequence[Change], list[Change], list[Change]]:
        """Everything can go through `apply`; the two commonest changes have leaner statements."""
        # Only `apply` knows where events of a transaction that was open for a while belong in the log.
        if self._in_block:
            return changes, [], []
        others: list[Change] = []
        completions: list[Change] = []
        renewals: list[Change] = []
        for change in changes:
            (completions if is_completion(change) else renewals if is_heartbeat(change) else others).append(change)
        return others, completions, renewals

    async def _isolate(self, send: Send, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        batches = Bisection(changes)
        for batch in batches:
            try:
                await send(batch, answers)
            except POISON as problem:
                if batches.isolates(batch):
                    job_id = batch[0].before.id
                    log.error("job %s cannot be written: %s", job_id, message_of(problem))
                    answers[job_id] = Failure(RowPoisoned(job_id, message_of(problem)))

    async def _apply(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("jobs/apply", {**apply_parameters(changes), "in_block": self._in_block}):
            if row["id"] is not None:
                answers[row["id"]] = Applied(redacted(by_id[row["id"]]), row["updated_at"], row["renewed"])

    async def _complete(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        [answer] = await self._fetches.fetch("jobs/complete", completion_parameters(changes))
        if answer["ids"] is None:
            at = answer["now"]
            answers.update({change.before.origin.id: Applied(redacted(change), at) for change in changes})
            return
        by_id = {change.before.origin.id: change for change in changes}
        for job_id, at in zip(answer["ids"], answer["ats"], strict=True):
            if job_id is not None:
                answers[job_id] = Applied(redacted(by_id[job_id]), at)

    async def _renew(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("jobs/renew_leases", heartbeat_parameters(changes)):
            if row["locked"]:
                answers[row["id"]] = Busy(redacted(by_id[row["id"]]).before)
            elif row["id"] is not None:
                answers[row["id"]] = Applied(redacted(by_id[row["id"]]), row["updated_at"], row["renewed"])


def message_of(problem: Exception) -> str:
    """The message of the database without its detail, which quotes the row with the token and the payload."""
    return str(getattr(problem, "message", None) or problem)


def is_heartbeat(change: Change) -> bool:
    """Whether the change is a heartbeat and nothing else, which has a statement of its own."""
    return len(change.operations) == 1 and isinstance(change.operations[0], Heartbeat)


def is_completion(change: Change) -> bool:
    """Whether the change completes a job that was not committed before, which has a statement of its own."""
    return len(change.operations) == 1 and isinstance(change.operations[0], Complete) and change.planned[0].commits


def completion_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The arrays of `jobs/complete.sql`. Jobs that were claimed together have much in common, which is sent once."""
    steps = [change.planned[0] for change in changes]
    actors = once([change.actor for change in changes])
    return {
        "ids": [change.before.origin.id for change in changes],
        "revs": [change.before.rev for change in changes],
        "tokens": once([actor.token for actor in actors]),
        "actors": once([str(actor) for actor in actors]),
        "requests": once([change.request_id for change in changes]),
        "results": once([step.content for step in steps]),
        "digests": once([step.digest for step in steps]),
        "version": CONTRACT_VERSION,
    }


def heartbeat_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The arrays of `jobs/renew_leases.sql`."""
    renewals = [
        (
            change.before.id,
            change.before.rev,
            change.actor.token,
            str(change.actor),
            change.request_id,
            change.before.policy.lease_ms,
            change.before.policy.heartbeat_ms,
        )
        for change in changes
    ]
    return {**arrays(renewals, _RENEWAL), "version": CONTRACT_VERSION}


def apply_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The arrays of `jobs/apply.sql`."""
    rows: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    letters: list[tuple[Any, ...]] = []
    signals: list[tuple[Any, ...]] = []
    for change in changes:
        events, after = expand(change, WRITING)
        rows.append(_row(change, after))
        for operation, step, event in zip(change.operations, change.planned, events, strict=True):
            steps.append(
                (
                    event.job_id,
                    event.rev,
                    event.attempt,
                    event.type,
                    event.from_status,
                    event.to_status,
                    step.until_after_ms,
                    event.commits,
                    event.actor,
                    event.request_id,
                    event.cause,
                    event.digest,
                    event.detail,
                )
            )
            if isinstance(operation, DeadLetter):
                letters.append((event.job_id, operation.stage))
            elif isinstance(operation, Signal):
                signals.append((event.job_id, event.rev, operation.name, operation.payload))
    return {
        **arrays(rows, _CHANGE),
        **arrays(steps, _STEP),
        **arrays(letters, _LETTER),
        **arrays(signals, _SIGNAL),
        "version": CONTRACT_VERSION,
    }


def _row(change: Change, after: Job) -> tuple[Any, ...]:
    before = change.before
    return (
        before.id,
        before.rev,
        change.actor.token if change.guard is ClockGuard.LIVE_LEASE else None,
        change.guard,
        after.status,
        len(change.planned),
        after.attempt,
        after.failures,
        after.losses,
        after.lost,
        after.cancel_requested,
        after.owner,
        OR_SOONER if _is_hurried(change) else _offset(before.due_at, after.due_at),
        _offset(before.lease_expires_at, after.lease_expires_at),
        _offset(before.heartbeat_deadline_at, after.heartbeat_deadline_at),
        _offset(before.timeout_at, after.timeout_at),
        _offset(before.started_at, after.started_at),
        _offset(before.finished_at, after.finished_at),
        _offset(before.committed_at, after.committed_at),
        after.progress,
        after.progress_message,
        after.committed_result,
        after.result,
        after.partial_result,
        after.error,
        after.last_error,
        after.reason,
    )


def _is_hurried(change: Change) -> bool:
    return any(step.type in _HURRIES and step.from_status in (WAITING, RETRY) for step in change.planned)


def _offset(before: datetime | None, after: datetime | None) -> int | None:
    """Microseconds from the time of writing; None for no time, AS_IT_WAS for an unchanged one."""
    if after is None:
        return None
    if after is before:
        return AS_IT_WAS
    delta = after - WRITING
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
