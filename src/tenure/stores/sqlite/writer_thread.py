"""The thread that owns a connection: the writer thread of a file, its reader thread, and the same without threads.

The thread takes all pending work items at once, and resolves them after their transaction has committed.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from typing import Any, Protocol, TypeVar

from tenure.errors import StoreUnavailable, TenureError
from tenure.seams import Spawner
from tenure.stores.sqlite.transactions import SerialConnection, Work, WorkItem, fail, resolve

T = TypeVar("T")

ITEMS_MAX = 256
"""How many work items one transaction takes at most."""


class ConnectionRunner(Protocol):
    """Runs work on one connection, one item after the other."""

    async def transact(self, work: Work[T], *, waits_for_own_process: bool = True) -> T:
        """The result of work in a transaction, once it is committed."""
        ...

    async def call(self, work: Work[T]) -> T:
        """The result of work that needs no transaction, or has its own."""
        ...

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        """Like `call`, without waiting."""
        ...

    def interrupt(self) -> None:
        """Interrupt the running statement, if there is one. From any thread."""
        ...

    async def start(self) -> None:
        """Open the connection. A second call changes nothing."""
        ...

    async def stop(self) -> None:
        """Finish pending work, and close the connection."""
        ...


class ConnectionThread:
    """A thread with a connection of its own."""

    def __init__(self, connection: SerialConnection, *, spawn: Spawner, name: str) -> None:
        self._connection = connection
        self._pending: queue.SimpleQueue[WorkItem] = queue.SimpleQueue()
        self._spawn, self._name = spawn, name
        self._state_lock = threading.Lock()
        self._alive = False
        self._last: WorkItem | None = None
        self._failure: TenureError | None = None

    async def start(self) -> None:
        """Open the connection on the thread that will use it."""
        with self._state_lock:
            if not self._alive and self._failure is None:
                self._spawn.thread(self._run, name=self._name)
                self._alive = True
        await self.call(_nothing)

    async def transact(self, work: Work[T], *, waits_for_own_process: bool = True) -> T:
        item = WorkItem(work, in_transaction=True, waits_for_own_process=waits_for_own_process)
        self._put(item)
        result: T = await item.future
        return result

    async def call(self, work: Work[T]) -> T:
        return await self.submit(work)

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        item = WorkItem(work, in_transaction=False)
        self._put(item)
        return item.future

    def interrupt(self) -> None:
        self._connection.interrupt()

    async def stop(self) -> None:
        with self._state_lock:
            if not self._alive:
                # A concurrent start must fail: nothing would stop the thread again.
                self._failure = self._closed()
            if self._failure is not None:
                return
        last = WorkItem(_nothing, in_transaction=False)
        self._put(last, last=True)
        await last.future

    def _put(self, item: WorkItem, *, last: bool = False) -> None:
        """No item is accepted after the last one, since it would never run."""
        with self._state_lock:
            if self._failure is not None:
                raise self._failure
            if self._last is not None or not self._alive:
                raise self._closed()
            self._last = item if last else None
            self._pending.put(item)

    def _run(self) -> None:
        try:
            self._connection.open()
        except TenureError as error:
            self._fail(error)
            return
        while True:
            items = self._drain([self._pending.get()])
            self._connection.run(items)
            if items[-1] is self._last:
                self._connection.close()
                resolve(items)
                return
            resolve(items)

    def _fail(self, error: TenureError) -> None:
        """The connection cannot be opened: all pending and all future items fail."""
        with self._state_lock:
            self._failure = error
        while items := self._drain([]):
            fail(items, error)
            resolve(items)

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._connection.where} is closed; open the store again", where=self._connection.where
        )

    def _drain(self, items: list[WorkItem]) -> list[WorkItem]:
        while len(items) < ITEMS_MAX:
            try:
                items.append(self._pending.get_nowait())
            except queue.Empty:
                break
        return items


class InlineConnection:
    """Runs work at once on the caller's thread, for a simulator with virtual time."""

    def __init__(self, connection: SerialConnection) -> None:
        self._connection = connection

    async def start(self) -> None:
        self._connection.open()

    async def transact(self, work: Work[T], *, waits_for_own_process: bool = True) -> T:
        item = WorkItem(work, in_transaction=True, waits_for_own_process=waits_for_own_process)
        result: T = await self._run(item)
        return result

    async def call(self, work: Work[T]) -> T:
        return await self.submit(work)

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        return self._run(WorkItem(work, in_transaction=False))

    def interrupt(self) -> None:
        """No statement runs on another thread."""

    async def stop(self) -> None:
        self._connection.close()

    def _run(self, item: WorkItem) -> asyncio.Future[Any]:
        self._connection.run([item])
        item.resolve()
        return item.future


def _nothing(connection: sqlite3.Connection) -> None:
    return None
