"""A pool of connections. `acquire` returns the connection that was released last, a new one while there is room, or the
next that is released. The driver's own pool makes a task for every release, which costs more than a small statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import asyncpg

from tenure.errors import StoreError, TooManyConnections

IDLE_SECONDS_MAX = 300.0
CLOSE_SECONDS_MAX = 2.0
GROW_SECONDS = 1.0
"""How long the pool does not try to grow after the server has refused a further connection."""
CLOSED = "the store is closed; open it again, or a new one"

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class ConnectionPool:
    """Belongs to one event loop. Every acquired connection is released, whatever state it is in."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int) -> None:
        self._connect, self._size = connect, size
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[float, Connection]] = []
        self._acquired: set[Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._released = asyncio.Event()
        self._grows_at_seconds = float("-inf")

    async def acquire(self) -> Connection:
        """A connection that no other caller has until it is released."""
        while not self._closed:
            if self._idle and self._idle[0][0] < self._loop.time() - IDLE_SECONDS_MAX:
                await _close(self._idle.pop(0)[1])
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    self._acquired.add(connection)
                    return connection
            if self._may_grow():
                try:
                    return await self._new()
                except TooManyConnections:
                    if not (self._acquired or self._idle):
                        raise
                    # Those that the pool has are enough to continue with.
                    self._grows_at_seconds = self._loop.time() + GROW_SECONDS
            else:
                await self._wait_for_release()
        raise StoreError(CLOSED)

    def _may_grow(self) -> bool:
        if len(self._acquired) + self._connecting >= self._size:
            return False
        return not self._acquired or self._loop.time() >= self._grows_at_seconds

    async def _new(self) -> Connection:
        self._connecting += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._wake_next()
            raise
        finally:
            self._connecting -= 1
        if self._closed:
            connection.terminate()
            raise StoreError(CLOSED)
        self._acquired.add(connection)
        return connection

    async def _wait_for_release(self) -> None:
        """Wait until a connection is released."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The connection was meant for this waiter: hand it to the next one.
                self._wake_next()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiter)

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def release(self, connection: Connection) -> None:
        """Hand it to the next waiter. A connection that is closed or in a transaction is terminated instead."""
        self._acquired.discard(connection)
        self._released.set()
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append((self._loop.time(), connection))
        self._wake_next()

    async def close(self) -> None:
        """Refuse further calls, wait until all connections are released, and close them."""
        self._closed = True
        if self._loop.is_closed():
            self._abandon()
            return
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        while self._idle:
            await _close(self._idle.pop()[1])
        while self._acquired:
            self._released.clear()
            await self._released.wait()

    def _abandon(self) -> None:
        """Close the sockets of connections whose event loop is closed, so that asyncio cannot close them."""
        for connection in [*self._acquired, *(connection for _, connection in self._idle)]:
            with suppress(RuntimeError):
                connection.terminate()
            # What asyncio would have called next. Other transports close their socket when they are collected.
            transport = getattr(connection, "_transport", None)
            if callable(close := getattr(transport, "_call_connection_lost", None)):
                close(None)
        self._acquired.clear()
        self._idle.clear()

    def terminate(self) -> None:
        """End all connections at once, also acquired ones."""
        self._closed = True
        for connection in [*self._acquired, *(connection for _, connection in self._idle)]:
            connection.terminate()


async def _close(connection: Connection) -> None:
    """Closes the session, also where the server does not answer."""
    try:
        await connection.close(timeout=CLOSE_SECONDS_MAX)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
