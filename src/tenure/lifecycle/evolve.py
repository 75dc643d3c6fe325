"""`evolve`: the effect of each event on the record. Stores write what it computes, `fold` replays it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tenure.lifecycle.causes import TIMEOUT, UNPINNED
from tenure.lifecycle.deadlines import deadline_of, earliest
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job, Policy
from tenure.lifecycle.statuses import LEASED, READY, RETRY, RUNNING, STALLED, WAITING, Status

NO_LEASE: Mapping[str, None] = {
    "owner": None,
    "token": None,
    "lease_expires_at": None,
    "heartbeat_deadline_at": None,
    "timeout_at": None,
}

Effect = Callable[[Job, Event, str | None], dict[str, Any]]


def evolve(job: Job, event: Event, content: str | None = None) -> Job:
    """The record after the event. `content` is the text that the event names by its digest."""
    if event.is_of_later_version:
        return msgspec.structs.replace(job, status=event.to_status, rev=event.rev, updated_at=event.at)
    changes = _EFFECTS[event.type](job, event, content)
    if event.to_status in READY:
        changes["timeout_at"] = (
            None
            if changes.get("ends_as", job.ends_as)
            else _unleased_timeout(job, event, changes.get("due_at", job.due_at))
        )
    return msgspec.structs.replace(job, status=event.to_status, rev=event.rev, updated_at=event.at, **changes)


def after_ms(at: datetime, delay_ms: int | None) -> datetime | None:
    """`at` plus the delay; None for no delay."""
    return None if delay_ms is None else at + timedelta(milliseconds=delay_ms)


def deadline(policy: Policy, at: datetime) -> datetime:
    """The heartbeat deadline: two intervals, so that one heartbeat may be lost."""
    return at + timedelta(milliseconds=2 * policy.heartbeat_ms)


class LeaseEnds(msgspec.Struct, frozen=True):
    """The deadlines of a fresh claim."""

    lease_expires_at: datetime
    heartbeat_deadline_at: datetime
    timeout_at: datetime | None

    @classmethod
    def of(cls, policy: Policy, at: datetime, *, started: bool) -> LeaseEnds:
        return cls(
            at + timedelta(milliseconds=policy.lease_ms),
            deadline(policy, at),
            after_ms(at, policy.running_ms if started else policy.claimed_ms),
        )


def _claimed(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {
        "attempt": event.attempt,
        "owner": event.owner,
        "lease_expires_at": event.until_at,
        "heartbeat_deadline_at": deadline(job.policy, event.at),
        "timeout_at": after_ms(event.at, job.policy.claimed_ms),
        "lost": False,
        "waiting_for": None,
        "children_max": None,
        "progress": None,
        "progress_message": None,
    }


def _acked(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {
        "heartbeat_deadline_at": deadline(job.policy, event.at),
        "timeout_at": after_ms(event.at, job.policy.claimed_ms),
    }


def _started(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {
        "started_at": event.at,
        "heartbeat_deadline_at": deadline(job.policy, event.at),
        "timeout_at": after_ms(event.at, job.policy.running_ms),
    }


def _heartbeat(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {
        "heartbeat_deadline_at": deadline(job.policy, event.at),
        "lease_expires_at": event.until_at or job.lease_expires_at,
    }


def _progress(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    detail = _detail(event)
    return {"progress": detail.get("percent"), "progress_message": detail.get("message")}


def _committed(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {"committed_at": event.at, "committed_result": content}


def _succeeded(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {
        **_end(event),
        "result": content,
        "committed_result": None,
        "committed_at": event.at if event.commits else job.committed_at,
        "lost": False,
    }


def _retry_scheduled(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**NO_LEASE, "failures": job.failures + 1, "due_at": _delayed_until(job, event), "last_error": content}


def _failed(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**_end(event), "failures": job.failures + _counts(event), "error": content, "last_error": content}


def _halted(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**_end(event), "partial_result": content, "reason": event.cause}


def _suspended(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    """A signal or wake that the code had not read when it suspended would be lost: the job is due at once."""
    detail = _detail(event)
    unseen = job.signal_rev > detail.get("seen_rev", 0)
    return {
        **NO_LEASE,
        "due_at": event.at if unseen else _delayed_until(job, event),
        "waiting_for": detail.get("waiting_for"),
        "children_max": detail.get("children_max"),
        "pinned_version": detail.get("pinned_version", job.pinned_version),
    }


def _woken(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    """After a signal, the end of the last awaited child, or the end of the job's pin."""
    pinned_version = None if event.cause == UNPINNED else job.pinned_version
    return {"signal_rev": event.rev, "pinned_version": pinned_version, **_due_now(job, event)}


def _unwinding(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    """The job is due now, and no longer lost. Its failures count anew."""
    return {
        "ends_as": _detail(event).get("ends_as"),
        "ends_because": event.cause,
        "failures_before_undo": job.failures,
        "lost": False,
        "due_at": event.at,
        "last_error": job.last_error if event.digest is None else content,
    }


def _compensated(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    detail = _detail(event)
    return {
        "compensated_at": event.at,
        "ends_as": detail.get("ends_as"),
        "ends_because": detail.get("ends_because"),
    }


def _released(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**NO_LEASE, "lost": False, "due_at": job.due_at if event.until_at is None else _delayed_until(job, event)}


def _cancel_requested(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {"cancel_reason": job.cancel_reason or event.cause, **_due_now(job, event)}


def _cancelled(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**_end(event), "reason": event.cause}


def _stalled(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    """A stall counts no failure while the job was only claimed, or after its commit. A timeout is a failure and no
    loss."""
    lost = event.cause != TIMEOUT
    failures = job.failures + (0 if job.committed or job.compensated else _counts(event))
    losses = job.losses + (failures - job.failures if lost else 0)
    stalled = msgspec.structs.replace(job, status=STALLED, lost=lost, failures=failures, losses=losses, due_at=None)
    may_run_again = not job.committed and stalled.recovery_action() == "requeue"
    return {
        **NO_LEASE,
        "lost": lost,
        "failures": failures,
        "losses": losses,
        "due_at": job.due_at if may_run_again else None,
    }


def _requeued(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {"lost": False}


def _dead_lettered(job: Job, event: Event, content: str | None) -> dict[str, Any]:
    return {**_end(event), "failures": job.failures + _counts(event), "last_error": content, "reason": event.cause}


_EFFECTS: Mapping[EventType, Effect] = {
    EventType.CLAIMED: _claimed,
    EventType.ACKED: _acked,
    EventType.STARTED: _started,
    EventType.HEARTBEAT: _heartbeat,
    EventType.PROGRESS: _progress,
    EventType.COMMITTED: _committed,
    EventType.SUCCEEDED: _succeeded,
    EventType.RETRY_SCHEDULED: _retry_scheduled,
    EventType.FAILED: _failed,
    EventType.HALTED: _halted,
    EventType.SUSPENDED: _suspended,
    EventType.SIGNALLED: _woken,
    EventType.WOKEN: _woken,
    EventType.UNWINDING: _unwinding,
    EventType.COMPENSATED: _compensated,
    EventType.RELEASED: _released,
    EventType.CANCEL_REQUESTED: _cancel_requested,
    EventType.CANCELLED: _cancelled,
    EventType.STALLED: _stalled,
    EventType.REQUEUED: _requeued,
    EventType.DEAD_LETTERED: _dead_lettered,
}


def _delayed_until(job: Job, event: Event) -> datetime | None:
    """The due time of the event; at once if a cancel was requested, since a worker carries it out."""
    return event.at if job.cancel_requested else event.until_at


_MADE_DUE_NOW: Mapping[EventType, frozenset[Status]] = {
    EventType.SIGNALLED: frozenset({WAITING}),
    EventType.WOKEN: frozenset({WAITING}),
    EventType.CANCEL_REQUESTED: frozenset({WAITING, RETRY}),
}


def makes_due_now(type_: EventType, status: Status) -> bool:
    """Whether an event of this type makes a job of this status due now, unless it is due already."""
    return status in _MADE_DUE_NOW.get(type_, ())


def _due_now(job: Job, event: Event) -> dict[str, Any]:
    """Due at the event, or earlier if it already was: a signal does not move a due job back."""
    if not makes_due_now(event.type, job.status):
        return {}
    return {"due_at": event.at if job.due_at is None else min(job.due_at, event.at)}


def _unleased_timeout(job: Job, event: Event, due_at: datetime | None) -> datetime | None:
    """The timeout of a job without a lease. Its time starts when it is due, and not before its lease has ended; the
    job's deadline comes first if it is earlier. Under a lease, the owner ends the job at its deadline.

    A job that had no lease keeps its timeout, unless the event made it due sooner.
    """
    deadline_at = deadline_of(job)
    if due_at is None or job.policy.queued_ms is None:
        return deadline_at
    fresh = max(due_at, event.at) + timedelta(milliseconds=job.policy.queued_ms)
    return earliest(fresh, deadline_at, None if job.status in LEASED else job.timeout_at)


def _end(event: Event) -> dict[str, Any]:
    return {**NO_LEASE, "finished_at": event.at, "waiting_for": None, "children_max": None}


def _counts(event: Event) -> int:
    """The failures that the event adds: 1 if it ends a running attempt by error or loss."""
    return 1 if event.from_status is RUNNING else 0


def _detail(event: Event) -> dict[str, Any]:
    detail = load(event.detail) if event.detail else {}
    return detail if isinstance(detail, dict) else {}
