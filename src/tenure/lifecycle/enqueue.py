"""The first transition of a job: the `enqueued` event, and the record after it. Pure.

Whether the job is created at all, or a request id or dedupe key names an existing one, is decided by the store.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenure.lifecycle.causes import CAUSES, REDRIVE, SCHEDULE
from tenure.lifecycle.deadlines import earliest, first_deadline
from tenure.lifecycle.evolve import after_ms
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin
from tenure.lifecycle.schedules import DUE_TAG
from tenure.lifecycle.statuses import QUEUED


def enqueue(
    origin: Origin, actor: Actor, *, delay_ms: int, due_at: datetime | None = None, now: datetime
) -> tuple[Event, Job]:
    """The event to write, and the new job, which is due at `due_at` or after the delay."""
    job = enqueued_job(origin, at=now, due_at=first_due_at(now, delay_ms=delay_ms, due_at=due_at))
    event = Event(
        job_id=origin.id,
        rev=job.rev,
        type=EventType.ENQUEUED,
        from_status=None,
        to_status=job.status,
        at=now,
        attempt=job.attempt,
        actor=str(actor),
        request_id=request_id_of(origin),
        cause=enqueue_cause(origin),
        detail=due_detail(delay_ms, due_at),
        digest=origin.digest(),
        until_at=None if job.due_at == now else job.due_at,
        correlation_id=job.correlation_id,
        trace=origin.trace,
    )
    return event, job


def enqueued_job(origin: Origin, *, at: datetime, due_at: datetime | None = None) -> Job:
    """The record after the `enqueued` event. Without `due_at` the job is due at once."""
    due_at = due_at or at
    return Job(
        origin=origin,
        status=QUEUED,
        rev=1,
        created_at=at,
        updated_at=at,
        due_at=due_at,
        timeout_at=earliest(after_ms(due_at, origin.policy.queued_ms), first_deadline(origin, at)),
    )


def first_due_at(now: datetime, *, delay_ms: int, due_at: datetime | None) -> datetime:
    """When a job that is enqueued now is due: at the given time, or after the delay, and never before now."""
    return now + timedelta(milliseconds=delay_ms) if due_at is None else max(now, due_at)


def request_id_of(origin: Origin) -> str:
    """The request id of an enqueue: the origin's own, or else the job's id."""
    return origin.request_id or str(origin.id)


def enqueue_cause(origin: Origin) -> str:
    """Why the job was enqueued: it runs an ended job again, a schedule was due, or it was requested."""
    if origin.redrive_of is not None:
        return REDRIVE
    if origin.tags is not None and DUE_TAG in origin.tags:
        return SCHEDULE
    return CAUSES[EventType.ENQUEUED]


def due_detail(delay_ms: int, due_at: datetime | None) -> str | None:
    """The detail of the event: the part of the request that the origin's digest does not cover."""
    if due_at is not None:
        return encode({"due_at": due_at.astimezone(UTC).isoformat()})
    return encode({"delay_ms": delay_ms}) if delay_ms else None
