"""The lines of an export: one JSON object each, named by its field `line`. Pure.

First the header, then what stands beside the jobs, then the log in its order, then each job with what belongs to it,
and last the footer. The secret of a lease is in none of them.
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
from tenure.lifecycle.json_text import check_content, check_name
from tenure.lifecycle.records import Actor, DeadLetter, Event, Job, Role
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.stores.contract import Artifact, ArtifactRecord, EnqueueRequest, OutboxMessage, SignalRecord
from tenure.stores.contract.archive import (
    AnswerRecord,
    ClaimRecord,
    Kept,
    KeySpent,
    MessageRecord,
    OperatorRecord,
    QueueState,
    Shelved,
    StreamRecord,
)
from tenure.stores.schedule_validation import check_next, check_schedule
from tenure.stores.validation import check_artifacts, check_enqueue, check_message

FORMAT = "tenure-export"
TOLD_FORMAT = "tenure-told"
"""Of a file that is told in other words, and is not for import."""
VERSION = 1
"""A reader knows the versions up to its own. A new one is made when a reader would lose something by not knowing it."""

_encode = msgspec.json.encode
_NOBODY = Actor(Role.CLIENT, "export")


class BrokenArchive(TenureError):
    """A file cannot be imported. `line` is where that shows, from 1; nothing of it was kept."""

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem
        super().__init__(f"line {line}: {problem}; nothing was imported")


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", forbid_unknown_fields=True):
    """Of a version that we know, every field is known."""


class Header(_Line, frozen=True, tag="header", omit_defaults=True):
    """What the file is."""

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


class SpentLine(_Line, frozen=True, tag="spent"):
    spent: KeySpent


class ScheduleLine(_Line, frozen=True, tag="schedule"):
    schedule: ScheduleRecord


class StreamLine(_Line, frozen=True, tag="stream"):
    stream: StreamRecord


class MessageLine(_Line, frozen=True, tag="message"):
    message: MessageRecord


class EventLine(_Line, frozen=True, tag="event"):
    event: Event


class JobLine(_Line, frozen=True, tag="job"):
    job: Job
    dead_letter: DeadLetter | None = None
    signals: tuple[SignalRecord, ...] = ()
    answers: tuple[AnswerRecord, ...] = ()

    @property
    def kept(self) -> Kept:
        return Kept(job=self.job, dead_letter=self.dead_letter, signals=self.signals, answers=self.answers)


class ArtifactLine(_Line, frozen=True, tag="artifact"):
    artifact: ArtifactRecord
    body: str

    def content(self) -> bytes:
        """The body; ValueError where it is not what was written."""
        return base64.b64decode(self.body, validate=True)


class Footer(_Line, frozen=True, tag="footer"):
    """How much came before it, and the SHA-256 of all lines between header and footer with their ends."""

    counts: dict[str, int]
    sha256: str


ShelvedLine = OperatorLine | ClaimLine | QueueLine | SpentLine | ScheduleLine | StreamLine | MessageLine
Line = Header | ShelvedLine | EventLine | JobLine | ArtifactLine | Footer
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)

ORDER = ("header", "operator", "claim", "queue", "spent", "schedule", "stream", "message", "event", "job", "footer")
"""The kinds in the order in which they come. Artifacts stand behind their job."""


class Sum:
    """Counts and sums up the lines between header and footer, for whoever writes them and for whoever reads them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._digest = sha256()

    def add(self, kind: str, line: bytes) -> None:
        self.counts[kind] += 1
        self._digest.update(line)

    def footer(self) -> Footer:
        return Footer(counts=dict(sorted(self.counts.items())), sha256=self._digest.hexdigest())


def written(kind: str, facts: dict[str, Any]) -> bytes:
    """A line, with its end."""
    return _encode({"line": kind, **facts}) + b"\n"


def edge_line(edge: Header | Footer) -> bytes:
    """The first line or the last."""
    return _encode(edge) + b"\n"


def event_line(event: Event) -> bytes:
    """An event without its position, which belongs to a database, and without what its job says."""
    facts = _set_in(event)
    for name in ("position", "correlation_id", "trace"):
        facts.pop(name, None)
    return written("event", {"event": facts})


def shelved_line(record: Shelved) -> tuple[str, bytes]:
    """A line for what stands beside the jobs, and the name of its kind."""
    kind = _KIND[type(record)]
    facts = _set_in(record)
    if isinstance(record, ScheduleRecord):
        facts["schedule"] = _with_sorted_tags(_set_in(record.schedule))
    return kind, written(kind, {kind: facts})


def job_line(kept: Kept) -> bytes:
    """A job with what belongs to it. Only what its policy leaves open is written as null."""
    facts = _set_in(kept.job)
    facts.pop("token", None)
    line: dict[str, Any] = {"job": facts | {"origin": _with_sorted_tags(_set_in(kept.job.origin))}}
    if kept.dead_letter is not None:
        line["dead_letter"] = _set_in(kept.dead_letter)
    if kept.signals:
        line["signals"] = [_set_in(signal) for signal in kept.signals]
    if kept.answers:
        line["answers"] = [_set_in(answer) for answer in kept.answers]
    return written("job", line)


def artifact_line(record: ArtifactRecord, body: bytes) -> bytes:
    return written("artifact", {"artifact": _set_in(record), "body": base64.b64encode(body).decode()})


def read(number: int, raw: bytes) -> Line:
    """What a line says. Anything that no export writes is BrokenArchive."""
    try:
        line = _decoder.decode(raw)
        check(line)
    except (msgspec.MsgspecError, InvalidInput, UnicodeError, ValueError, RecursionError) as problem:
        raise BrokenArchive(number, _shortened(str(problem))) from None
    if b"\\u0000" in raw:
        _require_no_nul(number, msgspec.json.decode(raw))
    return line


def check(line: Line) -> None:
    """Refuse what no store could hold or nobody could mean, as at a store's own door; ValueError or InvalidInput."""
    match line:
        case JobLine():
            _check_job(line)
        case ArtifactLine():
            record, body = line.artifact, line.content()
            check_artifacts([Artifact(name=record.name, media_type=record.media_type, body=body)])
            if len(body) != record.bytes:
                raise ValueError(f"the artifact {record.name!r} has {len(body)} bytes, and should have {record.bytes}")
        case MessageLine(message=one):
            check_message(
                OutboxMessage(id=one.id, topic=one.topic, body=one.body, aggregate=one.aggregate, headers=one.headers)
            )
        case QueueLine(queue=queue):
            check_name(queue.name, "queue")
        case ScheduleLine(schedule=one):
            check_schedule(one.schedule, next_at=one.next_at, expected_rev=one.rev, actor=_NOBODY)
            check_next(one.next_at, one.last_at)
    for name, moment in _moments(line):
        if moment.utcoffset() is None:
            raise ValueError(f"{name} has no time zone")


def _check_job(line: JobLine) -> None:
    job = line.job
    if job.token is not None:
        raise ValueError("a job comes with the secret of its lease, which no export has")
    check_enqueue(EnqueueRequest(job.origin, _NOBODY))
    for name in ("committed_result", "result", "partial_result", "error", "last_error"):
        if (text := getattr(job, name)) is not None:
            check_content(text, name)
    for signal in line.signals:
        check_content(signal.payload, "signal")
    belongings = (*line.signals, *line.answers, *(() if line.dead_letter is None else (line.dead_letter,)))
    if any(one.job_id != job.id for one in belongings):
        raise ValueError(f"what belongs to job {job.id} names another job")


def _moments(record: msgspec.Struct) -> Iterator[tuple[str, datetime]]:
    """Every moment in a record, however deep."""
    moments, nested = _where_moments_are(type(record))
    for name in moments:
        if (moment := getattr(record, name)) is not None:
            yield name, moment
    for name in nested:
        inner = getattr(record, name)
        for one in inner if isinstance(inner, tuple) else () if inner is None else (inner,):
            yield from _moments(one)


@cache
def _where_moments_are(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of a record that are moments, and those that hold records which have some."""
    moments: list[str] = []
    nested: list[str] = []
    for field in msgspec.structs.fields(kind):
        kinds = (field.type, *get_args(field.type))
        if datetime in kinds:
            moments.append(field.name)
        elif any(_is_record(one) and any(_where_moments_are(one)) for one in kinds):
            nested.append(field.name)
    return tuple(moments), tuple(nested)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _require_no_nul(number: int, value: object) -> None:
    match value:
        case str() if "\x00" in value:
            raise BrokenArchive(number, "holds a NUL character, which no store holds")
        case dict():
            for key, item in value.items():
                _require_no_nul(number, key)
                _require_no_nul(number, item)
        case list():
            for item in value:
                _require_no_nul(number, item)


def _set_in(record: msgspec.Struct) -> dict[str, Any]:
    """The fields of a record, without those that are None and would be None if they were left out."""
    optional = _optional(type(record))
    facts = msgspec.structs.asdict(record)
    return {name: fact for name, fact in facts.items() if fact is not None or name not in optional}


@cache
def _optional(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.default is None)


def _with_sorted_tags(facts: dict[str, Any]) -> dict[str, Any]:
    """Stores keep tags in different orders, and they have none."""
    return facts | {"tags": dict(sorted(facts["tags"].items()))} if "tags" in facts else facts


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"


def record_of(line: ShelvedLine) -> Shelved:
    """What a line says that stands for one record."""
    record: Shelved = getattr(line, kind_of(line))
    return record


def kind_of(line: Line) -> str:
    """The name under which lines of this kind are counted."""
    return str(line.__struct_config__.tag)


_KIND: dict[type[Shelved], str] = {
    OperatorRecord: "operator",
    ClaimRecord: "claim",
    QueueState: "queue",
    KeySpent: "spent",
    ScheduleRecord: "schedule",
    StreamRecord: "stream",
    MessageRecord: "message",
}
