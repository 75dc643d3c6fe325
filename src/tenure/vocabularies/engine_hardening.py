"""The words of the hardened engines (EH): dispatched, completed, camelCase, and timestamps in epoch milliseconds.

A job that waits for its next run is queued, with another JOB_QUEUED. A job that ended without a result has failed, and
its error starts with CANCELLED, HALTED or DEAD_LETTERED where it was one of these. A job is dispatched when its engine
has acknowledged it; a pool's claim is also the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from tenure.lifecycle.dead_letter import ReasonCode
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import (
    CANCELLED,
    CLAIMED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    QUEUED,
    RETRY,
    RUNNING,
    STALLED,
    SUCCEEDED,
    TERMINAL,
    WAITING,
)
from tenure.vocabularies.vocabulary import Fields, JobHistory, NamedFields, Vocabulary, detail_of, epoch_ms, payload_of

STATUSES = {
    QUEUED: "queued",
    CLAIMED: "dispatched",
    RUNNING: "running",
    WAITING: "queued",
    RETRY: "queued",
    STALLED: "queued",
    SUCCEEDED: "completed",
    FAILED: "failed",
    CANCELLED: "failed",
    HALTED: "failed",
    DEAD_LETTERED: "failed",
}
EVENTS: dict[EventType, tuple[str, ...]] = {
    EventType.ENQUEUED: ("JOB_QUEUED",),
    EventType.CLAIMED: ("JOB_DISPATCHED",),
    EventType.ACKED: ("JOB_DISPATCHED",),
    EventType.STARTED: ("JOB_RUNNING",),
    EventType.HEARTBEAT: (),
    EventType.PROGRESS: ("JOB_PROGRESS",),
    EventType.COMMITTED: (),
    EventType.SUCCEEDED: ("JOB_COMPLETED",),
    EventType.RETRY_SCHEDULED: ("JOB_QUEUED",),
    EventType.FAILED: ("JOB_FAILED",),
    EventType.HALTED: ("JOB_FAILED",),
    EventType.SUSPENDED: ("JOB_QUEUED",),
    EventType.SIGNALLED: (),
    EventType.WOKEN: (),
    EventType.COMPENSATED: (),
    EventType.RELEASED: ("JOB_QUEUED",),
    EventType.CANCEL_REQUESTED: (),
    EventType.CANCELLED: ("JOB_FAILED",),
    EventType.STALLED: ("JOB_QUEUED",),
    EventType.REQUEUED: (),
    EventType.DEAD_LETTERED: ("JOB_FAILED",),
}
TIMESTAMPS = ("submittedAt", "queuedAt", "dispatchedAt", "startedAt", "completedAt", "failedAt")
TRANSIENT_STATES = ("queued", "dispatched", "running")
"""The states that are not terminal."""


class Category(StrEnum):
    """The origin of a failure."""

    VALIDATION = "validation"
    QUEUE = "queue"
    ENGINE = "engine"
    SYSTEM = "system"


CATEGORIES = {
    ReasonCode.PARSE_ERROR: Category.VALIDATION,
    ReasonCode.VALIDATION_FAILED: Category.VALIDATION,
    ReasonCode.POLICY_VIOLATION: Category.VALIDATION,
    ReasonCode.DEPENDENCY_UNAVAILABLE: Category.ENGINE,
    ReasonCode.TIMEOUT: Category.SYSTEM,
    ReasonCode.EXHAUSTED_RETRIES: Category.ENGINE,
    ReasonCode.INFRASTRUCTURE_FAILURE: Category.SYSTEM,
    ReasonCode.COMPENSATION_FAILED: Category.ENGINE,
}
"""By the reason code of a dead letter, where its end is neither a timeout nor made by recovery."""


def category(end: Event) -> Category | None:
    """The origin of the failure that this event records; None for an event that is not a failure.

    A timeout before the start is the queue's. A lost or hung worker is the system's.
    """
    if end.type not in (EventType.FAILED, EventType.DEAD_LETTERED):
        return None
    if end.cause == "timeout":
        return Category.SYSTEM if end.from_status is RUNNING else Category.QUEUE
    if end.actor.startswith(f"{Role.RECOVERY}:"):
        return Category.SYSTEM
    return Category.ENGINE if end.type is EventType.FAILED else CATEGORIES[ReasonCode(end.cause or "")]


def error_text(end: Event) -> str | None:
    """The failure as `CODE: message`; None where the event is none. Erasure keeps the code."""
    detail = detail_of(end)
    if end.type is EventType.FAILED:
        return _error_message(detail["error"]) if "error" in detail else (end.cause or "failed").upper()
    if end.to_status not in TERMINAL or end.type is EventType.SUCCEEDED:
        return None
    parts = [end.to_status.value.upper(), end.cause, detail.get("reason")]
    parts.append(_error_message(detail["error"]) if "error" in detail else None)
    return ": ".join(part for part in parts if part)


def _error_message(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        return f"{error.get('type', 'ERROR')}: {error['message']}"
    return error if isinstance(error, str) else encode(error)


def timestamps(events: Sequence[Event]) -> dict[str, int | None]:
    """When the job last entered each state, in epoch milliseconds; None where it never did.

    That of the current state is the latest, except while an engine has yet to acknowledge the job.
    """
    found: dict[str, int | None] = dict.fromkeys(TIMESTAMPS)
    for index, event in enumerate(events):
        for name in _timestamps_set(events, index):
            found[name] = epoch_ms(event.at)
    return found


def _timestamps_set(events: Sequence[Event], index: int) -> tuple[str, ...]:
    event = events[index]
    match EVENTS[event.type]:
        case ("JOB_QUEUED",):
            return ("submittedAt", "queuedAt") if event.type is EventType.ENQUEUED else ("queuedAt",)
        case ("JOB_DISPATCHED",):
            return ("dispatchedAt",) if _is_dispatch(events, index) else ()
        case ("JOB_RUNNING",):
            return ("startedAt",)
        case ("JOB_COMPLETED",):
            return ("completedAt",)
        case ("JOB_FAILED",):
            return ("failedAt",)
        case _:
            return ()


def _is_dispatch(events: Sequence[Event], index: int) -> bool:
    """Whether this claim or acknowledgement is the dispatch: a pool's claim, or an engine's first acknowledgement."""
    event = events[index]
    claimed_by_pool = _is_by_pool(_claim(events[: index + 1]))
    if event.type is EventType.CLAIMED:
        return claimed_by_pool
    acked_before = any(one.type is EventType.ACKED and one.attempt == event.attempt for one in events[:index])
    return not claimed_by_pool and not acked_before


def _claim(events: Sequence[Event]) -> Event | None:
    return next((event for event in reversed(events) if event.type is EventType.CLAIMED), None)


def _is_by_pool(claim: Event | None) -> bool:
    return claim is not None and claim.actor.startswith(f"{Role.POOL}:")


def engine_id(events: Sequence[Event]) -> str | None:
    """The job's owner, or its last one; None where it was never claimed."""
    claim = _claim(events)
    return None if claim is None else claim.owner


def durations(events: Sequence[Event]) -> dict[str, int | None]:
    """Milliseconds spent in each state that the job has left; `total` is set once it has ended."""
    spent = dict.fromkeys(TRANSIENT_STATES, 0)
    entered = events[0]
    for event in events[1:]:
        state = STATUSES[entered.to_status]
        if STATUSES[event.to_status] != state:
            spent[state] += epoch_ms(event.at) - epoch_ms(entered.at)
            entered = event
    ended = events[-1].to_status in TERMINAL
    return {**spent, "total": epoch_ms(events[-1].at) - epoch_ms(events[0].at) if ended else None}


def _translate_job(job: Job, events: Sequence[Event]) -> Fields:
    end = events[-1]
    return {
        "jobId": str(job.id),
        "userId": job.origin.submitted_by,
        "jobType": job.kind,
        "payload": payload_of(job),
        "status": STATUSES[job.status],
        **timestamps(events),
        "error": error_text(end),
        "errorCategory": category(end),
        "retryCount": job.failures,
        "engineId": engine_id(events),
        "durations": durations(events),
    }


def _translate_event(history: JobHistory) -> NamedFields:
    for name in EVENTS[history.event.type]:
        if name == "JOB_QUEUED":
            yield name, _queued(history)
        elif name == "JOB_PROGRESS":
            yield name, {"jobId": str(history.event.job_id), "progress": detail_of(history.event).get("percent")}
        elif name != "JOB_DISPATCHED" or _is_dispatch(history.events, len(history.events) - 1):
            yield name, _by_engine(history, name)


def _queued(history: JobHistory) -> Fields:
    origin = history.origin
    return {
        "jobId": str(history.event.job_id),
        "jobType": None if origin is None else origin.kind,
        "userId": None if origin is None else origin.submitted_by,
        "queuedAt": epoch_ms(history.event.at),
    }


_AT = {
    "JOB_DISPATCHED": "dispatchedAt",
    "JOB_RUNNING": "startedAt",
    "JOB_COMPLETED": "completedAt",
    "JOB_FAILED": "failedAt",
}


def _by_engine(history: JobHistory, name: str) -> Fields:
    event, at = history.event, epoch_ms(history.event.at)
    fields: Fields = {"jobId": str(event.job_id), "engineId": engine_id(history.events), _AT[name]: at}
    if name == "JOB_FAILED":
        fields["error"] = error_text(event)
    if event.to_status in TERMINAL:
        # From the last start, so that a reader can check it against both timestamps; None where the job never ran.
        started = timestamps(history.events)["startedAt"]
        fields["duration"] = None if started is None else at - started
    return fields


ENGINE = Vocabulary(
    name="engine",
    about="the hardened engines (EH)",
    statuses=STATUSES,
    events=EVENTS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload", "error"}),
)
