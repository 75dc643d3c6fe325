"""The archive: a whole database, read at one point in time, and restored into an empty database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, get_args
from uuid import UUID

import msgspec

from tenure.errors import StoreError, TenureError
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.queue_limits import QueueLimits, RateUsage
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract.budgets import BudgetRecord, ReservationRecord
from tenure.stores.contract.outbox import (
    ArchivedDelivery,
    ArchivedEndpoint,
    MessageRecord,
    PendingRecord,
    SubscriptionRecord,
)
from tenure.stores.contract.records import Artifact, ArtifactRecord, SignalRecord, UnreadableRow

RUN_LENGTH_MAX = 1000


class DeduplicatedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An enqueue that returned an existing job with its dedupe key."""

    request_id: str
    job_id: UUID
    digest: str
    detail: str | None = None
    at: datetime


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that won something."""

    request_id: str
    body: str
    job_ids: tuple[UUID, ...]
    at: datetime


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregate that has messages, and when the last one was written."""

    aggregate: str
    at: datetime


class ArchivedSubscription(SubscriptionRecord, frozen=True, kw_only=True):
    """A topic that an endpoint receives, and since when."""

    updated_at: datetime


class OperatorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator did. Those of a database are in the order in which they were done."""

    at: datetime
    actor: str
    action: str
    job_id: UUID | None = None
    detail: str | None = None


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: its limits, the partition key served last, and its rate usage."""

    name: str
    limits: QueueLimits
    paused_at: datetime | None = None
    last_key: str = ""
    usage: RateUsage | None = None
    updated_at: datetime


class KeyRateUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The rate usage of one partition key, and when it no longer counts."""

    queue: str
    key: str
    usage: RateUsage
    until_at: datetime


ArchiveRecord = (
    OperatorRecord
    | ClaimRecord
    | QueueState
    | KeyRateUsage
    | ScheduleRecord
    | StreamRecord
    | MessageRecord
    | ArchivedEndpoint
    | ArchivedSubscription
    | PendingRecord
    | ArchivedDelivery
    | BudgetRecord
    | ReservationRecord
)
"""The records beside jobs and events. Each type has its own order, the same in every store."""

ARCHIVE_RECORDS: tuple[type[ArchiveRecord], ...] = get_args(ArchiveRecord)


class ArchivedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job without its token, and its records; artifacts without their bodies, and of steps their number."""

    job: Job
    dead_letter: DeadLetterRecord | None = None
    signals: tuple[SignalRecord, ...] = ()
    deduplicated_requests: tuple[DeduplicatedRequest, ...] = ()
    artifacts: tuple[ArtifactRecord, ...] = ()
    step_count: int = 0


class Totals(msgspec.Struct, frozen=True):
    """The size of a snapshot."""

    jobs: int
    events: int


class HistoryReader(Protocol):
    """Reads the events of jobs."""

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        """Each job's events in the order of revisions; an empty list for an id that has none."""
        ...


class Snapshot(HistoryReader, Protocol):
    """A database at one point in time, read in pages, whatever other transactions write meanwhile."""

    @property
    def store(self) -> str:
        """The kind of store."""
        ...

    @property
    def at(self) -> datetime:
        """When it was taken, by the database's clock."""
        ...

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        """The rows that were met so far and cannot be decoded. They are left out of the pages."""
        ...

    async def totals(self) -> Totals: ...

    def records(self, kind: type[ArchiveRecord], *, limit: int) -> AsyncIterator[Sequence[ArchiveRecord]]:
        """The records of one type, in its order."""
        ...

    def log(self, *, limit: int) -> AsyncIterator[Sequence[Event]]:
        """All events in the order of the log, without their positions."""
        ...

    def jobs(self, *, limit: int) -> AsyncIterator[Sequence[ArchivedJob]]:
        """All jobs in the order of ids."""
        ...

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None: ...

    def steps(self, job_id: UUID, *, limit: int) -> AsyncIterator[Sequence[StepRecord]]:
        """The steps of a job in the order of completion."""
        ...


class Restore(HistoryReader, Protocol):
    """Writes into an empty database, in one transaction.

    Records come first, then the log in its order, then the jobs. A record that the database refuses raises NotRestored,
    and the restore must end. Nothing is decided here: the caller has verified each job against its events.
    """

    async def write_records(self, records: Sequence[ArchiveRecord]) -> None: ...

    async def write_events(self, events: Sequence[Event]) -> None: ...

    async def write_jobs(self, kept: Sequence[ArchivedJob]) -> None:
        """A leased job gets a new, unknown token, so that its former owner has lost the lease."""
        ...

    async def write_artifact(self, record: ArtifactRecord, body: bytes) -> None: ...

    async def write_steps(self, steps: Sequence[StepRecord]) -> None:
        """In the order of completion: the database numbers them anew."""
        ...

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        """The rows beside these jobs that are written so far."""
        ...

    async def missing_job(self) -> UUID | None:
        """The id of a job that has events and no record."""
        ...


class ArchiveStore(Protocol):
    """Export and import of a whole database."""

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """A snapshot. It does not block writers, and does not contain what they write meanwhile."""
        ...

    def restore(self, *, runs: int) -> AbstractAsyncContextManager[Restore]:
        """Write into this database, which must be migrated and empty (NotEmpty). Left with an error, or never left, it
        stays empty. `runs` is what `Runs` counts in the log that will be written."""
        ...


class Runs:
    """Counts the stretches of a log in which job and revision only grow.

    A log whose order is (transaction, job, revision) can show them in that order with one transaction for each.
    """

    def __init__(self) -> None:
        self.count = 0
        self._length = 0
        self._last: tuple[UUID, int] | None = None

    def place(self, event: Event) -> int:
        """The number of the stretch that the event belongs to, from 0."""
        here = event.job_id, event.rev
        if self._last is None or here <= self._last or self._length == RUN_LENGTH_MAX:
            self.count += 1
            self._length = 0
        self._last = here
        self._length += 1
        return self.count - 1


class NotEmpty(StoreError):
    """A database that must be empty has rows in these tables."""

    def __init__(self, where: str, tables: Sequence[str]) -> None:
        self.tables = tuple(tables)
        super().__init__(
            f"{where} is not empty (it has {', '.join(tables).replace('_', ' ')}), and only an empty database can be "
            f"imported into; make a new one"
        )


class NotRestored(TenureError):
    """The database refuses a record. `place` is its index in the call, from 0."""

    def __init__(self, place: int, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"record {place} is refused: {problem}")
