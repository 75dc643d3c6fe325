"""The SQLite store: one file with one writer. It connects the parts of the store; each duty has its own module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from tenure.seams import SYSTEM, Seams
from tenure.stores.base import BaseStore, ClaimResult
from tenure.stores.commit_block import require_no_open_block
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
from tenure.stores.sqlite import doctor, migrate
from tenure.stores.sqlite.apply_batch import apply_batch
from tenure.stores.sqlite.archive import SqliteArchive
from tenure.stores.sqlite.budgets import reserve
from tenure.stores.sqlite.claim import claim
from tenure.stores.sqlite.commit_block import SqliteCommitBlock
from tenure.stores.sqlite.connect import BUSY_SECONDS, machine_mounts, path_from_url
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.enqueue import enqueue_batch, homogeneous_digests
from tenure.stores.sqlite.file_signal import FileSignal
from tenure.stores.sqlite.log_cursors import SqliteLogCursors
from tenure.stores.sqlite.outbox import SqliteOutbox
from tenure.stores.sqlite.queues import SqliteQueues
from tenure.stores.sqlite.reads import SqliteReads
from tenure.stores.sqlite.retention import SqliteRetention
from tenure.stores.sqlite.schedules import SqliteSchedules
from tenure.stores.sqlite.steps import save_steps
from tenure.stores.sqlite.transactions import WAL_BYTES_MAX
from tenure.stores.sqlite.wakeups import SqliteNotifier
from tenure.stores.sqlite.workers import SqliteWorkers


class SqliteStore(BaseStore):
    """Jobs in one SQLite file.

    Leases and due times follow `database_clock`, which defaults to the clock of the seams. With `inline`, all work
    runs on the caller's thread. The store waits `busy_seconds` for the write lock of another process, a few times.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        seams: Seams = SYSTEM,
        database_clock: Callable[[], datetime] | None = None,
        inline: bool = False,
        busy_seconds: float = BUSY_SECONDS,
        wal_bytes_max: int = WAL_BYTES_MAX,
        mounts: Callable[[], str] = machine_mounts,
    ) -> None:
        where, clock = str(path), database_clock or seams.clock.now
        connections = self._connections = SqliteConnections(
            where,
            store=self,
            seams=seams,
            clock=clock,
            inline=inline,
            busy_seconds=busy_seconds,
            wal_bytes_max=wal_bytes_max,
            mounts=mounts,
        )
        signal = None if connections.is_single else FileSignal(where)
        super().__init__(
            where=where,
            url=f"sqlite:///{where}",
            seams=seams,
            reads=SqliteReads(connections),
            registration=SqliteWorkers(connections),
            retention=SqliteRetention(connections),
            notifier=SqliteNotifier(seams, connections.file_version, signal),
        )
        self.archive = SqliteArchive(connections)
        self.log_cursors = SqliteLogCursors(connections, self.wake)
        self.outbox = SqliteOutbox(connections)
        self.queues = SqliteQueues(connections, self.wake)
        self.schedules = SqliteSchedules(connections, self.wake)

    @classmethod
    def from_url(
        cls, url: str, *, seams: Seams = SYSTEM, database_clock: Callable[[], datetime] | None = None
    ) -> SqliteStore:
        """The store of `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite://:memory:`."""
        return cls(path_from_url(url), seams=seams, database_clock=database_clock)

    async def _connect(self) -> None:
        await self._connections.connect()
        self._connections.has_schema = self._connections.opened = True

    async def close(self) -> None:
        """Finish pending work, write the WAL back into the file, and close it."""
        await self._connections.close()

    async def schema(self) -> SchemaState:
        return await migrate.schema_state(self._connections)

    async def migrate(self) -> list[MigrationRecord]:
        return await migrate.apply_pending(self._connections)

    async def _findings(self) -> list[Finding]:
        return await doctor.database_findings(self._connections)

    async def _enqueue(
        self, requests: Sequence[EnqueueRequest], *, homogeneous: bool, after: Awaitable[object] | None
    ) -> tuple[Sequence[EnqueueResult], bool]:
        digests = homogeneous_digests(requests) if homogeneous else None
        if after is not None:
            await after
        return await self._connections.write_for_caller(enqueue_batch, requests, digests), False

    async def _claim(self, request: ClaimRequest) -> ClaimResult:
        sent_at_seconds = self._clock.monotonic_seconds()
        return await self._connections.write(
            claim, request, self._quarantine, lambda: self._clock.monotonic_seconds() - sent_at_seconds
        )

    async def _apply(self, requests: Sequence[Request]) -> list[Outcome]:
        return await apply_batch(self._connections, requests)

    async def _save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        return await self._connections.write(save_steps, requests)

    async def _reserve(self, request: Reserve) -> ReserveOutcome:
        return await self._connections.write(reserve, request)

    @asynccontextmanager
    async def transaction(self, *, deadline_seconds: float) -> AsyncIterator[StoreTransaction]:
        """A transaction that holds the write lock. It is rolled back after the deadline, or earlier: after a share of
        the busy timeout (`BLOCK_SHARE`), since all other writers wait for it."""
        require_no_open_block(self)
        blocks = await self._connections.blocks()
        async with SqliteCommitBlock(self, blocks, deadline_seconds=deadline_seconds) as block:
            yield block
