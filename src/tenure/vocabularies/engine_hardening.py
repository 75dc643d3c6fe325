"""The words of the hardened engines (EH): dispatched, completed, camelCase, and timestamps in epoch milliseconds.

A job that waits for its next run is queued, with another JOB_QUEUED; its return there at the end of an attempt is an
extension. A job that ended without a result has failed, and its error starts with CANCELLED, HALTED or DEAD_LETTERED
where it was one of these. A claimed job is dispatched once its engine has acknowledged it, and queued before that. A
start without an acknowledgement is both: dispatched, then running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from tenure.vocabularies.steps import Step, WordFacts
from tenure.vocabularies.vocabulary import (
    Fields,
    JobHistory,
    Report,
    SourceTransition,
    Vocabulary,
    WordChange,
    detail_of,
    epoch_ms,
    payload_of,
)

STATUSES = {
    QUEUED: "queued",
    CLAIMED: "queued",
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
TRANSITIONS = (
    SourceTransition(None, "queued"),
    SourceTransition("queued", "dispatched"),
    SourceTransition("dispatched", "running"),
    SourceTransition("running", "completed"),
    SourceTransition("running", "failed"),
    SourceTransition("queued", "failed"),
    SourceTransition("dispatched", "failed"),
)
EXTENSIONS = (
    SourceTransition("running", "queued"),
    SourceTransition("dispatched", "queued"),
)
EVENT_NAMES = {
    "queued": "JOB_QUEUED",
    "dispatched": "JOB_DISPATCHED",
    "running": "JOB_RUNNING",
    "completed": "JOB_COMPLETED",
    "failed": "JOB_FAILED",
}
"""The event of entering each state."""
PROGRESS = "JOB_PROGRESS"
TIMESTAMPS = {
    "queued": "queuedAt",
    "dispatched": "dispatchedAt",
    "running": "startedAt",
    "completed": "completedAt",
    "failed": "failedAt",
}
"""The timestamp of entering each state."""
TRANSIENT_STATES = ("queued", "dispatched", "running")
"""The states that are not terminal."""


def word(facts: WordFacts) -> str:
    """The state there."""
    return "dispatched" if facts.status is CLAIMED and facts.acked else STATUSES[facts.status]


def entered(step: Step) -> Iterator[WordChange]:
    """The changes of state by one event, in order."""
    job_id = str(step.event.job_id)
    before, after = None if step.before is None else word(step.before), word(step.after)
    if (before, after) == ("queued", "running"):
        yield WordChange(job_id, before, "dispatched")
        before = "dispatched"
    if before != after:
        yield WordChange(job_id, before, after)


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


OUT_OF_MEMORY = frozenset({"MemoryError", "OutOfMemory", "OutOfMemoryError"})
"""The classes of errors of a process that has survived running out of memory: a failure of the system."""


def category(end: Step) -> Category | None:
    """The origin of the failure that this step records; None for a step that is not a failure.

    A timeout before the start, and an engine that was lost before it, are the queue's. A lost or hung worker is the
    system's, and so is an error of `OUT_OF_MEMORY`.
    """
    event = end.event
    if event.type not in (EventType.FAILED, EventType.DEAD_LETTERED):
        return None
    status = None if end.before is None else end.before.status
    if event.cause == "timeout":
        return Category.SYSTEM if status is RUNNING else Category.QUEUE
    if event.actor.startswith(f"{Role.RECOVERY}:"):
        return Category.QUEUE if status is CLAIMED else Category.SYSTEM
    error = detail_of(event).get("error")
    if isinstance(error, dict) and error.get("type") in OUT_OF_MEMORY:
        return Category.SYSTEM
    return Category.ENGINE if event.type is EventType.FAILED else CATEGORIES[ReasonCode(event.cause or "")]


def error_text(end: Event) -> str | None:
    """The failure as `CODE: message`; None where the event is none. Erasure keeps the code."""
    detail = detail_of(end)
    if end.type is EventType.FAILED:
        return _error_message(detail["error"]) if "error" in detail else (end.cause or "failed").upper()
    if end.to_status not in TERMINAL or end.type is EventType.SUCCEEDED:
        return None
    parts = [end.to_status.value.upper(), end.cause]
    parts.append(_error_message(detail["error"]) if "error" in detail else None)
    return ": ".join(part for part in parts if part)


def _error_message(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        return f"{error.get('type', 'ERROR')}: {error['message']}"
    return error if isinstance(error, str) else encode(error)


def timestamps(steps: Sequence[Step]) -> dict[str, int | None]:
    """When the job last entered each state, in epoch milliseconds; None where it never did."""
    first = steps[0].event
    submitted = epoch_ms(first.at) if first.type is EventType.ENQUEUED else None
    found: dict[str, int | None] = {"submittedAt": submitted, **dict.fromkeys(TIMESTAMPS.values())}
    for step in steps:
        for change in entered(step):
            found[TIMESTAMPS[change.after]] = epoch_ms(step.event.at)
    return found


def engine_id(steps: Sequence[Step]) -> str | None:
    """The job's owner, or its last one; None where it was never claimed."""
    return next((step.event.owner for step in reversed(steps) if step.event.type is EventType.CLAIMED), None)


def durations(steps: Sequence[Step]) -> dict[str, int | None]:
    """Milliseconds spent in each state that the job has left; `total` is set once it has ended."""
    spent = dict.fromkeys(TRANSIENT_STATES, 0)
    since = steps[0].event.at
    for step in steps[1:]:
        for change in entered(step):
            if change.before is not None:
                spent[change.before] += epoch_ms(step.event.at) - epoch_ms(since)
            since = step.event.at
    first, last = steps[0].event, steps[-1].event
    ended = last.to_status in TERMINAL
    return {**spent, "total": epoch_ms(last.at) - epoch_ms(first.at) if ended else None}


def _translate_job(job: Job, history: JobHistory) -> Fields:
    steps = history.steps
    return {
        "jobId": str(job.id),
        "userId": job.origin.submitted_by,
        "jobType": job.kind,
        "payload": payload_of(job),
        "status": word(history.step.after),
        **timestamps(steps),
        "error": error_text(history.event),
        "errorCategory": category(history.step),
        "retryCount": job.failures,
        "engineId": engine_id(steps),
        "durations": durations(steps),
    }


def _translate_event(history: JobHistory) -> Iterator[Report]:
    event = history.event
    if event.type is EventType.PROGRESS:
        yield Report(PROGRESS, {"jobId": str(event.job_id), "progress": detail_of(event).get("percent")})
    for change in entered(history.step):
        fields = _queued(history) if change.after == "queued" else _by_engine(history, change.after)
        yield Report(EVENT_NAMES[change.after], fields, change)


def _queued(history: JobHistory) -> Fields:
    origin = history.origin
    return {
        "jobId": str(history.event.job_id),
        "jobType": None if origin is None else origin.kind,
        "userId": None if origin is None else origin.submitted_by,
        "queuedAt": epoch_ms(history.event.at),
    }


def _by_engine(history: JobHistory, state: str) -> Fields:
    event, at = history.event, epoch_ms(history.event.at)
    fields: Fields = {"jobId": str(event.job_id), "engineId": engine_id(history.steps), TIMESTAMPS[state]: at}
    if state == "failed":
        fields["error"] = error_text(event)
    if event.to_status in TERMINAL:
        # From the last start, so that a reader can check it against both timestamps; None where the job never ran.
        started = timestamps(history.steps)["startedAt"]
        fields["duration"] = None if started is None else at - started
    return fields


ENGINE = Vocabulary(
    name="engine",
    about="the hardened engines (EH)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload", "error"}),
)
