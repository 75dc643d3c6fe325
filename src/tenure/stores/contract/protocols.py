"""The parts of a store that each role may hold, and the whole of it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from tenure.lifecycle.records import Actor, DeadLetter, Event, Execution, Job
from tenure.stores.contract.archive import ArchiveStore
from tenure.stores.contract.queues import QueueStore
from tenure.stores.contract.records import (
    Artifact,
    ArtifactRecord,
    DeadLetterFilter,
    DeadLetterPage,
    EventFilter,
    EventPage,
    Finding,
    JobFilter,
    JobPage,
    MigrationRecord,
    OutboxMessage,
    Resolution,
    SchemaState,
    SignalRecord,
    Stats,
    WorkerRecord,
)
from tenure.stores.contract.requests import ClaimRequest, EnqueueRequest, EnqueueResult, Request
from tenure.stores.contract.results import Outcome
from tenure.stores.contract.schedules import ScheduleStore


class Subscription(Protocol):
    """Tells when work may have come. A hint: everything is correct without it, only later."""

    async def wait(self, timeout_seconds: float) -> bool:
        """True when a hint came, False when the time was up."""
        ...


class EnqueueStore(Protocol):
    """The client's part: new jobs."""

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        """All of them in one transaction, or none and an error. Answers in the order of the requests.

        Written only once `after` is done, and not at all if that fails; made ready meanwhile, as far as it can be.
        """
        ...


class WakeupStore(Protocol):
    """The part of whoever waits for something to happen."""

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        """Hints for these queues, and for the names of `worker_wakeup`."""
        ...


class ClaimStore(WakeupStore, Protocol):
    """The pool's part: it takes jobs, and cannot end them."""

    async def claim(self, request: ClaimRequest) -> list[Job]:
        """The jobs won, each with its token, in the order of claiming."""
        ...


class ApplyStore(Protocol):
    """The part of whoever changes jobs that exist. What each role may ask for, `decide` says."""

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        """What matched is applied; the rest is answered one by one, in the order of the requests."""
        ...


class Transaction(Protocol):
    """One transaction of the database: the caller's own statements, and what tenure writes with them.

    Everything in it takes effect together when its context is left normally, or not at all. Values are `$1`, `$2`, …
    on every store.
    """

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement of the caller's. How many rows it touched."""
        ...

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query of the caller's, by column name."""
        ...

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Put messages into the outbox, in this order within each aggregate."""
        ...

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Keep artifacts of this attempt. A name that the job has used before is InvalidInput."""
        ...

    async def apply(self, request: Request) -> Outcome:
        """Change one job. Whatever is not Applied should make the caller leave with an error."""
        ...


class TransactionStore(Protocol):
    """The runner's part where more than an outcome is to be written at once."""

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that is rolled back, also by the database itself where it can, when it is open for longer."""
        ...


class RegistrationStore(Protocol):
    """A worker's part: it says that it is there, and what it can run."""

    async def register(self, worker: WorkerRecord) -> None:
        """Write the worker down, or that it was seen. `started_at` and `seen_at` are the database's own."""
        ...

    async def unregister(self, worker_id: str) -> None:
        """The worker stopped. Its row stays, since jobs name it."""
        ...


class RecoverableStore(ApplyStore, Protocol):
    """Recovery's part: it also sees who needs it."""

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        """Held jobs whose lease expired, whose heartbeats are missing or whose time is up; queued jobs whose time is
        up; stalled jobs that were lost or are committed. In the order of ids, after the given one."""
        ...


class ReadStore(Protocol):
    """What everyone may see. Tokens never are."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage: ...

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        """Each job's events in the order of revisions; an empty list for an id that has none."""
        ...

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage: ...

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        """The log from a position on, without gap or repetition, also when transactions commit late."""
        ...

    async def end(self) -> str:
        """The log's position after everything that is written and settled now."""
        ...

    async def executions(self, job_id: UUID) -> list[Execution]: ...

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None: ...

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage: ...

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]: ...

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None: ...

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        """The workers with these ids; without ids, those that have not stopped. In the order of ids."""
        ...

    async def stats(self) -> Stats: ...

    async def signals(self, job_id: UUID) -> list[SignalRecord]: ...

    async def now(self) -> datetime:
        """The database's clock, which decides."""
        ...


class RetentionStore(Protocol):
    """The operator's part: what may be forgotten."""

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        """Remove whole terminal jobs, with all that belongs to them, that ended this long ago. How many."""
        ...

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        """Empty the detail of old progress events that `fold` no longer needs, because a later progress or claim of
        the same job takes their place. How many."""
        ...

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        """Remove a terminal job's content while its history stays; written down in the operator's log.

        Payload and signals become `null`; tags, result, partial result, errors and progress become None; the details
        of its progress, retry_scheduled, failed and dead_lettered events are blanked; artifacts and steps go."""
        ...

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        """Note that somebody redrove or discarded these dead letters; how many were open. Nothing is removed."""
        ...


class Store(
    EnqueueStore, ClaimStore, RecoverableStore, TransactionStore, RegistrationStore, ReadStore, RetentionStore, Protocol
):
    """Everything, for whoever opens the store and hands its parts out."""

    @property
    def archive(self) -> ArchiveStore: ...

    @property
    def queues(self) -> QueueStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    async def open(self) -> None:
        """Connect, and refuse a database that this code does not fit (SchemaMismatch)."""
        ...

    async def prepare(self) -> None:
        """Do beforehand what the first jobs of a worker would have to wait for. Nothing is changed by it."""
        ...

    async def close(self) -> None: ...

    async def schema(self) -> SchemaState: ...

    async def migrate(self) -> list[MigrationRecord]:
        """Apply what is pending, one after the other, and say what that was. Safe when several do it at once."""
        ...

    async def doctor(self) -> list[Finding]: ...
