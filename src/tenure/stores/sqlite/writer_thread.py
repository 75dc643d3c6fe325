"""Lanes: the one thread that may write a file, the one that reads it, and the same without threads for a simulator.

The writer takes everything that waits, runs each piece in a savepoint of its own inside one transaction, commits once
and only then answers: one fsync serves them all, and nobody is told of what could still be lost.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from tenure.errors import StoreUnavailable, TenureError
from tenure.seams import Spawner
from tenure.stores.sqlite.connect import translated
from tenure.stores.sqlite.file_lock import FileLocks

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_log = logging.getLogger("tenure.stores.sqlite")

PIECES_MAX = 256
"""How many pieces of work one transaction takes at most."""
BEGIN_TRIES = 3
"""How often the busy timeout may pass before the database is called unavailable."""


class Lane(Protocol):
    """Runs work on a connection, one piece after the other."""

    async def run(self, work: Work[T]) -> T:
        """The result of the work, once it is durable."""
        ...

    async def look(self, work: Work[T]) -> T:
        """The result of work that needs no transaction, or makes its own."""
        ...

    def hand_in(self, work: Work[T]) -> asyncio.Future[T]:
        """The same, for whoever does not wait for it now."""
        ...

    def interrupt(self) -> None:
        """Break off the statement that runs just now, if there is one. From any thread."""
        ...

    async def start(self) -> None:
        """Open the connection, once, however many ask for it."""
        ...

    async def stop(self) -> None:
        """Finish what waits, and close the connection."""
        ...


class Transactions(Protocol):
    """What surrounds the pieces of work."""

    def begin(self, connection: sqlite3.Connection) -> None: ...

    def finish(self, connection: sqlite3.Connection) -> None: ...

    def rolled_back(self) -> None: ...

    def idle(self, connection: sqlite3.Connection) -> None:
        """Called after a commit, outside of any transaction."""
        ...


class Piece:
    """A piece of work, who waits for it, and what became of it."""

    __slots__ = ("error", "future", "in_transaction", "loop", "result", "work")

    def __init__(self, work: Work[Any], *, in_transaction: bool) -> None:
        self.work = work
        self.in_transaction = in_transaction
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def attempt(self, connection: sqlite3.Connection, where: str) -> None:
        """Do the work and keep what comes of it: one piece's error is not its neighbours'."""
        try:
            with translated(where):
                self.result = self.work(connection)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to whoever waits for this piece
            self.error = error

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Connection:
    """One connection and how transactions run on it: the part that lanes with and without a thread share."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        transactions: Transactions,
        *,
        where: str,
        turns: FileLocks | None = None,
    ) -> None:
        self._connect = connect
        self._transactions = transactions
        self._turns = turns or FileLocks()
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
        """From any thread. On a connection that is being closed there is nothing to break off."""
        with suppress(sqlite3.Error):
            if (connection := self._connection) is not None:
                connection.interrupt()

    def serve(self, pieces: Iterable[Piece]) -> None:
        """Run the pieces; afterwards each has its result or its error."""
        waiting = list(pieces)
        connection = self._connection
        if connection is None:
            fail(waiting, StoreUnavailable(f"{self.where} is not open"))
            return
        for piece in waiting:
            if not piece.in_transaction:
                piece.attempt(connection, self.where)
        changing = [piece for piece in waiting if piece.in_transaction]
        if changing:
            self._transaction(connection, changing)

    def _transaction(self, connection: sqlite3.Connection, pieces: list[Piece]) -> None:
        try:
            with translated(self.where):
                self._turns.take()
        except TenureError as error:
            fail(pieces, error)
            return
        try:
            self._in_turn(connection, pieces)
        finally:
            self._turns.give_back()

    def _in_turn(self, connection: sqlite3.Connection, pieces: list[Piece]) -> None:
        try:
            with translated(self.where):
                self._begin(connection)
                for piece in pieces:
                    self._in_savepoint(connection, piece)
                self._transactions.finish(connection)
                connection.execute("commit")
        except TenureError as error:
            self._roll_back(connection)
            fail(pieces, error)
        else:
            self._rest(connection)

    def _rest(self, connection: sqlite3.Connection) -> None:
        try:
            self._transactions.idle(connection)
        except sqlite3.Error as problem:
            # All is committed and answered for. If the file is broken, the next transaction says so to its callers.
            _log.warning("%s: %s", self.where, problem)

    def _begin(self, connection: sqlite3.Connection) -> None:
        for tries_left in reversed(range(BEGIN_TRIES)):
            try:
                self._transactions.begin(connection)
                return
            except sqlite3.OperationalError:
                if tries_left == 0 or connection.in_transaction:
                    raise

    def _in_savepoint(self, connection: sqlite3.Connection, piece: Piece) -> None:
        connection.execute("savepoint piece")
        piece.attempt(connection, self.where)
        if piece.error is not None:
            # SQLite itself ends a transaction on a full disk or an I/O error: then this raises, and all are told.
            connection.execute("rollback to piece")
            self._transactions.rolled_back()
        connection.execute("release piece")

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._transactions.rolled_back()
        try:
            if connection.in_transaction:
                connection.rollback()
        except sqlite3.Error as problem:
            _log.warning("%s: %s", self.where, problem)


class ThreadLane:
    """A thread with a connection of its own, which serves everything that waits at once."""

    def __init__(self, connection: Connection, *, spawn: Spawner, name: str) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._spawn, self._name = spawn, name
        self._door = threading.Lock()
        self._alive = False
        self._last: Piece | None = None
        self._failure: TenureError | None = None

    async def start(self) -> None:
        """Open the connection on the thread that will use it."""
        with self._door:
            if not self._alive and self._failure is None:
                self._spawn.thread(self._live, name=self._name)
                self._alive = True
        await self.look(_nothing)

    async def run(self, work: Work[T]) -> T:
        answer: T = await self._answer(Piece(work, in_transaction=True))
        return answer

    async def look(self, work: Work[T]) -> T:
        return await self.hand_in(work)

    def hand_in(self, work: Work[T]) -> asyncio.Future[T]:
        piece = Piece(work, in_transaction=False)
        self._enter(piece)
        return piece.future

    def interrupt(self) -> None:
        self._connection.interrupt()

    async def stop(self) -> None:
        with self._door:
            if not self._alive:
                # Whoever is about to start it must not: nobody would stop it again.
                self._failure = self._closed()
            if self._failure is not None:
                return
        last = Piece(_nothing, in_transaction=False)
        self._enter(last, last=True)
        await last.future

    async def _answer(self, piece: Piece) -> Any:
        self._enter(piece)
        return await piece.future

    def _enter(self, piece: Piece, *, last: bool = False) -> None:
        """Behind the last piece nobody would serve another, so the door is shut with it."""
        with self._door:
            if self._failure is not None:
                raise self._failure
            if self._last is not None or not self._alive:
                raise self._closed()
            self._last = piece if last else None
            self._waiting.put(piece)

    def _live(self) -> None:
        try:
            self._connection.open()
        except TenureError as error:
            self._fail(error)
            return
        while True:
            pieces = self._take()
            self._connection.serve(pieces)
            if pieces[-1] is self._last:
                self._connection.close()
                deliver(pieces)
                return
            deliver(pieces)

    def _fail(self, error: TenureError) -> None:
        """There is no connection: say so to all who wait, and to all who come."""
        with self._door:
            self._failure = error
        while pieces := self._at_hand([]):
            fail(pieces, error)
            deliver(pieces)

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._connection.where} is closed; open the store again")

    def _take(self) -> list[Piece]:
        """Everything that waits, as soon as anything does."""
        return self._at_hand([self._waiting.get()])

    def _at_hand(self, pieces: list[Piece]) -> list[Piece]:
        while len(pieces) < PIECES_MAX:
            try:
                pieces.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return pieces


class InlineLane:
    """The same without a thread: work is done where it is asked for. For a simulator, which has no time for threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def start(self) -> None:
        self._connection.open()

    async def run(self, work: Work[T]) -> T:
        answer: T = await self._served(Piece(work, in_transaction=True))
        return answer

    async def look(self, work: Work[T]) -> T:
        return await self.hand_in(work)

    def hand_in(self, work: Work[T]) -> asyncio.Future[T]:
        return self._served(Piece(work, in_transaction=False))

    def interrupt(self) -> None:
        """There is no other thread that a statement could be running on."""

    async def stop(self) -> None:
        self._connection.close()

    def _served(self, piece: Piece) -> asyncio.Future[Any]:
        self._connection.serve([piece])
        piece.settle()
        return piece.future


def fail(pieces: Iterable[Piece], error: TenureError) -> None:
    """The whole transaction is undone, so this is the answer to each of its pieces."""
    for piece in pieces:
        piece.result, piece.error = None, error


def deliver(pieces: Iterable[Piece]) -> None:
    """Answer whoever waits, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Piece]] = {}
    for piece in pieces:
        by_loop.setdefault(piece.loop, []).append(piece)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_all, theirs)
        except RuntimeError:
            # That loop was closed in the meantime: nobody waits there any more.
            continue


def _settle_all(pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        piece.settle()


def _nothing(connection: sqlite3.Connection) -> None:
    return None
