"""Filters, pages, and the records beside jobs and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.content import artifact_digest, message_digest
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import Status


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. Everything given must match. Statuses may be given as text.

    >>> JobFilter(statuses=["failed"]).statuses
    (<Status.FAILED: 'failed'>,)
    """

    statuses: Sequence[Status | str] = ()
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    correlation_id: str | None = None
    dedupe_key: str | None = None
    submitted_by: str | None = None
    reasons: Sequence[str] = ()
    tags: dict[str, str] = {}
    created_from: datetime | None = None
    created_until: datetime | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "statuses", tuple(map(_status, _texts(self.statuses, "statuses"))))
        for name in ("queues", "kinds", "reasons"):
            msgspec.structs.force_setattr(self, name, _texts(getattr(self, name), name))


def _texts(given: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidInput(where, f"must be a list, not the text {given!r}; write [{given!r}]")
    return tuple(given)


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise InvalidInput("statuses", f"{text!r} is not a status; known are: {', '.join(Status)}") from None


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to list: of a job, of a type, or of a correlation id, within a time."""

    job_id: UUID | None = None
    types: tuple[EventType, ...] = ()
    correlation_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list. Handled ones are left out, unless `handled` is set."""

    reason_codes: tuple[ReasonCode, ...] = ()
    stages: tuple[Stage, ...] = ()
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    correlation_id: str | None = None
    dead_from: datetime | None = None
    dead_until: datetime | None = None
    handled: bool = False


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row that cannot be decoded, which the guards would have refused. It is left out of what was read.

    `what` names it, for example `event 3 of job …`; `job_id` is the job that it belongs to, if it belongs to one.
    """

    what: str
    problem: str
    job_id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.what} cannot be read: {self.problem}"


class JobPage(msgspec.Struct, frozen=True):
    """Some of the jobs, oldest first, and the cursor from which the next page starts; None at the end.

    Rows on this page that cannot be decoded are in `unreadable`.
    """

    jobs: list[Job]
    after: UUID | None
    unreadable: tuple[UnreadableRow, ...] = ()


class EventPage(msgspec.Struct, frozen=True):
    """Some of the log in its order, and the position of the next page. Never skips an event that commits late.

    Rows on this page that cannot be decoded are in `unreadable`.
    """

    events: list[Event]
    position: str
    unreadable: tuple[UnreadableRow, ...] = ()


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Some of the dead letters, in the order of their jobs' ids, and the cursor for the next page; None at the end."""

    letters: list[DeadLetterRecord]
    after: UUID | None


Resolution = Literal["redriven", "discarded"]


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A signal of a job, kept until the job reads it."""

    job_id: UUID
    rev: int
    name: str
    payload: str
    at: datetime


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for receivers outside the database, delivered once the transaction that writes it is committed.

    Messages of one aggregate are delivered in the order of commits; a message without one has no order.
    """

    id: UUID
    topic: str
    body: str
    aggregate: str | None = None
    headers: str | None = None


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A named piece of what a job has made."""

    name: str
    media_type: str
    body: bytes


def digest_artifacts(artifacts: Iterable[Artifact], *, attempt: int) -> list[bytes]:
    """The digests of the rows of these artifacts."""
    return [
        artifact_digest(
            name=one.name,
            media_type=one.media_type,
            attempt=attempt,
            bytes_=len(one.body),
            body_sha256=sha256(one.body).digest(),
        )
        for one in artifacts
    ]


def digest_messages(messages: Iterable[OutboxMessage]) -> list[bytes]:
    """The digests of the rows of these messages."""
    return [message_digest(**msgspec.structs.asdict(message)) for message in messages]


def message_context(message: OutboxMessage, job: Job | None) -> tuple[str, str | None]:
    """The correlation id and trace of a message: those of the job that sends it, or else the message's own id."""
    return (str(message.id), None) if job is None else (job.correlation_id, job.origin.trace)


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact as it is listed: all but its body."""

    job_id: UUID
    name: str
    attempt: int
    media_type: str
    bytes: int
    at: datetime


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a worker process. `version` is that of the program whose jobs it runs."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    prunes: bool = False
    """Whether it removes finished jobs: its app has a retention for them."""
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None = None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a kind in a queue have a status, and since when the longest-waiting of them is due."""

    queue: str
    kind: str
    status: Status
    jobs: int
    due: int = 0
    oldest_due_at: datetime | None = None


class PinnedJobs(msgspec.Struct, frozen=True):
    """How many jobs of a kind in a queue, without a lease, only workers with one version of the code may claim."""

    version: str
    queue: str
    kind: str
    jobs: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The database at a glance."""

    at: datetime
    tallies: list[Tally]
    workers: list[WorkerRecord]
    dead_letters: int
    """Those that are not handled."""
    pinned: list[PinnedJobs] = []


class MigrationRecord(msgspec.Struct, frozen=True):
    """One migration of the schema."""

    number: int
    name: str
    checksum: str
    sql: str
    min_code_version: int


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a database stands against this code."""

    applied: list[int]
    pending: list[MigrationRecord]
    unknown: list[int]
    changed: list[int]
    min_code_version: int
    code_version: int

    @property
    def current(self) -> bool:
        return bool(self.applied) and not self.pending and self.min_code_version <= self.code_version


class Finding(msgspec.Struct, frozen=True):
    """A finding of `doctor`: ok, warning or error; what was found, and what to do."""

    level: str
    about: str
    message: str
    advice: str = ""
