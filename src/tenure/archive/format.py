"""The lines of an export: one JSON object each, whose field `line` is its kind. Pure.

The order is: header, records outside of jobs, the log in its order, each job followed by its artifacts and steps,
footer. Lease tokens are never written.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any, get_args

import msgspec

from tenure.errors import InvalidInput, TenureError
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import check_content, check_name
from tenure.lifecycle.records import Actor, Event, Job, Role
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.lifecycle.size_limits import STORED_BYTES_MAX
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import Artifact, ArtifactRecord, EnqueueRequest, OutboxMessage, SignalRecord
from tenure.stores.contract.archive import (
    ArchivedJob,
    ArchivedSubscription,
    ArchiveRecord,
    ClaimRecord,
    DeduplicatedRequest,
    KeyRateUsage,
    OperatorRecord,
    QueueState,
    StreamRecord,
)
from tenure.stores.contract.budgets import BudgetRecord, ReservationRecord
from tenure.stores.contract.outbox import ArchivedDelivery, ArchivedEndpoint, MessageRecord, PendingRecord
from tenure.stores.outbox_validation import check_endpoint, check_subscription
from tenure.stores.schedule_validation import validate_next, validate_schedule
from tenure.stores.validation import validate_artifacts, validate_enqueue, validate_message, validate_step_record

FORMAT = "tenure-export"
TRANSLATED_FORMAT = "tenure-translated"
"""The format of an export in another vocabulary, which cannot be imported."""
VERSION = 3
"""Increased when an older reader would lose something of a file. Version 2 has steps, version 3 endpoints."""
READABLE_VERSIONS = (1, 2, 3)

_encode = msgspec.json.encode
_EXPORTER = Actor(Role.CLIENT, "export")


class BrokenArchive(TenureError):
    """A file cannot be imported. `line` counts from 1. Nothing was imported."""

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem
        super().__init__(f"line {line}: {problem}; nothing was imported")


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", forbid_unknown_fields=True):
    """Unknown fields are errors: every field of a known version is known."""


class Header(_Line, frozen=True, tag="header", omit_defaults=True):
    """The first line: format, origin and size of the file."""

    format: str
    version: int
    tenure: str
    store: str
    at: datetime
    covers: str
    jobs: int
    events: int
    vocabularies: tuple[str, ...] = ()


class OperatorLine(_Line, frozen=True, tag="operator"):
    operator: OperatorRecord


class ClaimLine(_Line, frozen=True, tag="claim"):
    claim: ClaimRecord


class QueueLine(_Line, frozen=True, tag="queue"):
    queue: QueueState


class RateUsageLine(_Line, frozen=True, tag="rate_usage"):
    rate_usage: KeyRateUsage


class ScheduleLine(_Line, frozen=True, tag="schedule"):
    schedule: ScheduleRecord


class StreamLine(_Line, frozen=True, tag="stream"):
    stream: StreamRecord


class MessageLine(_Line, frozen=True, tag="message"):
    message: MessageRecord


class EndpointLine(_Line, frozen=True, tag="endpoint"):
    endpoint: ArchivedEndpoint


class SubscriptionLine(_Line, frozen=True, tag="subscription"):
    subscription: ArchivedSubscription


class PendingLine(_Line, frozen=True, tag="pending"):
    pending: PendingRecord


class DeliveryLine(_Line, frozen=True, tag="delivery"):
    delivery: ArchivedDelivery


class BudgetRecordLine(_Line, frozen=True, tag="budget"):
    budget: BudgetRecord


class ReservationLine(_Line, frozen=True, tag="reservation"):
    reservation: ReservationRecord


class EventLine(_Line, frozen=True, tag="event"):
    event: Event


class JobLine(_Line, frozen=True, tag="job"):
    job: Job
    dead_letter: DeadLetterRecord | None = None
    signals: tuple[SignalRecord, ...] = ()
    deduplicated_requests: tuple[DeduplicatedRequest, ...] = ()

    @property
    def record(self) -> ArchivedJob:
        return ArchivedJob(
            job=self.job,
            dead_letter=self.dead_letter,
            signals=self.signals,
            deduplicated_requests=self.deduplicated_requests,
        )


class ArtifactLine(_Line, frozen=True, tag="artifact"):
    artifact: ArtifactRecord
    body: str

    def content(self) -> bytes:
        """The decoded body; ValueError where it is not base64."""
        return base64.b64decode(self.body, validate=True)


class StepLine(_Line, frozen=True, tag="step"):
    """A step. `number` counts the steps of its job from 1."""

    step: StepRecord


class Footer(_Line, frozen=True, tag="footer"):
    """The last line: the counts of all lines between header and footer, and the SHA-256 of their bytes."""

    counts: dict[str, int]
    sha256: str


RecordLine = (
    OperatorLine
    | ClaimLine
    | QueueLine
    | RateUsageLine
    | ScheduleLine
    | StreamLine
    | MessageLine
    | EndpointLine
    | SubscriptionLine
    | PendingLine
    | DeliveryLine
    | BudgetRecordLine
    | ReservationLine
)
Line = Header | RecordLine | EventLine | JobLine | ArtifactLine | StepLine | Footer
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)

ORDER = (
    "header",
    "operator",
    "claim",
    "queue",
    "rate_usage",
    "schedule",
    "stream",
    "message",
    "endpoint",
    "subscription",
    "pending",
    "delivery",
    "budget",
    "reservation",
    "event",
    "job",
    "footer",
)
"""The order of kinds. Artifacts, then steps, follow their job."""


class Checksum:
    """The counts and the digest of the lines between header and footer."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._digest = sha256()

    def add(self, kind: str, line: bytes) -> None:
        self.counts[kind] += 1
        self._digest.update(line)

    def footer(self) -> Footer:
        return Footer(counts=dict(sorted(self.counts.items())), sha256=self._digest.hexdigest())


def encode_line(kind: str, fields: dict[str, Any]) -> bytes:
    """A line, including its newline."""
    return _encode({"line": kind, **fields}) + b"\n"


def frame_line(frame: Header | Footer) -> bytes:
    """The first or the last line."""
    return _encode(frame) + b"\n"


def event_line(event: Event) -> bytes:
    """An event without its position, which is the database's, and without fields that its job has."""
    fields = _set_fields(event)
    for name in ("position", "correlation_id", "trace"):
        fields.pop(name, None)
    return encode_line("event", {"event": fields})


def record_line(record: ArchiveRecord) -> tuple[str, bytes]:
    """The kind and the line of a record outside of jobs."""
    kind = _KIND[type(record)]
    fields = _set_fields(record)
    if isinstance(record, ScheduleRecord):
        fields["schedule"] = _with_sorted_tags(_set_fields(record.schedule))
    return kind, encode_line(kind, {kind: fields})


def job_line(record: ArchivedJob) -> bytes:
    """A job with its dead letter, signals and deduplicated requests. Only fields of its policy can be null."""
    fields = _set_fields(record.job)
    fields.pop("token", None)
    line: dict[str, Any] = {"job": fields | {"origin": _with_sorted_tags(_set_fields(record.job.origin))}}
    if record.dead_letter is not None:
        line["dead_letter"] = _set_fields(record.dead_letter)
    if record.signals:
        line["signals"] = [_set_fields(signal) for signal in record.signals]
    if record.deduplicated_requests:
        line["deduplicated_requests"] = [_set_fields(request) for request in record.deduplicated_requests]
    return encode_line("job", line)


def artifact_line(record: ArtifactRecord, body: bytes) -> bytes:
    return encode_line("artifact", {"artifact": _set_fields(record), "body": base64.b64encode(body).decode()})


def step_line(step: StepRecord, *, number: int) -> bytes:
    """A step with its number among the steps of its job."""
    return encode_line("step", {"step": _set_fields(step) | {"number": number}})


def read(number: int, raw: bytes) -> Line:
    """Decode and validate a line; BrokenArchive for one that no export writes."""
    try:
        line = _decoder.decode(raw)
        check(line)
    except (msgspec.MsgspecError, InvalidInput, UnicodeError, ValueError, RecursionError) as problem:
        raise BrokenArchive(number, _shortened(str(problem))) from None
    if b"\\u0000" in raw:
        _require_no_nul(number, msgspec.json.decode(raw))
    return line


def check(line: Line) -> None:
    """Validate a line as a store validates its input; ValueError or InvalidInput."""
    match line:
        case JobLine():
            _check_job(line)
        case ArtifactLine():
            record, body = line.artifact, line.content()
            validate_artifacts([Artifact(name=record.name, media_type=record.media_type, body=body)])
            if len(body) != record.bytes:
                raise ValueError(f"the artifact {record.name!r} has {len(body)} bytes instead of {record.bytes}")
        case StepLine(step=step):
            validate_step_record(step)
        case MessageLine(message=one):
            validate_message(
                OutboxMessage(id=one.id, topic=one.topic, body=one.body, aggregate=one.aggregate, headers=one.headers)
            )
        case EndpointLine(endpoint=one):
            check_endpoint(one.name, kind=one.kind, config=one.config)
        case SubscriptionLine(subscription=one):
            check_subscription(one.topic, filters=one.filters, block_seconds=one.block_seconds)
        case QueueLine(queue=queue):
            check_name(queue.name, "queue")
        case ScheduleLine(schedule=one):
            validate_schedule(one.schedule, next_at=one.next_at, expected_rev=one.rev, actor=_EXPORTER)
            validate_next(one.next_at, one.last_at)
    for name, at in _timestamps(line):
        if at.utcoffset() is None:
            raise ValueError(f"{name} has no time zone")


def _check_job(line: JobLine) -> None:
    job = line.job
    if job.token is not None:
        raise ValueError("the job has a lease token, which no export has")
    validate_enqueue(EnqueueRequest(job.origin, _EXPORTER))
    for name in ("committed_result", "result", "partial_result", "error", "last_error"):
        if (text := getattr(job, name)) is not None:
            check_content(text, name, bytes_max=STORED_BYTES_MAX)
    for signal in line.signals:
        check_content(signal.payload, "signal")
    dead_letters = () if line.dead_letter is None else (line.dead_letter,)
    if any(one.job_id != job.id for one in (*line.signals, *line.deduplicated_requests, *dead_letters)):
        raise ValueError(f"a record of job {job.id} has another job_id")


def _timestamps(record: msgspec.Struct) -> Iterator[tuple[str, datetime]]:
    """Every timestamp in a record and its nested records."""
    timestamps, nested = _timestamp_fields(type(record))
    for name in timestamps:
        if (at := getattr(record, name)) is not None:
            yield name, at
    for name in nested:
        inner = getattr(record, name)
        for one in inner if isinstance(inner, tuple) else () if inner is None else (inner,):
            yield from _timestamps(one)


@cache
def _timestamp_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The timestamp fields of a record, and its fields with nested records that have some."""
    timestamps: list[str] = []
    nested: list[str] = []
    for field in msgspec.structs.fields(kind):
        kinds = (field.type, *get_args(field.type))
        if datetime in kinds:
            timestamps.append(field.name)
        elif any(_is_record(one) and any(_timestamp_fields(one)) for one in kinds):
            nested.append(field.name)
    return tuple(timestamps), tuple(nested)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _require_no_nul(number: int, value: object) -> None:
    match value:
        case str() if "\x00" in value:
            raise BrokenArchive(number, "contains a NUL character, which no store can hold")
        case dict():
            for key, item in value.items():
                _require_no_nul(number, key)
                _require_no_nul(number, item)
        case list():
            for item in value:
                _require_no_nul(number, item)


def _set_fields(record: msgspec.Struct) -> dict[str, Any]:
    """The fields of a record, without optional ones that are None."""
    optional = _optional(type(record))
    fields = msgspec.structs.asdict(record)
    return {name: value for name, value in fields.items() if value is not None or name not in optional}


@cache
def _optional(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.default is None)


def _with_sorted_tags(facts: dict[str, Any]) -> dict[str, Any]:
    """Stores keep tags in different orders, and they have none."""
    return facts | {"tags": dict(sorted(facts["tags"].items()))} if "tags" in facts else facts


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"


def record_of(line: RecordLine) -> ArchiveRecord:
    record: ArchiveRecord = getattr(line, kind_of(line))
    return record


def kind_of(line: Line) -> str:
    """The kind of a line, as written in its field `line`."""
    return str(line.__struct_config__.tag)


_KIND: dict[type[ArchiveRecord], str] = {
    OperatorRecord: "operator",
    ClaimRecord: "claim",
    QueueState: "queue",
    KeyRateUsage: "rate_usage",
    ScheduleRecord: "schedule",
    StreamRecord: "stream",
    MessageRecord: "message",
    ArchivedEndpoint: "endpoint",
    ArchivedSubscription: "subscription",
    PendingRecord: "pending",
    ArchivedDelivery: "delivery",
    BudgetRecord: "budget",
    ReservationRecord: "reservation",
}
