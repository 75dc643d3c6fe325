"""The words of the lifecycle contract (LC): six statuses, and fields that are absent where they do not apply.

Every event keeps its type, and each accepted change is one event: the contract names eight events as examples of one
canonical set, and tenure's set is that one. Waiting and retrying jobs are queued. A job that ended without a result has
failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.lifecycle.records import Event, EventType, Job
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
    WAITING,
)
from tenure.vocabularies.vocabulary import Fields, JobHistory, NamedFields, Vocabulary, payload_of, value_of

STATUSES = {
    QUEUED: "queued",
    CLAIMED: "claimed",
    RUNNING: "running",
    WAITING: "queued",
    RETRY: "queued",
    STALLED: "stalled",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "failed",
    HALTED: "failed",
    DEAD_LETTERED: "failed",
}
EVENTS = {one: (one.value,) for one in EventType}


def _translate_job(job: Job, events: Sequence[Event]) -> Fields:
    fields: Fields = {
        "id": str(job.id),
        "kind": job.kind,
        "payload": payload_of(job),
        "status": STATUSES[job.status],
        "attempt": job.attempt,
        "rev": job.rev,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }
    if job.leased:
        fields["owner"] = job.owner
        fields["lease"] = {"execution_id": job.execution_id, "expires_at": job.lease_expires_at}
    if job.status is SUCCEEDED:
        fields["result"] = value_of(job.result)
    elif not job.live:
        fields["error"] = _error(job)
    return fields


def _error(job: Job) -> object:
    """A failed job has an error there; for one that was cancelled, halted or dead-lettered it is built from those."""
    if job.status is FAILED:
        return value_of(job.error)
    error: Fields = {"type": job.status.value, "message": job.reason}
    if job.status is HALTED:
        error["partial_result"] = value_of(job.partial_result)
    if job.status is DEAD_LETTERED:
        error["last_error"] = value_of(job.last_error)
    return error


def _translate_event(history: JobHistory) -> NamedFields:
    event = history.event
    yield (
        event.type.value,
        {
            "job_id": str(event.job_id),
            "type": event.type.value,
            "from_status": None if event.from_status is None else STATUSES[event.from_status],
            "to_status": STATUSES[event.to_status],
            "at": event.at,
            "actor": event.actor,
            "request_id": event.request_id,
            "rev": event.rev,
            "attempt": event.attempt,
        },
    )


CONTRACT = Vocabulary(
    name="contract",
    about="the lifecycle contract (LC)",
    statuses=STATUSES,
    events=EVENTS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload", "result", "error"}),
)
