"""Rows and records: how a job or an event lies in its table, and how it comes back. No decisions here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tenure.lifecycle.records import DeadLetter, Event, EventType, Job, Origin, Policy, ReasonCode, Stage
from tenure.lifecycle.statuses import Status
from tenure.stores.contract import SignalRecord
from tenure.stores.sqlite.statements import Row

PolicyOf = Callable[[int], Policy]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATUS = {status.value: status for status in Status}
_TYPE = {type_.value: type_ for type_ in EventType}
_encode = msgspec.json.encode
_tags = msgspec.json.Decoder(dict[str, str]).decode


def json_list(values: Iterable[object]) -> str:
    """Values as the text that `json_each` takes apart."""
    return _encode(list(values)).decode()


def text(id_: UUID) -> str:
    """An id as it lies in the tables. In this way it takes a quarter of the time of `str`."""
    written: str = msgspec.to_builtins(id_)
    return written


def id_of(written: str) -> UUID:
    """An id that lies in the tables. In this way it takes a third of the time of `UUID`."""
    return msgspec.convert(written, UUID)


@lru_cache(maxsize=4096)
def micros(value: datetime) -> int:
    """Microseconds since 1970. The records of a batch share most of their moments.

    >>> micros(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@lru_cache(maxsize=4096)
def moment(value: int) -> datetime:
    """The moment of so many microseconds since 1970. The rows of a batch share most of theirs."""
    return _EPOCH + timedelta(microseconds=value)


def maybe_micros(value: datetime | None) -> int | None:
    return None if value is None else micros(value)


def maybe_moment(value: int | None) -> datetime | None:
    return None if value is None else moment(value)


def event_row(event: Event, job_id: str) -> Row:
    """An event as insert_events.sql takes it. `job_id` is the event's, as text."""
    return (
        job_id,
        event.rev,
        str(event.type),
        None if event.from_status is None else str(event.from_status),
        str(event.to_status),
        micros(event.at),
        event.attempt,
        event.actor,
        event.request_id,
        event.cause,
        event.detail,
        event.digest,
        maybe_micros(event.until_at),
        1 if event.commits else 0,
        event.version,
    )


def new_job_row(job: Job, job_id: str, policy_id: int) -> Row:
    """A new job as insert_jobs.sql takes it."""
    origin = job.origin
    created_at = micros(job.created_at)
    return (
        job_id,
        origin.kind,
        policy_id,
        origin.queue,
        origin.priority,
        origin.dedupe_key,
        origin.request_id,
        origin.correlation_id,
        origin.trace,
        origin.submitted_by,
        origin.partition_key,
        None if origin.parent_id is None else text(origin.parent_id),
        None if origin.redrive_of is None else text(origin.redrive_of),
        created_at,
        created_at,
        created_at if job.due_at is job.created_at else maybe_micros(job.due_at),
        maybe_micros(job.timeout_at),
        None if origin.tags is None else _encode(origin.tags).decode(),
        origin.payload,
    )


def changed_job_row(before: Job, after: Job, job_id: str) -> Row:
    """A job's new state as update_jobs.sql takes it, matched on the state that it was decided upon."""
    return (
        str(after.status),
        after.rev,
        micros(after.updated_at),
        after.attempt,
        after.failures,
        after.losses,
        1 if after.lost else 0,
        maybe_micros(after.due_at),
        after.owner,
        None if after.token is None else text(after.token),
        maybe_micros(after.lease_expires_at),
        maybe_micros(after.heartbeat_deadline_at),
        maybe_micros(after.timeout_at),
        maybe_micros(after.started_at),
        maybe_micros(after.finished_at),
        maybe_micros(after.committed_at),
        1 if after.cancel_requested else 0,
        after.progress,
        after.rev - before.rev,
        str(before.status),
        after.progress_message,
        after.reason,
        after.committed_result,
        after.result,
        after.partial_result,
        after.error,
        after.last_error,
        job_id,
        before.rev,
        None if before.token is None else text(before.token),
    )


def job_of(row: Row, policy_of: PolicyOf) -> Job:
    """The record of a row of `jobs_by_id` and its like, with its token."""
    (id_, kind, policy_id, queue, priority, dedupe_key, request_id, correlation_id, trace, submitted_by) = row[:10]
    (partition_key, parent_id, redrive_of, status, rev, created_at, updated_at, attempt, failures, losses) = row[10:20]
    (lost, due_at, owner, token, lease_expires_at, heartbeat_deadline_at, timeout_at, started_at) = row[20:28]
    (finished_at, committed_at, cancel_requested, progress, erased_at, tags, progress_message, reason) = row[28:36]
    (committed_result, result, partial_result, error, last_error, payload) = row[36:]
    origin = Origin(
        id=id_of(id_),
        kind=kind,
        payload=payload,
        policy=policy_of(policy_id),
        queue=queue,
        priority=priority,
        dedupe_key=dedupe_key,
        request_id=request_id,
        correlation_id=correlation_id,
        trace=trace,
        submitted_by=submitted_by,
        tags=None if tags is None else _tags(tags),
        partition_key=partition_key,
        parent_id=None if parent_id is None else id_of(parent_id),
        redrive_of=None if redrive_of is None else id_of(redrive_of),
    )
    added = Job(
        origin=origin,
        status=_STATUS[status],
        rev=rev,
        created_at=moment(created_at),
        updated_at=moment(updated_at),
        due_at=None if due_at is None else moment(due_at),
        timeout_at=None if timeout_at is None else moment(timeout_at),
    )
    if row[17:21] == _NO_COUNTS and row[22:26] == _NO_LEASE and row[27:33] == _NO_PAST and row[34:41] == _NO_OUTCOME:
        # Most rows that are claimed are still as they were added.
        return added
    return replace(
        added,
        attempt=attempt,
        failures=failures,
        losses=losses,
        lost=lost == 1,
        owner=owner,
        token=None if token is None else id_of(token),
        lease_expires_at=None if lease_expires_at is None else moment(lease_expires_at),
        heartbeat_deadline_at=None if heartbeat_deadline_at is None else moment(heartbeat_deadline_at),
        started_at=None if started_at is None else moment(started_at),
        finished_at=None if finished_at is None else moment(finished_at),
        committed_at=None if committed_at is None else moment(committed_at),
        cancel_requested=cancel_requested == 1,
        progress=progress,
        progress_message=progress_message,
        committed_result=committed_result,
        result=result,
        partial_result=partial_result,
        error=error,
        last_error=last_error,
        reason=reason,
        erased_at=None if erased_at is None else moment(erased_at),
    )


_NO_COUNTS = (0, 0, 0, 0)
_NO_LEASE = (None, None, None, None)
_NO_PAST = (None, None, None, 0, None, None)
_NO_OUTCOME = (None, None, None, None, None, None, None)


def event_of(row: Row) -> Event:
    """The record of a row of `history` and its like."""
    (position, job_id, rev, type_, from_status, to_status, at, attempt, actor, request_id) = row[:10]
    (cause, detail, digest, until_at, commits, version, correlation_id, trace) = row[10:]
    return Event(
        job_id=id_of(job_id),
        rev=rev,
        type=_TYPE[type_],
        from_status=None if from_status is None else _STATUS[from_status],
        to_status=_STATUS[to_status],
        at=moment(at),
        attempt=attempt,
        actor=actor,
        request_id=request_id,
        cause=cause,
        detail=detail,
        digest=digest,
        until_at=None if until_at is None else moment(until_at),
        commits=commits == 1,
        version=version,
        correlation_id=correlation_id,
        trace=trace,
        position=str(position),
    )


def dead_letter_of(row: Row) -> DeadLetter:
    """The record of a row of `dead_letter`."""
    (job_id, reason_code, stage, last_error, attempts, at, last_owner, last_lease_expires_at, correlation_id) = row[:9]
    handled_at, handled_as = row[9:]
    return DeadLetter(
        job_id=id_of(job_id),
        reason_code=ReasonCode(reason_code),
        stage=Stage(stage),
        last_error=last_error,
        attempts=attempts,
        at=moment(at),
        last_owner=last_owner,
        last_lease_expires_at=maybe_moment(last_lease_expires_at),
        correlation_id=correlation_id,
        handled_at=maybe_moment(handled_at),
        handled_as=handled_as,
    )


def signal_of(row: Row, job_id: UUID) -> SignalRecord:
    """The record of a row of `signals`."""
    rev, name, payload, at = row
    return SignalRecord(job_id=job_id, rev=rev, name=name, payload=payload, at=moment(at))
