"""The protocols of a store: one per role, and `Store` for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from tenure.lifecycle.budgets import BudgetLine
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.records import Actor, Event, Job
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract.archive import ArchiveStore
from tenure.stores.contract.budgets import BudgetStore
from tenure.stores.contract.log_cursors import LogCursorStore
from tenure.stores.contract.outbox import OutboxPart
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
from tenure.stores.contract.retention import PruneStore
from tenure.stores.contract.schedules import ScheduleStore
from tenure.stores.contract.steps import STEPS_PER_READ, SaveStep, StepOutcome, StepStore


class Subscription(Protocol):
    """Waits for wake-ups. A wake-up affects latency alone: without it, workers find jobs by polling."""

    async def wait(self, timeout_seconds: float) -> bool:
        """True after a wake-up, False after the timeout."""
        ...


class EnqueueStore(Protocol):
    """The client's part: it enqueues jobs."""

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        """Enqueue all requests in one transaction, or raise and enqueue none. Results are in the order of the requests.

        The store writes once `after` is done, and nothing if `after` fails. It prepares the write meanwhile.
        """
        ...


class WakeupStore(Protocol):
    """The part of a component that waits for jobs, or for changes of its own jobs."""

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to these queues, and to names of `worker_wakeup`."""
        ...


class ClaimStore(WakeupStore, Protocol):
    """The worker pool's part: it claims jobs, and cannot end them."""

    async def claim(self, request: ClaimRequest) -> list[Job]:
        """The jobs won, each with its token, in claim order."""
        ...


class ApplyStore(Protocol):
    """Operations on existing jobs. `decide` determines which role may do what."""

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        """Apply each request that is legal. The outcomes are in the order of the requests.

        After the commit, the store wakes parents that wait for children and have at most `children_max` live ones left:
        those of awaited jobs that this has ended, and those that this has suspended. So does a transaction.
        """
        ...


class Transaction(Protocol):
    """One database transaction: the user's own statements, and what tenure writes with them.

    It commits when its context ends normally, and rolls back otherwise. Parameters are `$1`, `$2`, … on every store.
    """

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement of the user. Returns the number of rows that it touched."""
        ...

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query of the user, by column name."""
        ...

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Put messages into the outbox, in this order within each aggregate. Those of a job need its commit, later in
        this transaction."""
        ...

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Keep artifacts of this attempt, with the job's commit later in this transaction. A name that the job has used
        before is InvalidInput."""
        ...

    async def apply(self, request: Request) -> Outcome:
        """Apply one request. Unless the outcome is Applied, the caller should leave the context with an error.

        The event of a commit carries the digests of the artifacts and messages that this transaction writes with it."""
        ...

    async def save_step(self, request: SaveStep) -> StepOutcome:
        """Save one step together with the user's statements: the last statement of the transaction. Unless the outcome
        is StepSaved, the transaction can only be rolled back."""
        ...


class StoreTransaction(Transaction, Protocol):
    """A transaction that the store itself has opened."""

    async def post_with_step(self, job: Job, messages: Sequence[OutboxMessage]) -> None:
        """Put messages of a job into the outbox that are written with the step that this transaction saves. Their ids
        are those of `step_message_id`."""
        ...

    async def write_steps(self, job: Job, steps: Sequence[StepRecord]) -> None:
        """Write copies of steps for a job that this transaction has enqueued, in this order. Their numbers are given
        by the store. Refused with InvalidInput once the job was claimed."""
        ...


class TransactionStore(Protocol):
    """The runner's part for commits that write more than an outcome."""

    @property
    def where(self) -> str:
        """The database, without secrets. `StoreUnavailable.where` names the same."""
        ...

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[StoreTransaction]:
        """A transaction that is rolled back after the deadline, by the database itself where it can."""
        ...


class RegistrationStore(Protocol):
    """A worker's part: its registration."""

    async def register(self, worker: WorkerRecord) -> None:
        """Register the worker, or update `seen_at`. The database sets `started_at` and `seen_at`."""
        ...

    async def unregister(self, worker_id: str) -> None:
        """Mark the worker as stopped. Its row stays, since jobs refer to it."""
        ...


class RecoverableStore(ApplyStore, Protocol):
    """Recovery's part: it also finds the jobs that need recovery."""

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        """Leased jobs whose lease, heartbeat deadline or timeout has passed; jobs without a lease whose timeout has
        passed; stalled jobs that were lost or do not run again; jobs that wait for children, are not due, and have at
        most `children_max` live awaited ones. In the order of ids, after the given id."""
        ...


class ReadStore(Protocol):
    """Reads for every role. They never return a token."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...

    async def find(
        self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> JobPage:
        """A page of jobs in the order of ids, after the given id; or the other way round, newest first."""
        ...

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        """The jobs that have this parent, awaited or not, in the order of ids."""
        ...

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        """Each job's events in the order of revisions; an empty list for an id that has none."""
        ...

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage: ...

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        """The log after a position, without gaps or repetitions, also when transactions commit late."""
        ...

    async def end(self) -> str:
        """The log's position after all events that are committed now."""
        ...

    async def executions(self, job_id: UUID) -> list[Execution]: ...

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None: ...

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> DeadLetterPage: ...

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]: ...

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None: ...

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        """The rows beside each job, as `verify` compares them with the log; empty for an id that has none."""
        ...

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        """The workers with these ids; without ids, those that have not stopped. In the order of ids."""
        ...

    async def stats(self) -> Stats: ...

    async def signals(self, job_id: UUID) -> list[SignalRecord]: ...

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        """The steps of a job after this number, in the order of completion."""
        ...

    async def run_state(self, job_id: UUID) -> str | None:
        """The JSON text that the run has last set with `run.state`. None: it has set none, or it was erased."""
        ...

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        """The state of a run's budget, by unit. Empty before its first call."""
        ...

    async def now(self) -> datetime:
        """The time of the database's clock, by which leases and due times are decided."""
        ...


class RetentionStore(PruneStore, Protocol):
    """The operator's part: also erasure, and dead letters."""

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        """Remove a terminal job's content and keep its history. The operator's log records it.

        Payload and signals become `null`; tags, result, partial result, errors and progress become None; the details
        of its progress, retry_scheduled, failed and dead_lettered events are blanked; artifacts go;
        the bodies of its outbox messages become `null`, and their headers None; result, error and undo of its steps
        become None."""
        ...

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        """Mark dead letters as redriven or discarded. Returns how many were open. Nothing is deleted."""
        ...


class Store(
    EnqueueStore,
    ClaimStore,
    RecoverableStore,
    TransactionStore,
    StepStore,
    BudgetStore,
    RegistrationStore,
    ReadStore,
    RetentionStore,
    Protocol,
):
    """All parts, for the component that opens the store."""

    @property
    def archive(self) -> ArchiveStore: ...

    @property
    def log_cursors(self) -> LogCursorStore: ...

    @property
    def outbox(self) -> OutboxPart: ...

    @property
    def queues(self) -> QueueStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    async def open(self) -> None:
        """Connect. Raises SchemaMismatch if the schema does not fit this code."""
        ...

    async def prepare(self) -> None:
        """Do in advance what the first jobs of a worker would wait for. It changes nothing."""
        ...

    async def close(self) -> None: ...

    async def schema(self) -> SchemaState: ...

    async def migrate(self) -> list[MigrationRecord]:
        """Apply the pending migrations in order, and return them. Safe when several processes migrate at once."""
        ...

    async def doctor(self) -> list[Finding]: ...
