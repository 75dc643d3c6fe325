"""The PostgreSQL store. It connects the parts of the store; each duty has its own module."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager

from tenure.seams import SYSTEM, Seams
from tenure.stores.base import BaseStore, ClaimResult
from tenure.stores.contract import (
    ClaimRequest,
    EnqueueRequest,
    EnqueueResult,
    Finding,
    MigrationRecord,
    Outcome,
    Request,
    Reserve,
    ReserveOutcome,
    SaveStep,
    SchemaState,
    StepOutcome,
    StoreTransaction,
)
from tenure.stores.database_url import shown_url
from tenure.stores.postgres.apply import PostgresApplier
from tenure.stores.postgres.apply_batch import ChangeBatches
from tenure.stores.postgres.archive import PostgresArchive
from tenure.stores.postgres.budgets import PostgresBudgets
from tenure.stores.postgres.claim import PostgresClaims, warm_up
from tenure.stores.postgres.commit_block import PostgresCommitBlock
from tenure.stores.postgres.connections import Address, Connections
from tenure.stores.postgres.doctor import database_findings
from tenure.stores.postgres.enqueue import PostgresEnqueuer
from tenure.stores.postgres.log_cursors import PostgresLogCursors
from tenure.stores.postgres.log_positions import rebase
from tenure.stores.postgres.migrate import apply_pending, schema_state
from tenure.stores.postgres.outbox import PostgresOutbox
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.queues import PostgresQueues
from tenure.stores.postgres.reads import PostgresReads
from tenure.stores.postgres.retention import PostgresRetention
from tenure.stores.postgres.schedules import PostgresSchedules
from tenure.stores.postgres.steps import save_steps
from tenure.stores.postgres.wakeups import PostgresNotifier
from tenure.stores.postgres.workers import PostgresWorkers


class PostgresStore(BaseStore):
    """A store on PostgreSQL, for one event loop of one process.

    >>> store = PostgresStore.from_url("postgresql://localhost/app")
    """

    def __init__(self, address: Address, *, seams: Seams = SYSTEM, connections: int = 10) -> None:
        self._address, self._seams = address, seams
        self._connections = Connections(address, size=connections)
        self._policies = PostgresPolicies(self._connections)
        self._budgets = PostgresBudgets(self._connections, self._policies)
        self._wakeups = PostgresNotifier(address, self._connections, seams)
        super().__init__(
            where=address.shown,
            url=shown_url(address.dsn),
            seams=seams,
            reads=PostgresReads(self._connections, self._policies, self._budgets),
            registration=PostgresWorkers(self._connections),
            retention=PostgresRetention(self._connections, self._policies, seams.clock),
            notifier=self._wakeups,
        )
        self._enqueuer = PostgresEnqueuer(self._connections, self._policies, self._wakeups)
        self._claims = PostgresClaims(self._connections, self._policies, seams.clock, self._quarantine)
        batches = ChangeBatches(self._connections)
        self._applier = PostgresApplier(self._connections, self._policies, batches, self._wakeups)
        self.archive = PostgresArchive(self._connections, address, seams)
        self.log_cursors = PostgresLogCursors(self._connections, self.wake)
        self.outbox = PostgresOutbox(self._connections)
        self.queues = PostgresQueues(self._connections, self.wake)
        self.schedules = PostgresSchedules(self, self._connections, self._policies, self.wake)

    @classmethod
    def from_url(cls, url: str, *, seams: Seams = SYSTEM) -> PostgresStore:
        """The store that a `postgresql://` URL names, not yet opened."""
        return cls(Address.from_url(url), seams=seams)

    async def _connect(self) -> None:
        """The connection pool was opened to read the schema."""

    async def prepare(self) -> None:
        await warm_up(self._connections, self._seams.spawn)

    async def close(self) -> None:
        await self._wakeups.close()
        await self._connections.close()

    async def quiet(self) -> None:
        """Wait until every pending notification was sent."""
        await self._wakeups.flush()

    async def schema(self) -> SchemaState:
        await self._connections.open()
        return await schema_state(self._connections)

    async def migrate(self) -> list[MigrationRecord]:
        await self._connections.open()
        return await apply_pending(self._connections, where=self._where)

    async def rebase_log(self) -> int:
        """Give a log that was restored from a dump positions of this cluster; how many events it has."""
        await self._connections.open()
        return await rebase(self._connections)

    async def _findings(self) -> list[Finding]:
        return await database_findings(self._connections, self._address)

    async def _enqueue(
        self, requests: Sequence[EnqueueRequest], *, homogeneous: bool, after: Awaitable[object] | None
    ) -> tuple[Sequence[EnqueueResult], bool]:
        return await self._enqueuer.enqueue(requests, homogeneous=homogeneous, after=after)

    async def _claim(self, request: ClaimRequest) -> ClaimResult:
        return await self._claims.claim(request)

    async def _apply(self, requests: Sequence[Request]) -> list[Outcome]:
        return await self._applier.apply(requests)

    async def _save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        return await save_steps(self._connections, self._policies, requests)

    async def _reserve(self, request: Reserve) -> ReserveOutcome:
        return await self._budgets.reserve(request)

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[StoreTransaction]:
        """A transaction on a connection of its own. The server also ends it after the deadline."""
        return PostgresCommitBlock(
            self, self._connections, self._policies, clock=self._seams.clock, deadline_seconds=deadline_seconds
        )
