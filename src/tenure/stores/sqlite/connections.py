"""The connections of one store: one that writes, one that reads, and one for commit blocks.

They are opened when they are first needed, and belong to the process that opened them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from math import ceil
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tenure.errors import StoreUnavailable, UsedAfterFork
from tenure.seams import Seams
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.sqlite.commit_block import BlockContext, WriterPause
from tenure.stores.sqlite.connect import MEMORY, OpenedFile, connect, require_local
from tenure.stores.sqlite.file_lock import FairFileLock, WriteLock
from tenure.stores.sqlite.own_lock import TRY_SECONDS, OwnLockWatch, data_version
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.transactions import (
    BEGIN_TRIES,
    ReadTransactions,
    SerialConnection,
    TransactionBoundary,
    WriteTransactions,
    checkpoint,
)
from tenure.stores.sqlite.writer_thread import ConnectionRunner, ConnectionThread, InlineConnection

T = TypeVar("T")
P = ParamSpec("P")
Operation = Callable[Concatenate[Session, P], T]


class SqliteConnections:
    """The connections of one file. A database in memory, and a store without threads, has one for everything."""

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
        self.path, self._store, self.seams, self.clock = path, store, seams, clock
        self._inline, self._busy_seconds, self._wal_bytes_max = inline, busy_seconds, wal_bytes_max
        self.mounts = mounts
        self._pid = os.getpid()
        self._state_lock = threading.Lock()
        self._write_lock = WriteLock()
        self._file = OpenedFile(path)
        self.is_single = inline or path == MEMORY
        self._pause = WriterPause(seams) if self.is_single else None
        self._writer: ConnectionRunner | None = None
        self._reader: ConnectionRunner | None = None
        self._blocks: BlockContext | None = None
        self.policies = SqlitePolicies()
        self.has_schema = False
        self.opened = False

    async def connect(self) -> tuple[ConnectionRunner, ConnectionRunner]:
        """The writer and the reader."""
        self.require_own_process()
        writer, reader = self._pair()
        try:
            # One after the other: the writer creates the file.
            await writer.start()
            await reader.start()
        except Exception:
            write_lock = self._write_lock
            if self._forget(writer):
                await writer.stop()
                write_lock.close()
            raise
        return writer, reader

    async def close(self) -> None:
        """Finish pending work, write the WAL back into the file, and close all connections."""
        self.require_own_process()
        with self._state_lock:
            reader, writer, blocks, write_lock = self._reader, self._writer, self._blocks, self._write_lock
            self._reader = self._writer = self._blocks = None
        self.opened = self.has_schema = False
        if blocks is not None and blocks.runner is not writer:
            await blocks.runner.stop()
        if reader is not None and reader is not writer:
            await reader.stop()
        if writer is not None:
            await writer.call(checkpoint)
            await writer.stop()
            write_lock.close()

    async def read(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a reading transaction."""
        if self.is_single:
            require_no_open_block(self._store)
        reader = await self.reader()
        return await reader.transact(lambda connection: operation(self.session(connection), *args, **kwargs))

    async def write(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a writing transaction."""
        require_no_open_block(self._store)
        writer = await self.writer()
        return await writer.transact(lambda connection: operation(self.session(connection), *args, **kwargs))

    async def write_for_caller(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`write`, refused soon if a transaction of this process keeps the file locked: it may be the caller's own,
        who would wait for itself."""
        require_no_open_block(self._store)
        writer = await self.writer()
        return await writer.transact(
            lambda connection: operation(self.session(connection), *args, **kwargs), waits_for_own_process=False
        )

    def session(self, connection: sqlite3.Connection) -> Session:
        """The session of one operation. Its time is that at which the operation begins."""
        return Session(connection, self.clock(), self.policies)

    async def file_version(self) -> int:
        """A number that changes when another connection commits to the file."""
        return await (await self.writer()).call(data_version)

    async def writer(self) -> ConnectionRunner:
        """The writer of the open store, once no commit block has its connection."""
        return (await self._open_pair())[0]

    async def reader(self) -> ConnectionRunner:
        """The reader of the open store, once no commit block has its connection."""
        return (await self._open_pair())[1]

    async def blocks(self) -> BlockContext:
        """The connection of commit blocks."""
        self.require_open()
        with self._state_lock:
            if self._blocks is None:
                self._blocks = self._block_context()
            blocks = self._blocks
        await blocks.runner.start()
        return blocks

    def require_open(self) -> tuple[ConnectionRunner, ConnectionRunner]:
        self.require_own_process()
        if not self.opened or self._writer is None or self._reader is None:
            raise StoreUnavailable(f"{self.path} is not open; call open() first", where=self.path)
        return self._writer, self._reader

    def require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"SqliteStore({self.path!r}) was made in process {self._pid} and cannot be used in {os.getpid()}, its "
                f"child; make a store of its own after the fork"
            )

    def missing(self) -> bool:
        """Whether the file does not exist."""
        self.require_own_process()
        return self.path != MEMORY and not Path(self.path).exists()

    def runner(
        self,
        name: str,
        boundary: TransactionBoundary,
        *,
        read_only: bool = False,
        foreign_keys: bool = False,
        write_lock: WriteLock | None = None,
        opened: sqlite3.Connection | None = None,
        watches_own_process: bool = False,
    ) -> ConnectionRunner:
        """A connection to the file, or one that is `opened` already, with a thread of its own unless inline."""

        def open_file() -> sqlite3.Connection:
            connection = opened or connect(
                self.path, read_only=read_only, busy_seconds=self._busy_seconds, foreign_keys=foreign_keys
            )
            self._file.record()
            if watches_own_process:
                connection.execute(f"pragma busy_timeout = {round(min(self._busy_seconds, TRY_SECONDS) * 1000)}")
            return connection

        tries = max(BEGIN_TRIES, ceil(BEGIN_TRIES * self._busy_seconds / TRY_SECONDS))
        connection = SerialConnection(
            open_file,
            boundary,
            where=self.path,
            write_lock=write_lock,
            begin_tries=tries if watches_own_process else BEGIN_TRIES,
            watch=partial(OwnLockWatch, self.path) if watches_own_process else None,
        )
        if self._inline:
            return InlineConnection(connection)
        return ConnectionThread(connection, spawn=self.seams.spawn, name=f"tenure-sqlite-{name}")

    async def _open_pair(self) -> tuple[ConnectionRunner, ConnectionRunner]:
        pair = self.require_open()
        if self._pause is not None:
            await self._pause.ended()
        return pair

    def _pair(self) -> tuple[ConnectionRunner, ConnectionRunner]:
        """The writer and the reader, created once also for concurrent callers."""
        with self._state_lock:
            if self._writer is None or self._reader is None:
                require_local(self.path, self.mounts())
                self._write_lock = WriteLock(self._file_lock())
                self._file = OpenedFile(self.path)
                boundary = WriteTransactions(
                    self.path,
                    wal_bytes_max=self._wal_bytes_max,
                    has_schema=lambda: self.has_schema,
                    rolled_back=self.policies.forget_ids,
                    file=self._file,
                )
                self._writer = self._reader = self.runner(
                    "writer",
                    boundary,
                    foreign_keys=self.is_single,
                    write_lock=self._write_lock,
                    watches_own_process=not self.is_single,
                )
                if self.path != MEMORY:
                    self._reader = self.runner("reader", ReadTransactions(), read_only=True)
            return self._writer, self._reader

    def _file_lock(self) -> FairFileLock | None:
        """Only a store with threads can wait for other stores' writers, and only a file has any."""
        if self.is_single:
            return None
        return FairFileLock(self.path, seconds=self._busy_seconds, spawn=self.seams.spawn)

    def _forget(self, writer: ConnectionRunner) -> bool:
        """Let the next `connect` start anew. False if a concurrent call has done so."""
        with self._state_lock:
            if self._writer is not writer:
                return False
            self._writer = self._reader = self._blocks = None
            return True

    def _block_context(self) -> BlockContext:
        # With a single connection the block runs on the writer, and the pause keeps other work away.
        if self._pause is None:
            write_lock, policies = self._write_lock, SqlitePolicies()
            runner = self.runner("blocks", ReadTransactions(), foreign_keys=True, write_lock=write_lock)
        else:
            write_lock, policies, runner = WriteLock(), self.policies, self.require_open()[0]
        return BlockContext(
            runner=runner,
            write_lock=write_lock,
            order=asyncio.Lock(),
            pause=self._pause,
            busy_seconds=self._busy_seconds,
            clock=self.clock,
            policies=policies,
            seams=self.seams,
            file=self._file,
        )
