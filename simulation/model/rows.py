"""Queries over the model's rows: matching jobs, repeated requests, due jobs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import DedupeKeyConflict, InvalidInput, RequestIdReused
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import READY, STALLED
from tenure.stores.contract import (
    ClaimRequest,
    DeadLetterFilter,
    EnqueueRequest,
    EventFilter,
    JobFilter,
    PinnedJobs,
    Tally,
    without_token,
)

POSITION_DIGITS = 12

Body = tuple[str, str | None]
"""What identifies a repeated enqueue."""


class DeduplicatedEnqueue(msgspec.Struct, frozen=True):
    """An enqueue that was deduplicated to another job."""

    body: Body
    job_id: UUID
    at: datetime


class WonClaim(msgspec.Struct, frozen=True):
    body: str
    job_ids: tuple[UUID, ...]


def deduplicated_job(
    request: EnqueueRequest, rows: dict[UUID, Job], deduplicated: dict[str, DeduplicatedEnqueue]
) -> Job | None:
    """The job that this request was deduplicated to, also after that job has ended."""
    earlier = deduplicated.get(request.request_id)
    if earlier is None:
        return None
    if earlier.body != body_of(request):
        raise RequestIdReused(request.request_id, current=without_token(rows[earlier.job_id]))
    return rows[earlier.job_id]


def same_enqueue(request: EnqueueRequest, rows: dict[UUID, Job], bodies: dict[UUID, Body]) -> Job | None:
    """The job that this request made before; another body under the same id is refused."""
    wanted = request.origin.request_id
    by_request_id = (job for job in rows.values() if wanted is not None and job.origin.request_id == wanted)
    job = next(by_request_id, None) or rows.get(request.origin.id)
    if job is not None and bodies[job.id] != body_of(request):
        raise RequestIdReused(request.request_id, current=without_token(job))
    return job


def body_of(request: EnqueueRequest) -> Body:
    return request.origin.digest(), request.detail


def same_dedupe(request: EnqueueRequest, rows: Iterable[Job]) -> Job | None:
    key = request.origin.dedupe_key
    live = (job for job in rows if job.live and job.origin.dedupe_key == key)
    found = None if key is None else next(live, None)
    if found is not None and key is not None and found.kind != request.origin.kind:
        raise DedupeKeyConflict(key, job_id=found.id, kind=found.kind)
    return found


def claimable(job: Job, request: ClaimRequest, now: datetime) -> bool:
    mine = is_due(job, now) and job.queue in request.queues and job.kind in request.kinds
    return mine and job.pinned_version in (None, request.code_version)


def needs_attention(job: Job, now: datetime) -> bool:
    ends = (job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at)
    if any(at is not None and at <= now for at in ends):
        return True
    return job.status is STALLED and (job.lost or job.due_at is None)


def waits_for_no_child(job: Job, jobs: Iterable[Job], now: datetime) -> bool:
    """Whether the job waits for children although at most `children_max` of them are live, and is not due."""
    if job.children_max is None or (job.due_at is not None and job.due_at <= now):
        return False
    awaited = [child for child in jobs if child.origin.awaited and child.origin.parent_id == job.id]
    return sum(child.live for child in awaited) <= job.children_max


def job_matches(job: Job, wanted: JobFilter) -> bool:
    tags = job.origin.tags or {}
    return (
        (not wanted.statuses or job.status in wanted.statuses)
        and (not wanted.queues or job.queue in wanted.queues)
        and (not wanted.kinds or job.kind in wanted.kinds)
        and wanted.correlation_id in (None, job.correlation_id)
        and (not wanted.reasons or job.reason in wanted.reasons)
        and wanted.dedupe_key in (None, job.origin.dedupe_key)
        and wanted.submitted_by in (None, job.origin.submitted_by)
        and all(tags.get(name) == value for name, value in wanted.tags.items())
        and within(job.created_at, wanted.created_from, wanted.created_until)
    )


def letter_matches(letter: DeadLetterRecord, job: Job, wanted: DeadLetterFilter) -> bool:
    return (
        (wanted.handled or letter.handled_at is None)
        and (not wanted.reason_codes or letter.reason_code in wanted.reason_codes)
        and (not wanted.stages or letter.stage in wanted.stages)
        and (not wanted.kinds or job.kind in wanted.kinds)
        and (not wanted.queues or job.queue in wanted.queues)
        and wanted.correlation_id in (None, letter.correlation_id)
        and within(letter.at, wanted.dead_from, wanted.dead_until)
    )


def is_due(job: Job, now: datetime) -> bool:
    """Whether time and status allow a claim."""
    return job.due_at is not None and job.due_at <= now and job.status in READY and not job.committed


def tallies(jobs: Iterable[Job], now: datetime) -> list[Tally]:
    """How many jobs of each kind in each queue have each status."""
    groups: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.queue, job.kind, job.status.value), []).append(job)
    found: list[Tally] = []
    for (queue, kind, _), members in sorted(groups.items()):
        due = [job.due_at for job in members if is_due(job, now) and job.due_at is not None]
        tally = Tally(
            queue=queue,
            kind=kind,
            status=members[0].status,
            jobs=len(members),
            due=len(due),
            oldest_due_at=min(due, default=None),
        )
        found.append(tally)
    return found


def pinned_jobs(jobs: Iterable[Job]) -> list[PinnedJobs]:
    """How many jobs are pinned to each version of the code."""
    pinned = Counter(
        (job.pinned_version, job.queue, job.kind) for job in jobs if job.pinned_version and job.status in READY
    )
    return [PinnedJobs(version or "", queue, kind, jobs) for (version, queue, kind), jobs in sorted(pinned.items())]


def event_matches(event: Event, wanted: EventFilter) -> bool:
    return (
        wanted.job_id in (None, event.job_id)
        and (not wanted.types or event.type in wanted.types)
        and wanted.correlation_id in (None, event.correlation_id)
        and within(event.at, wanted.since, wanted.until)
    )


def position(after: object) -> str:
    """The position of an earlier page; None is the beginning."""
    if after is None or after == "":
        return ""
    if not isinstance(after, str) or len(after) != POSITION_DIGITS or not (after.isascii() and after.isdigit()):
        raise InvalidInput("after", f"{after!r} is not a position of this log; take it from an earlier page")
    return after


def within(at: datetime, begin: datetime | None, end: datetime | None) -> bool:
    return (begin is None or begin <= at) and (end is None or at < end)


def superseded(history: Sequence[Event]) -> list[Event]:
    """Progress that the record no longer shows: later progress or a new attempt replaced it."""
    found: list[Event] = []
    pending: list[Event] = []
    for event in history:
        if event.type in (EventType.PROGRESS, EventType.CLAIMED):
            found += pending
            pending = [event] if event.type is EventType.PROGRESS and event.detail is not None else []
    return found
