"""Writes changes in batches, by one statement. If a poisoned row makes it fail, the others are written without it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tenure.errors import GuardViolated, RowPoisoned
from tenure.lifecycle.causes import stored_cause
from tenure.lifecycle.deadlines import deadline_of, without_deadline
from tenure.lifecycle.decide import Change, expand
from tenure.lifecycle.evolve import makes_due_now
from tenure.lifecycle.operations import Complete, DeadLetter, Heartbeat, Signal
from tenure.lifecycle.records import CONTRACT_VERSION, Job
from tenure.lifecycle.statuses import READY
from tenure.lifecycle.steps import records_steps
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.contract import Applied, Busy, Failure, Outcome, redacted
from tenure.stores.postgres.connections import ABOUT_A_ROW, Fetches
from tenure.stores.postgres.rows import CHANGING, TIMES, arrays, once
from tenure.stores.quarantine import Bisection

POISON = (*ABOUT_A_ROW, GuardViolated)
Send = Callable[[Sequence[Change], dict[UUID, Outcome]], Awaitable[None]]

WRITING = datetime(9000, 1, 1, tzinfo=UTC)
AS_IT_WAS = -1
OR_SOONER = -2
"""Values below it: the sooner of the stored time and one in (OR_SOONER - value) microseconds."""

_CHANGE = ("ids", "revs", "tokens", "guards", "transition_counts", *CHANGING)
_STEP = (
    "step_ids", "step_revs", "step_attempts", "step_types", "step_froms", "step_tos", "step_untils", "step_commits",
    "step_actors", "step_requests", "step_causes", "step_digests", "step_details",
    "step_steps", "step_counts",
)  # fmt: skip
_LETTER = ("letter_ids", "letter_stages")
_SIGNAL = ("signal_ids", "signal_revs", "signal_names", "signal_payloads")
_RENEWAL = ("ids", "revs", "tokens", "actors", "requests", "lease_ms", "heartbeat_ms")

log = logging.getLogger("tenure.stores.postgres")


class ChangeBatches:
    """Sends batches, and isolates a poisoned row by bisection."""

    def __init__(self, fetches: Fetches, *, in_block: bool = False) -> None:
        self._fetches, self.in_block = fetches, in_block

    async def write(self, changes: Sequence[Change]) -> list[Outcome | None]:
        """The outcome of each change; None if the row is not the one that was decided upon."""
        answers: dict[UUID, Outcome] = {}
        others, completions, renewals = self._sorted(changes)
        await self._isolate(self._apply, others, answers)
        await self._isolate(self._complete, completions, answers)
        await self._isolate(self._renew, renewals, answers)
        return [answers.get(change.before.origin.id) for change in changes]

    def _sorted(self, changes: Sequence[Change]) -> tuple[Sequence[Change], list[Change], list[Change]]:
        """`apply` can write every change; the two most frequent ones have cheaper statements."""
        # Only `apply` knows where events of a transaction that was open for a while belong in the log.
        if self.in_block:
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
        for row in await self._fetches.fetch("jobs/apply", {**apply_parameters(changes), "in_block": self.in_block}):
            _add_answer(row, by_id, answers)

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
        for job_id in answer["locked_ids"] or ():
            answers[job_id] = Busy(redacted(by_id[job_id]).before)

    async def _renew(self, changes: Sequence[Change], answers: dict[UUID, Outcome]) -> None:
        by_id = {change.before.id: change for change in changes}
        for row in await self._fetches.fetch("jobs/renew_leases", heartbeat_parameters(changes)):
            _add_answer(row, by_id, answers)


def _add_answer(row: asyncpg.Record, by_id: Mapping[UUID, Change], answers: dict[UUID, Outcome]) -> None:
    """Add the outcome of the change that a returned row names."""
    if row["id"] is not None:
        change = redacted(by_id[row["id"]])
        answers[row["id"]] = (
            Busy(change.before) if row["locked"] else Applied(change, row["updated_at"], row["renewed"])
        )


def message_of(problem: Exception) -> str:
    """The message of the database without its detail, which quotes the row with the token and the payload."""
    return str(getattr(problem, "message", None) or problem)


def is_heartbeat(change: Change) -> bool:
    """Whether the change is a heartbeat and nothing else, which has a statement of its own."""
    return len(change.operations) == 1 and isinstance(change.operations[0], Heartbeat)


def is_completion(change: Change) -> bool:
    """Whether the change completes a job that was not committed before and of which its owner knows no steps. It has a
    statement of its own, which counts the steps of earlier attempts, but not those of a fork."""
    if len(change.operations) != 1 or not isinstance(change.operations[0], Complete):
        return False
    step = change.planned[0]
    knows_none = step.steps is None and change.before.origin.redrive_of is None
    return step.commits and change.operations[0].written is None and knows_none


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
    counted: list[UUID] = []
    deadlines: list[datetime | None] = []
    for change in changes:
        deadline_at = deadline_of(change.before)
        # An offset cannot express a deadline, which the statement takes into account by itself.
        events, after = expand(change if deadline_at is None else _undated(change), WRITING)
        rows.append(_row(change, after))
        deadlines.append(deadline_at if after.status in READY and not after.unwinding else None)
        counts = change.counts_steps
        if counts:
            counted.append(change.before.id)
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
                    stored_cause(event.type, event.cause),
                    event.digest,
                    event.detail,
                    event.steps,
                    counts and records_steps(event.type, event.from_status),
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
        "counted": counted,
        "deadlines": deadlines if any(deadlines) else [],
        "version": CONTRACT_VERSION,
    }


def _undated(change: Change) -> Change:
    return msgspec.structs.replace(change, before=without_deadline(change.before))


def _row(change: Change, after: Job) -> tuple[Any, ...]:
    before = change.before
    return (
        before.id,
        before.rev,
        change.actor.token if change.guard is ClockGuard.LIVE_LEASE else None,
        change.guard,
        len(change.planned),
        *(_column(change, after, name) for name in CHANGING),
    )


def _column(change: Change, after: Job, name: str) -> Any:
    """The value of a column. Where a change makes a job due now, the statement computes the due time and the timeout,
    each as the sooner of two times."""
    if name in ("due_at", "timeout_at") and any(makes_due_now(step.type, step.from_status) for step in change.planned):
        return OR_SOONER if name == "due_at" else _queued_timeout(after)
    value = getattr(after, name)
    return _offset(getattr(change.before, name), value) if name in TIMES else value


def _queued_timeout(after: Job) -> int | None:
    """The timeout of a job without a lease that the change may have made due."""
    queued_ms = after.policy.queued_ms
    return None if queued_ms is None or after.timeout_at is None else OR_SOONER - queued_ms * 1000


def _offset(before: datetime | None, after: datetime | None) -> int | None:
    """Microseconds from the time of writing; None for no time, AS_IT_WAS for an unchanged one."""
    if after is None:
        return None
    if after is before:
        return AS_IT_WAS
    delta = after - WRITING
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
