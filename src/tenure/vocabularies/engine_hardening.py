"""The words of the hardened engines (EH): dispatched, completed, camelCase, and moments in epoch milliseconds.

Whatever waits to be run again is queued, and JOB_QUEUED is told again; whatever ended without a result has failed, and
its error says how (CANCELLED, HALTED, DEAD_LETTERED). A job is dispatched when its engine has acknowledged it; a pool
receives what it claims with the claim, so there the claim is the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Event, EventType, Job, ReasonCode, Role
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
from tenure.vocabularies.vocabulary import EventFields, Fields, JobHistory, Vocabulary, detail_of, epoch_ms, payload_of

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
MOMENTS = ("submittedAt", "queuedAt", "dispatchedAt", "startedAt", "completedAt", "failedAt")
LEFT = ("queued", "dispatched", "running")
"""The states that a job can leave again."""


class Category(StrEnum):
    """Where a failure came from."""

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
"""By the reason of a dead letter, where nothing else about its end says more."""


def category(end: Event) -> Category | None:
    """Where the failure came from that this event records; None where the job did not fail, but was told to end.

    A job that ran out of time before it ran is the queue's; one whose worker was lost or hung is the system's.
    """
    if end.type not in (EventType.FAILED, EventType.DEAD_LETTERED):
        return None
    if end.cause == "timeout":
        return Category.SYSTEM if end.from_status is RUNNING else Category.QUEUE
    if end.actor.startswith(f"{Role.RECOVERY}:"):
        return Category.SYSTEM
    return Category.ENGINE if end.type is EventType.FAILED else CATEGORIES[ReasonCode(end.cause or "")]


def error_text(end: Event) -> str | None:
    """What went wrong, as CODE: message; None where nothing did. Erasure leaves the code alone."""
    detail = detail_of(end)
    if end.type is EventType.FAILED:
        return _described(detail["error"]) if "error" in detail else (end.cause or "failed").upper()
    if end.to_status not in TERMINAL or end.type is EventType.SUCCEEDED:
        return None
    said = [end.to_status.value.upper(), end.cause, detail.get("reason")]
    said.append(_described(detail["error"]) if "error" in detail else None)
    return ": ".join(one for one in said if one)


def _described(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        return f"{error.get('type', 'ERROR')}: {error['message']}"
    return error if isinstance(error, str) else encode(error)


def moments(events: Sequence[Event]) -> dict[str, int | None]:
    """When the job was last brought into each state, in epoch milliseconds; None where it never was.

    That of the state it is in is never before the others, except while an engine has yet to acknowledge the job.
    """
    found: dict[str, int | None] = dict.fromkeys(MOMENTS)
    for place, event in enumerate(events):
        for name in _brings(events, place):
            found[name] = epoch_ms(event.at)
    return found


def _brings(events: Sequence[Event], place: int) -> tuple[str, ...]:
    event = events[place]
    match EVENTS[event.type]:
        case ("JOB_QUEUED",):
            return ("submittedAt", "queuedAt") if event.type is EventType.ENQUEUED else ("queuedAt",)
        case ("JOB_DISPATCHED",):
            return ("dispatchedAt",) if _received(events, place) else ()
        case ("JOB_RUNNING",):
            return ("startedAt",)
        case ("JOB_COMPLETED",):
            return ("completedAt",)
        case ("JOB_FAILED",):
            return ("failedAt",)
        case _:
            return ()


def _received(events: Sequence[Event], place: int) -> bool:
    """Whether whoever is to run the job has it from here on: a pool by its claim, an engine by its first ack."""
    event = events[place]
    claimed_by_pool = _is_pools(_claim(events[: place + 1]))
    if event.type is EventType.CLAIMED:
        return claimed_by_pool
    acked_before = any(one.type is EventType.ACKED and one.attempt == event.attempt for one in events[:place])
    return not claimed_by_pool and not acked_before


def _claim(events: Sequence[Event]) -> Event | None:
    return next((event for event in reversed(events) if event.type is EventType.CLAIMED), None)


def _is_pools(claim: Event | None) -> bool:
    return claim is not None and claim.actor.startswith(f"{Role.POOL}:")


def engine_id(events: Sequence[Event]) -> str | None:
    """Who has the job, or had it last; None where none had it."""
    claim = _claim(events)
    return None if claim is None else claim.owner


def durations(events: Sequence[Event]) -> dict[str, int | None]:
    """How many milliseconds it has spent in each state that it has left again; altogether, once it has ended."""
    spent = dict.fromkeys(LEFT, 0)
    entered = events[0]
    for event in events[1:]:
        state = STATUSES[entered.to_status]
        if STATUSES[event.to_status] != state:
            spent[state] += epoch_ms(event.at) - epoch_ms(entered.at)
            entered = event
    ended = events[-1].to_status in TERMINAL
    return {**spent, "total": epoch_ms(events[-1].at) - epoch_ms(events[0].at) if ended else None}


def _write(job: Job, events: Sequence[Event]) -> Fields:
    end = events[-1]
    return {
        "jobId": str(job.id),
        "userId": job.origin.submitted_by,
        "jobType": job.kind,
        "payload": payload_of(job),
        "status": STATUSES[job.status],
        **moments(events),
        "error": error_text(end),
        "errorCategory": category(end),
        "retryCount": job.failures,
        "engineId": engine_id(events),
        "durations": durations(events),
    }


def _speak(story: JobHistory) -> EventFields:
    for name in EVENTS[story.event.type]:
        if name == "JOB_QUEUED":
            yield name, _queued(story)
        elif name == "JOB_PROGRESS":
            yield name, {"jobId": str(story.event.job_id), "progress": detail_of(story.event).get("percent")}
        elif name != "JOB_DISPATCHED" or _received(story.events, len(story.events) - 1):
            yield name, _by_engine(story, name)


def _queued(story: JobHistory) -> Fields:
    origin = story.origin
    return {
        "jobId": str(story.event.job_id),
        "jobType": None if origin is None else origin.kind,
        "userId": None if origin is None else origin.submitted_by,
        "queuedAt": epoch_ms(story.event.at),
    }


_AT = {
    "JOB_DISPATCHED": "dispatchedAt",
    "JOB_RUNNING": "startedAt",
    "JOB_COMPLETED": "completedAt",
    "JOB_FAILED": "failedAt",
}


def _by_engine(story: JobHistory, name: str) -> Fields:
    event, at = story.event, epoch_ms(story.event.at)
    fields: Fields = {"jobId": str(event.job_id), "engineId": engine_id(story.events), _AT[name]: at}
    if name == "JOB_FAILED":
        fields["error"] = error_text(event)
    if event.to_status in TERMINAL:
        # From the last start, so that a reader can check it against the two moments; None where it never ran.
        started = moments(story.events)["startedAt"]
        fields["duration"] = None if started is None else at - started
    return fields


ENGINE = Vocabulary(
    name="engine",
    about="the hardened engines (EH)",
    statuses=STATUSES,
    events=EVENTS,
    write=_write,
    speak=_speak,
    content=frozenset({"payload", "error"}),
)
