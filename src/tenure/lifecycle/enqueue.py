"""The first transition of a job: the `enqueued` event, and the record after it. Pure.

Whether the job is created at all, or a request id or dedupe key names an existing one, is decided by the store.
"""

from __future__ import annotations

from datetime import datetime

from tenure.lifecycle.evolve import after_ms
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin
from tenure.lifecycle.statuses import QUEUED


def enqueue(origin: Origin, actor: Actor, *, delay_ms: int, now: datetime) -> tuple[Event, Job]:
    """The event to write, and the new job."""
    job = enqueued_job(origin, at=now, due_at=after_ms(now, delay_ms or None))
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
        detail=delay_detail(delay_ms),
        digest=origin.digest(),
        until_at=job.due_at if delay_ms else None,
        correlation_id=origin.correlation_id,
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
        timeout_at=after_ms(due_at, origin.policy.queued_ms),
    )


def request_id_of(origin: Origin) -> str:
    """The request id of an enqueue: the origin's own, or else the job's id."""
    return origin.request_id or str(origin.id)


def delay_detail(delay_ms: int) -> str | None:
    """The detail of the event: the part of the request that the origin's digest does not cover."""
    return encode({"delay_ms": delay_ms}) if delay_ms else None
