"""The connections of one store: one that writes, one that reads, and one for transactions of the callers' own.

They are started when they are first needed, and belong to the process that made them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tenure.errors import StoreUnavailable, UsedAfterFork
from tenure.lifecycle.records import Policy
from tenure.seams import Seams
from tenure.stores.commit_block import require_outside
from tenure.stores.sqlite.commit_block import Blocks, WriterPause
from tenure.stores.sqlite.connect import MEMORY, connect, require_local
from tenure.stores.sqlite.file_lock import FairFileLock, FileLocks
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import PolicyOf
from tenure.stores.sqlite.transactions import Reading, Writing, checkpoint
from tenure.stores.sqlite.writer_thread import Connection, InlineLane, Lane, ThreadLane, Transactions, Work

T = TypeVar("T")


class SqliteConnections:
    """Makes lanes, and forgets them. What is in memory has one connection for all; so has work without threads."""

    def __init__(
        self,
        path: str,
        *,
        store: object,
        seams: Seams,
        clock: Callable[[], datetime],
        inline: bool,
        busy_seconds: float,
        wal_bytes_max: int,
        mounts: Callable[[], str],
    ) -> None:
        self._path, self._store, self._seams, self.clock = path, store, seams, clock
        self._inline, self._busy_seconds, self._wal_bytes_max, self._mounts = (
            inline,
            busy_seconds,
            wal_bytes_max,
            mounts,
        )
        self._pid = os.getpid()
        self._door = threading.Lock()
        self._turns = FileLocks()
        self.one_for_all = inline or path == MEMORY
        self._gate = WriterPause(seams) if self.one_for_all else None
        self._writer: Lane | None = None
        self._reader: Lane | None = None
        self._blocks: Blocks | None = None
        self.policies = SqlitePolicies()
        self.has_schema = False
        self.opened = False

    async def connect(self) -> tuple[Lane, Lane]:
        """The writer and the reader."""
        self.require_own_process()
        writer, reader = self._pair()
        try:
            # One after the other: the writer makes the file.
            await writer.start()
            await reader.start()
        except Exception:
            turns = self._turns
            if self._forget(writer):
                await writer.stop()
                turns.close()
            raise
        return writer, reader

    async def close(self) -> None:
        """Finish what waits, write the WAL back into the file, and let go of it."""
        self.require_own_process()
        with self._door:
            reader, writer, blocks, turns = self._reader, self._writer, self._blocks, self._turns
            self._reader = self._writer = self._blocks = None
        self.opened = self.has_schema = False
        if blocks is not None and blocks.lane is not writer:
            await blocks.lane.stop()
        if reader is not None and reader is not writer:
            await reader.stop()
        if writer is not None:
            await writer.look(checkpoint)
            await writer.stop()
            turns.close()

    async def read(self, work: Work[T]) -> T:
        """Run this in a reading transaction."""
        if self.one_for_all:
            require_outside(self._store)
        return await (await self.reader()).run(work)

    async def write(self, work: Work[T]) -> T:
        """Run this in a writing transaction."""
        require_outside(self._store)
        return await (await self.writer()).run(work)

    async def file_version(self) -> int:
        """A number that changes when another process, or another program, commits to the file."""
        return await (await self.writer()).look(_data_version)

    def policies_on(self, connection: sqlite3.Connection) -> PolicyOf:
        def policy_of(policy_id: int) -> Policy:
            return self.policies.read(connection, policy_id)

        return policy_of

    async def writer(self) -> Lane:
        """The open store's writer, once no block has its connection."""
        return (await self._open_pair())[0]

    async def reader(self) -> Lane:
        """The open store's reader, likewise."""
        return (await self._open_pair())[1]

    async def blocks(self) -> Blocks:
        """The lane for transactions of the callers' own, and what they share."""
        self.require_open()
        with self._door:
            if self._blocks is None:
                self._blocks = self._for_blocks()
            blocks = self._blocks
        await blocks.lane.start()
        return blocks

    def require_open(self) -> tuple[Lane, Lane]:
        self.require_own_process()
        if not self.opened or self._writer is None or self._reader is None:
            raise StoreUnavailable(f"{self._path} is not open; call open() first")
        return self._writer, self._reader

    def require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"SqliteStore({self._path!r}) was made in process {self._pid} and cannot be used in {os.getpid()}, its "
                f"child; make a store of its own after the fork"
            )

    def missing(self) -> bool:
        self.require_own_process()
        return self._path != MEMORY and not Path(self._path).exists()

    async def _open_pair(self) -> tuple[Lane, Lane]:
        pair = self.require_open()
        if self._gate is not None:
            await self._gate.passed()
        return pair

    def _pair(self) -> tuple[Lane, Lane]:
        """The one pair of lanes, also for several who ask at once."""
        with self._door:
            if self._writer is None or self._reader is None:
                require_local(self._path, self._mounts())
                self._turns = FileLocks(self._among_all())
                transactions = Writing(
                    self._path,
                    wal_bytes_max=self._wal_bytes_max,
                    has_gate=lambda: self.has_schema,
                    rolled_back=self.policies.forget_ids,
                )
                self._writer = self._reader = self._lane("writer", transactions)
                if self._path != MEMORY:
                    self._reader = self._lane("reader", Reading(), read_only=True)
            return self._writer, self._reader

    def _among_all(self) -> FairFileLock | None:
        """Other stores' writers are waited for where there is a thread to wait in, and a file to share."""
        if self.one_for_all:
            return None
        return FairFileLock(self._path, seconds=self._busy_seconds, spawn=self._seams.spawn)

    def _forget(self, writer: Lane) -> bool:
        """Let the next who connects begin anew. False when somebody has seen to that already."""
        with self._door:
            if self._writer is not writer:
                return False
            self._writer = self._reader = self._blocks = None
            return True

    def _for_blocks(self) -> Blocks:
        # Where one connection serves everything, the block's lane is the writer's, and its turn is kept by the gate.
        own = self._gate is None
        lane = self._lane("blocks", Reading(), foreign_keys=True) if own else self.require_open()[0]
        return Blocks(
            lane=lane,
            turns=self._turns if own else FileLocks(),
            order=asyncio.Lock(),
            gate=self._gate,
            busy_seconds=self._busy_seconds,
            clock=self.clock,
            policies=SqlitePolicies() if own else self.policies,
            seams=self._seams,
        )

    def _lane(self, name: str, around: Transactions, *, read_only: bool = False, foreign_keys: bool = False) -> Lane:
        keys = foreign_keys or (self._gate is not None and not read_only)

        def connecting() -> sqlite3.Connection:
            return connect(self._path, read_only=read_only, busy_seconds=self._busy_seconds, foreign_keys=keys)

        connection = Connection(connecting, around, where=self._path, turns=None if read_only else self._turns)
        if self._inline:
            return InlineLane(connection)
        return ThreadLane(connection, spawn=self._seams.spawn, name=f"tenure-sqlite-{name}")


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("pragma data_version").fetchone()[0])
