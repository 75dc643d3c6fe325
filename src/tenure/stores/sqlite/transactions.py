"""How work shares transactions on one connection, and when the WAL is checkpointed.

All pending work items run in one transaction, each in a savepoint of its own: one fsync serves them all. No caller gets
a result before the commit.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tenure.errors import StoreUnavailable, TenureError
from tenure.stores.sqlite.connect import MEMORY, OpenedFile, any_text, is_undecoded, translated
from tenure.stores.sqlite.file_lock import WriteLock
from tenure.stores.sqlite.session import set_writer

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BEGIN_TRIES = 3
"""How often the store's busy timeout may pass before the database is unavailable."""
WAL_BYTES_MAX = 32 * 1024 * 1024
"""Beyond this size the WAL is written back into the file and truncated."""
CHECKPOINT_WAIT_MS = 50
"""How long a checkpoint waits for readers. A later checkpoint does the rest."""

_log = logging.getLogger("tenure.stores.sqlite")


class WorkItem:
    """Work for a connection, the future that waits for it, and its result or error."""

    __slots__ = ("error", "future", "in_transaction", "loop", "result", "waits_for_own_process", "work")

    def __init__(self, work: Work[Any], *, in_transaction: bool, waits_for_own_process: bool = True) -> None:
        self.work = work
        self.in_transaction = in_transaction
        self.waits_for_own_process = waits_for_own_process
        """Whether it waits to the end for a transaction of this process, which may be the caller's own."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, connection: sqlite3.Connection, where: str) -> None:
        """Run the work and keep its result or error, which does not affect other items."""
        self.error = None
        try:
            with translated(where):
                self.result = self.work(connection)
        except Exception as error:  # noqa: BLE001 - the error belongs to the caller that waits for this item
            self.error = error

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


def fail(items: Iterable[WorkItem], error: TenureError) -> None:
    """The transaction of these items was rolled back."""
    for item in items:
        item.result, item.error = None, error


def resolve(items: Iterable[WorkItem]) -> None:
    """Resolve the futures of these items, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WorkItem]] = {}
    for item in items:
        by_loop.setdefault(item.loop, []).append(item)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, theirs)
        except RuntimeError:
            # That loop was closed in the meantime, so that no task waits there.
            continue


def _resolve_all(items: Iterable[WorkItem]) -> None:
    for item in items:
        item.resolve()


class TransactionBoundary(Protocol):
    """What happens around the work items of a transaction."""

    def begin(self, connection: sqlite3.Connection) -> None: ...

    def finish(self, connection: sqlite3.Connection) -> None:
        """End the transaction."""
        ...

    def rolled_back(self) -> None: ...

    def committed(self, connection: sqlite3.Connection) -> None:
        """Called after a commit, outside of any transaction."""
        ...


class WriteTransactions:
    """Takes the write lock at once, sets the writer to the store, and clears it before the commit.

    A transaction that has written nothing else, such as a claim that finds no job, is rolled back: it waits for no
    disk, and other processes see no new version of the file.
    """

    def __init__(
        self,
        path: str,
        *,
        wal_bytes_max: int,
        has_schema: Callable[[], bool],
        rolled_back: Callable[[], None],
        file: OpenedFile | None = None,
    ) -> None:
        self._path = path
        self._file = file or OpenedFile(path)
        self._wal_bytes_max = wal_bytes_max
        self._wal_bytes_next = wal_bytes_max
        self._has_schema = has_schema
        self._rolled_back = rolled_back
        self._changes_before: int | None = None

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin immediate")
        self._changes_before = None
        if self._has_schema():
            set_writer(connection, "store")
            self._changes_before = connection.total_changes

    def finish(self, connection: sqlite3.Connection) -> None:
        self._file.require_same()
        if connection.total_changes == self._changes_before:
            connection.execute("rollback")
            return
        if self._changes_before is not None:
            set_writer(connection, None)
        connection.execute("commit")

    def rolled_back(self) -> None:
        self._rolled_back()

    def committed(self, connection: sqlite3.Connection) -> None:
        """Checkpoint when the WAL has grown. If a reader prevents that, the next try comes only after the WAL has grown
        by as much again, so that not every write waits for the reader."""
        size = wal_bytes(self._path)
        if size <= self._wal_bytes_max:
            self._wal_bytes_next = self._wal_bytes_max
        elif size > self._wal_bytes_next:
            done = checkpoint(connection)
            self._wal_bytes_next = self._wal_bytes_max + (0 if done else size)


class ReadTransactions:
    """One snapshot for all pending reads, which includes everything committed before them."""

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin")

    def finish(self, connection: sqlite3.Connection) -> None:
        connection.execute("commit")

    def rolled_back(self) -> None:
        return None

    def committed(self, connection: sqlite3.Connection) -> None:
        return None


class LockWatch(Protocol):
    """Checks which process has the lock that a transaction waits for, and may refuse items."""

    def look(self, connection: sqlite3.Connection) -> None:
        """Called after each try to begin a transaction."""
        ...


class SerialConnection:
    """One connection, and the transactions in which work items run on it."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        boundary: TransactionBoundary,
        *,
        where: str,
        write_lock: WriteLock | None = None,
        begin_tries: int = BEGIN_TRIES,
        watch: Callable[[list[WorkItem]], LockWatch] | None = None,
    ) -> None:
        self._connect = connect
        self._boundary = boundary
        self._begin_tries, self._watch = begin_tries, watch
        self._write_lock = write_lock or WriteLock()
        self.where = where
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        if self._connection is None:
            with translated(self.where):
                self._connection = self._connect()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Interrupt the running statement, if there is one. From any thread."""
        with suppress(sqlite3.Error):
            if (connection := self._connection) is not None:
                connection.interrupt()

    def run(self, items: Iterable[WorkItem]) -> None:
        """Run the items; afterwards each has its result or its error."""
        pending = list(items)
        connection = self._connection
        if connection is None:
            fail(pending, StoreUnavailable(f"{self.where} is not open", where=self.where))
            return
        for item in pending:
            if not item.in_transaction:
                item.run(connection, self.where)
        together = [item for item in pending if item.in_transaction]
        if together:
            self._with_write_lock(connection, together)

    def _with_write_lock(self, connection: sqlite3.Connection, items: list[WorkItem]) -> None:
        try:
            with translated(self.where):
                self._write_lock.acquire()
        except TenureError as error:
            fail(items, error)
            return
        try:
            self._in_transaction(connection, items)
        finally:
            self._write_lock.release()

    def _in_transaction(self, connection: sqlite3.Connection, items: list[WorkItem]) -> None:
        try:
            with translated(self.where):
                self._begin(connection, items)
                for item in items:
                    self._in_savepoint(connection, item)
                self._boundary.finish(connection)
        except TenureError as error:
            self._roll_back(connection)
            fail(items, error)
        else:
            self._after_commit(connection)

    def _begin(self, connection: sqlite3.Connection, items: list[WorkItem]) -> None:
        watch = None if self._watch is None else self._watch(items)
        begin_with_retries(
            lambda: self._boundary.begin(connection),
            connection,
            tries=self._begin_tries,
            after_try=None if watch is None else lambda: watch.look(connection),
        )

    def _in_savepoint(self, connection: sqlite3.Connection, item: WorkItem) -> None:
        connection.execute("savepoint item")
        item.run(connection, self.where)
        if item.error is not None and is_undecoded(item.error.__cause__):
            connection.execute("rollback to item")
            self._boundary.rolled_back()
            with any_text(connection):
                item.run(connection, self.where)
        if item.error is not None:
            # SQLite itself ends a transaction on a full disk or an I/O error: then this raises, and all items fail.
            connection.execute("rollback to item")
            self._boundary.rolled_back()
        connection.execute("release item")

    def _after_commit(self, connection: sqlite3.Connection) -> None:
        try:
            self._boundary.committed(connection)
        except sqlite3.Error as problem:
            # Everything is committed. If the file is damaged, the next transaction fails.
            _log.warning("checkpoint of %s failed: %s", self.where, problem)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._boundary.rolled_back()
        try:
            if connection.in_transaction:
                connection.rollback()
        except sqlite3.Error as problem:
            _log.warning("rollback in %s failed: %s", self.where, problem)


def begin_with_retries(
    begin: Callable[[], object],
    connection: sqlite3.Connection,
    *,
    tries: int = BEGIN_TRIES,
    after_try: Callable[[], None] | None = None,
) -> None:
    """Begin a transaction, and wait for the write lock a few busy timeouts. `after_try` is called after each but the
    last."""
    for tries_left in reversed(range(tries)):
        try:
            begin()
            return
        except sqlite3.OperationalError:
            if tries_left == 0 or connection.in_transaction:
                raise
        if after_try is not None:
            after_try()


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Write the WAL back into the file and truncate it. False if readers prevented that: a later checkpoint does it."""
    usual_ms = connection.execute("pragma busy_timeout").fetchone()[0]
    connection.execute(f"pragma busy_timeout = {CHECKPOINT_WAIT_MS}")
    try:
        busy = connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        return bool(busy == 0)
    except sqlite3.OperationalError:
        # Another connection writes or checkpoints. Nothing is lost: what is in the WAL is durable there.
        return False
    finally:
        connection.execute(f"pragma busy_timeout = {usual_ms}")


def wal_bytes(path: str) -> int:
    """The size of the WAL."""
    if path == MEMORY:
        return 0
    try:
        return Path(f"{path}-wal").stat().st_size
    except OSError:
        return 0
