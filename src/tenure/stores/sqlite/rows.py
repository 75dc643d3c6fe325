"""Rows and records: how each record is encoded into its table's columns, and decoded from them. No decisions here.

The fields of `JobRow`, `EventRow` and `StepRecord` are the only lists of their tables' columns; statements take theirs
from COLUMNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import astuple, replace

from tenure.lifecycle.causes import CAUSES, stored_cause
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import EndsAs, Event, EventType, Job, Origin, Policy, WaitingFor
from tenure.lifecycle.statuses import CLAIMED, RUNNING, Status
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.stores.sqlite.values import Row, id_of, micros, optional_micros, optional_timestamp, text, timestamp

PolicyOf = Callable[[int], Policy]

_STATUS = {status.value: status for status in Status}
_encode = msgspec.json.encode
_tags = msgspec.json.Decoder(dict[str, str]).decode


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A row of tenure_jobs."""

    id: str
    kind: str
    policy_id: int
    queue: str
    priority: int
    dedupe_key: str | None
    request_id: str | None
    correlation_id: str | None
    trace: str | None
    submitted_by: str | None
    partition_key: str | None
    parent_id: str | None
    redrive_of: str | None
    awaited: int
    status: str
    rev: int
    created_at: int
    updated_at: int
    attempt: int
    failures: int
    losses: int
    lost: int
    due_at: int | None
    owner: str | None
    token: str | None
    lease_expires_at: int | None
    heartbeat_deadline_at: int | None
    timeout_at: int | None
    started_at: int | None
    finished_at: int | None
    committed_at: int | None
    cancel_reason: str | None
    signal_rev: int
    waiting_for: WaitingFor | None
    children_max: int | None
    pinned_version: str | None
    ends_as: EndsAs | None
    ends_because: str | None
    failures_before_undo: int
    compensated_at: int | None
    progress: int | None
    erased_at: int | None
    transition_count: int
    previous_status: str | None
    tags: str | None
    progress_message: str | None
    reason: str | None
    committed_result: str | None
    result: str | None
    partial_result: str | None
    error: str | None
    last_error: str | None
    payload: str


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """A row of tenure_events, without its position."""

    job_id: str
    rev: int
    type: str
    from_status: str | None
    to_status: str
    at: int
    attempt: int
    actor: str
    request_id: str
    cause: str | None
    detail: str | None
    digest: str | None
    until_at: int | None
    commits: int
    version: int
    steps: str | None = None


POSITIONED = ("position", "correlation_id", "trace")
"""The columns before those of the event in a row that `decode_event` decodes."""
JOB, EVENT, STEP = JobRow.__struct_fields__, EventRow.__struct_fields__, StepRecord.__struct_fields__
ORIGIN = frozenset(Origin.__struct_fields__) | {"policy_id", "created_at"}
MUTABLE = tuple(column for column in JOB if column not in ORIGIN | {"erased_at"})
NEW = tuple(column for column in JOB if column in ORIGIN | {"status", "rev", "updated_at", "due_at", "timeout_at"})
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "job": JOB,
    "new job": NEW,
    "shared new job": tuple(column for column in NEW if column not in ("id", "payload")),
    "mutable job": MUTABLE,
    "event": EVENT,
    "step": STEP,
    "dead letter": DeadLetterRecord.__struct_fields__,
    "shared event": tuple(column for column in EVENT if column not in ("job_id", "digest", "request_id")),
}
"""The lists that a statement's line `-- each … column: …` names."""

_PAST = tuple(column for column in JOB if column not in (*NEW, "transition_count", "previous_status"))
_NO_PAST = tuple(0 if JobRow.__annotations__[column] == "int" else None for column in _PAST)
_PAST_TIMES = tuple(column for column in _PAST if column.endswith("_at"))
_past = itemgetter(*map(JOB.index, _PAST))
_new = itemgetter(*map(JOB.index, NEW))
_mutable = itemgetter(*map(JOB.index, MUTABLE))


def encode_event(event: Event, job_id: str) -> EventRow:
    """`job_id` is the event's, as text: a batch encodes it once for the job and its events."""
    return EventRow(
        job_id,
        event.rev,
        str(event.type),
        None if event.from_status is None else str(event.from_status),
        str(event.to_status),
        micros(event.at),
        event.attempt,
        event.actor,
        event.request_id,
        stored_cause(event.type, event.cause),
        event.detail,
        event.digest,
        optional_micros(event.until_at),
        1 if event.commits else 0,
        event.version,
        event.steps,
    )


def encode_events(events: Sequence[Event], job_id: str) -> list[EventRow]:
    """The rows of one change's events. A claim with its start is one row; no other events are combined."""
    if [event.type for event in events] == [EventType.CLAIMED, EventType.STARTED]:
        claim, start = (encode_event(event, job_id) for event in events)
        return [replace(claim, rev=start.rev, to_status=start.to_status)]
    return [encode_event(event, job_id) for event in events]


def decode_events(row: Row) -> tuple[Event, ...]:
    """The events of a row (position, the job's correlation id and trace, the event's columns): one, or a claim and its
    start.

    The last event of a row has twice its position, and a claim before it one less.
    """
    event = decode_event(row)
    if event.type is not EventType.CLAIMED or event.to_status is not RUNNING:
        return (event,)
    claim = replace(event, rev=event.rev - 1, to_status=CLAIMED, position=str(2 * row[0] - 1))
    start = replace(
        event,
        type=EventType.STARTED,
        from_status=CLAIMED,
        cause=CAUSES[EventType.STARTED],
        detail=None,
        digest=None,
        until_at=None,
    )
    return claim, start


def decode_event(row: Row) -> Event:
    """The event of a row, or the claim and its start as one."""
    event = EventRow(*row[3:])
    return Event(
        job_id=id_of(event.job_id),
        rev=event.rev,
        type=(type_ := EventType.of(event.type)),
        from_status=None if event.from_status is None else _STATUS[event.from_status],
        to_status=_STATUS[event.to_status],
        at=timestamp(event.at),
        attempt=event.attempt,
        actor=event.actor,
        request_id=event.request_id,
        cause=event.cause or CAUSES.get(type_, type_.value),
        detail=event.detail,
        digest=event.digest,
        until_at=optional_timestamp(event.until_at),
        commits=event.commits == 1,
        version=event.version,
        steps=event.steps,
        correlation_id=row[1] or event.job_id,
        trace=row[2],
        position=str(2 * row[0]),
    )


def encode_job(job: Job, *, policy_id: int, before: Job | None = None) -> JobRow:
    """The row of a job, which was `before` until the transitions that are written with it."""
    # In the order of the columns: keywords would take four times as long.
    origin, due_at = job.origin, job.due_at
    created_at = micros(job.created_at)
    return JobRow(
        text(origin.id),
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
        1 if origin.awaited else 0,
        str(job.status),
        job.rev,
        created_at,
        micros(job.updated_at),
        job.attempt,
        job.failures,
        job.losses,
        1 if job.lost else 0,
        created_at if due_at is job.created_at else optional_micros(due_at),
        job.owner,
        None if job.token is None else text(job.token),
        optional_micros(job.lease_expires_at),
        optional_micros(job.heartbeat_deadline_at),
        optional_micros(job.timeout_at),
        optional_micros(job.started_at),
        optional_micros(job.finished_at),
        optional_micros(job.committed_at),
        job.cancel_reason,
        job.signal_rev,
        job.waiting_for,
        job.children_max,
        job.pinned_version,
        job.ends_as,
        job.ends_because,
        job.failures_before_undo,
        optional_micros(job.compensated_at),
        job.progress,
        optional_micros(job.erased_at),
        1 if before is None else job.rev - before.rev,
        None if before is None else str(before.status),
        None if origin.tags is None else _encode(origin.tags).decode(),
        job.progress_message,
        job.reason,
        job.committed_result,
        job.result,
        job.partial_result,
        job.error,
        job.last_error,
        origin.payload,
    )


def encode_new_job(job: Job, policy_id: int) -> Row:
    """The parameters of jobs/insert."""
    new: Row = _new(astuple(encode_job(job, policy_id=policy_id)))
    return new


def encode_change(before: Job, after: Job) -> Row:
    """The parameters of jobs/update: the mutable columns, the id, and the revision and token that must still match."""
    row = encode_job(after, policy_id=0, before=before)
    return (*_mutable(astuple(row)), row.id, before.rev, None if before.token is None else text(before.token))


def _decode_origin(job: JobRow, policy_of: PolicyOf) -> Origin:
    return Origin(
        id=id_of(job.id),
        kind=job.kind,
        payload=job.payload,
        policy=policy_of(job.policy_id),
        queue=job.queue,
        priority=job.priority,
        dedupe_key=job.dedupe_key,
        request_id=job.request_id,
        correlation_id=job.correlation_id,
        trace=job.trace,
        submitted_by=job.submitted_by,
        tags=None if job.tags is None else _tags(job.tags),
        partition_key=job.partition_key,
        parent_id=None if job.parent_id is None else id_of(job.parent_id),
        redrive_of=None if job.redrive_of is None else id_of(job.redrive_of),
        awaited=job.awaited == 1,
    )


def decode_job(row: Row, policy_of: PolicyOf) -> Job:
    """The record of a row of tenure_jobs, with its token."""
    job = JobRow(*row)
    added = Job(
        origin=_decode_origin(job, policy_of),
        status=_STATUS[job.status],
        rev=job.rev,
        created_at=timestamp(job.created_at),
        updated_at=timestamp(job.updated_at),
        due_at=optional_timestamp(job.due_at),
        timeout_at=optional_timestamp(job.timeout_at),
    )
    past = _past(row)
    if past == _NO_PAST:
        # Most rows that a claim reads are as they were enqueued.
        return added
    moved = dict(zip(_PAST, past, strict=True))
    for name in _PAST_TIMES:
        if moved[name] is not None:
            moved[name] = timestamp(moved[name])
    moved["lost"] = job.lost == 1
    moved["token"] = None if job.token is None else id_of(job.token)
    return replace(added, **moved)


def encode_step(step: StepRecord) -> Row:
    """The parameters of steps/insert."""
    encoded = {
        "job_id": text(step.job_id),
        "kind": str(step.kind),
        "started_at": micros(step.started_at),
        "finished_at": micros(step.finished_at),
        "child_id": None if step.child_id is None else text(step.child_id),
    }
    return tuple(encoded.get(name, value) for name, value in zip(STEP, astuple(step), strict=True))


def decode_step(row: Row) -> StepRecord:
    """The record of a row of tenure_steps."""
    step = dict(zip(STEP, row, strict=True))
    step["job_id"] = id_of(step["job_id"])
    step["kind"] = StepKind(step["kind"])
    step["started_at"], step["finished_at"] = timestamp(step["started_at"]), timestamp(step["finished_at"])
    step["child_id"] = None if step["child_id"] is None else id_of(step["child_id"])
    return StepRecord(**step)
