"""Decided changes as the arrays that `apply.sql` and `heartbeat.sql` take.

A change is worked out at a made-up moment, so that every time in it is empty, as it was, or an offset from the moment
at which PostgreSQL will write it. That keeps what events do in one place, and the clock in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tenure.lifecycle.decide import Change, expand
from tenure.lifecycle.operations import Complete, DeadLetter, Heartbeat, Signal
from tenure.lifecycle.records import CONTRACT_VERSION, EventType, Job
from tenure.lifecycle.statuses import RETRY, WAITING
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.postgres.rows import arrays, once

WRITING = datetime(9000, 1, 1, tzinfo=UTC)
AS_IT_WAS = -1
OR_SOONER = -2

_HURRIES = frozenset({EventType.SIGNALLED, EventType.WOKEN, EventType.CANCEL_REQUESTED})
"""Events that make a waiting job due now, unless it is due already: only the statement can tell which is sooner."""

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
_BEAT = ("ids", "revs", "tokens", "actors", "requests", "lease_ms", "heartbeat_ms")


def is_heartbeat(change: Change) -> bool:
    """Whether the change is a heartbeat and nothing else, which has a statement of its own."""
    return len(change.operations) == 1 and isinstance(change.operations[0], Heartbeat)


def is_completion(change: Change) -> bool:
    """Whether the change completes a job that was not committed before, which has a statement of its own."""
    return len(change.operations) == 1 and isinstance(change.operations[0], Complete) and change.planned[0].commits


def completion_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The arrays of `complete.sql`. Jobs that were claimed together have much in common, which is sent once."""
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
    """The arrays of `heartbeat.sql`."""
    beats = [
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
    return {**arrays(beats, _BEAT), "version": CONTRACT_VERSION}


def apply_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The arrays of `apply.sql`."""
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
    """Microseconds from the moment of writing; None for no time at all, AS_IT_WAS for the one that stands."""
    if after is None:
        return None
    if after is before:
        return AS_IT_WAS
    delta = after - WRITING
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
