"""Connections that are lent out one at a time: the one that was given back last, a new one while there is room, or the
next that is given back. The driver's own pool makes a task for every return, which costs more than a small statement.
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
GOODBYE_SECONDS_MAX = 2.0
GROW_SECONDS = 1.0
"""How long the pool does not try to grow after the server has refused a further connection."""
CLOSED = "the store is closed; open it again, or a new one"

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class ConnectionPool:
    """Belongs to one event loop. Every connection that is taken is given back, whatever state it is in."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int) -> None:
        self._connect, self._size = connect, size
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[float, Connection]] = []
        self._lent: set[Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._returned = asyncio.Event()
        self._grows_at_seconds = float("-inf")

    async def take(self) -> Connection:
        """A connection of one's own, until it is given back."""
        while not self._closed:
            if self._idle and self._idle[0][0] < asyncio.get_running_loop().time() - IDLE_SECONDS_MAX:
                await _goodbye(self._idle.pop(0)[1])
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    self._lent.add(connection)
                    return connection
            if self._may_grow():
                try:
                    return await self._new()
                except TooManyConnections:
                    if not (self._lent or self._idle):
                        raise
                    # Those that the pool has are enough to continue with.
                    self._grows_at_seconds = asyncio.get_running_loop().time() + GROW_SECONDS
            else:
                await self._turn()
        raise StoreError(CLOSED)

    def _may_grow(self) -> bool:
        if len(self._lent) + self._connecting >= self._size:
            return False
        return not self._lent or asyncio.get_running_loop().time() >= self._grows_at_seconds

    async def _new(self) -> Connection:
        self._connecting += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._next()
            raise
        finally:
            self._connecting -= 1
        if self._closed:
            connection.terminate()
            raise StoreError(CLOSED)
        self._lent.add(connection)
        return connection

    async def _turn(self) -> None:
        """Wait until a connection was given back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was ours, and is the next one's now.
                self._next()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def give_back(self, connection: Connection) -> None:
        """Lend it to the next one, unless it is not fit for that."""
        self._lent.discard(connection)
        self._returned.set()
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        self._next()

    async def close(self) -> None:
        """Lend no more, wait until all are given back, and close them."""
        self._closed = True
        if self._loop.is_closed():
            self._abandon()
            return
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        while self._idle:
            await _goodbye(self._idle.pop()[1])
        while self._lent:
            self._returned.clear()
            await self._returned.wait()

    def _abandon(self) -> None:
        """Close the sockets of connections whose event loop is closed, so that asyncio cannot close them."""
        for connection in [*self._lent, *(connection for _, connection in self._idle)]:
            with suppress(RuntimeError):
                connection.terminate()
            # What asyncio would have called next. Other transports close their socket when they are collected.
            transport = getattr(connection, "_transport", None)
            if callable(close := getattr(transport, "_call_connection_lost", None)):
                close(None)
        self._lent.clear()
        self._idle.clear()

    def terminate(self) -> None:
        """Do not wait for anybody."""
        self._closed = True
        for connection in [*self._lent, *(connection for _, connection in self._idle)]:
            connection.terminate()


async def _goodbye(connection: Connection) -> None:
    """Closes the session, also where the server does not answer."""
    try:
        await connection.close(timeout=GOODBYE_SECONDS_MAX)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
