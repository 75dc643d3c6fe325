"""The words of the job state machine v1 (SM): assigned for claimed, and `job_…` for events.

It names nine events and allows additions: an event without a name there is `job_` and its type, so each transition is
one event. A heartbeat that renewed the lease has its own name. A job that waits for its next run is queued; its return
there at the end of an attempt is an extension. A job halted by a limit is cancelled by policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from tenure.lifecycle.executions import Execution
from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import (
    CANCELLED,
    CLAIMED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    LEASED,
    QUEUED,
    RETRY,
    RUNNING,
    STALLED,
    SUCCEEDED,
    WAITING,
)
from tenure.vocabularies.steps import WordFacts
from tenure.vocabularies.vocabulary import (
    Fields,
    JobHistory,
    Report,
    SourceTransition,
    Vocabulary,
    changed_word,
    detail_of,
    payload_of,
    value_of,
)

STATUSES = {
    QUEUED: "queued",
    CLAIMED: "assigned",
    RUNNING: "running",
    WAITING: "queued",
    RETRY: "queued",
    STALLED: "queued",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "cancelled",
    HALTED: "cancelled",
    DEAD_LETTERED: "dead_lettered",
}
TRANSITIONS = (
    SourceTransition(None, "queued"),
    SourceTransition("queued", "assigned"),
    SourceTransition("assigned", "running"),
    SourceTransition("running", "succeeded"),
    SourceTransition("running", "failed"),
    SourceTransition("queued", "cancelled"),
    SourceTransition("assigned", "cancelled"),
    SourceTransition("running", "cancelled"),
    SourceTransition("queued", "dead_lettered"),
    SourceTransition("assigned", "dead_lettered"),
    SourceTransition("running", "dead_lettered"),
)
EXTENSIONS = (
    SourceTransition("running", "queued"),
    SourceTransition("assigned", "queued"),
    SourceTransition("queued", "failed"),
    SourceTransition("assigned", "failed"),
)
HEARTBEAT, LEASE_RENEWED = "job_heartbeat", "job_lease_renewed"
NAMED = {
    EventType.CLAIMED: "job_claimed",
    EventType.STARTED: "job_started",
    EventType.SUCCEEDED: "job_succeeded",
    EventType.FAILED: "job_failed",
    EventType.CANCELLED: "job_cancelled",
    EventType.HALTED: "job_cancelled",
    EventType.DEAD_LETTERED: "job_dead_lettered",
    EventType.COMPENSATED: "job_compensated",
}
"""The event types that the state machine names, besides the two of a heartbeat."""


def word(facts: WordFacts) -> str:
    """The state there."""
    return STATUSES[facts.status]


def _translate_job(job: Job, history: JobHistory) -> Fields:
    facts, runs = history.step.after, executions(history.events)
    # From the log: a stalled job that is still running there has an owner there, the last one.
    lease = runs[-1] if facts.status in LEASED else None
    fields: Fields = {
        "id": str(job.id),
        "job_type": job.kind,
        "payload": payload_of(job),
        "state": word(facts),
        "attempts": job.attempt,
        "max_attempts": job.policy.max_attempts,
        "owner": None if lease is None else lease.lease_owner,
        "lease_expires_at": None if lease is None else lease.lease_expires_at,
        "next_attempt_at": job.due_at if word(facts) == "queued" else None,
        "cancel_requested": job.cancel_requested,
        "correlation_id": job.correlation_id,
        "trace_id": _trace_id(job.origin.trace),
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "result": value_of(job.result),
        "error": value_of(job.error),
        "reason": job.reason,
    }
    if job.status is DEAD_LETTERED:
        fields["dead_letter"] = _dead_letter(job, history.event, runs)
    return fields


def _dead_letter(job: Job, end: Event, runs: Sequence[Execution]) -> Fields:
    """The dead-letter record, read from the log. Erasure blanks its stage and its error."""
    return {
        "reason_code": end.cause,
        "stage": detail_of(end).get("stage"),
        "last_error": value_of(job.last_error),
        "attempts": job.attempt,
        "last_owner": runs[-1].lease_owner if runs else None,
        "last_lease_expires_at": runs[-1].lease_expires_at if runs else None,
        "correlation_id": job.correlation_id,
    }


def _translate_event(history: JobHistory) -> Iterator[Report]:
    event = history.event
    name = event_name(event)
    fields = {
        "id": event.id,
        "job_id": str(event.job_id),
        "type": name,
        "ts": event.at,
        "actor": event.actor,
        "correlation_id": event.correlation_id,
        "trace_id": _trace_id(event.trace),
        "cause": event.cause,
        "payload": _payload(history),
        "version": event.version,
    }
    yield Report(name, fields, changed_word(history, word))


def event_name(event: Event) -> str:
    """The name of an event there."""
    if event.type is EventType.HEARTBEAT:
        return HEARTBEAT if event.until_at is None else LEASE_RENEWED
    return NAMED.get(event.type, f"job_{event.type.value}")


def _payload(history: JobHistory) -> Fields:
    event, step = history.event, history.step
    payload: Fields = {
        **detail_of(event),
        "from": None if step.before is None else word(step.before),
        "to": word(step.after),
        "attempt": event.attempt,
        "rev": event.rev,
    }
    if event.until_at is not None:
        payload.update(_until(event, event.until_at))
    return payload


def _until(event: Event, until_at: datetime) -> Fields:
    leased = event.type in (EventType.CLAIMED, EventType.HEARTBEAT)
    return {"lease_expires_at" if leased else "next_attempt_at": until_at}


def _trace_id(trace: str | None) -> str | None:
    """The trace id of a W3C `traceparent`; any other text is used as the id.

    >>> _trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    parts = (trace or "").split("-")
    return parts[1] if len(parts) == 4 else trace


MACHINE = Vocabulary(
    name="machine",
    about="the job state machine v1 (SM)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload", "result", "error", "dead_letter"}),
)
