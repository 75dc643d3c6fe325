"""Each acquired connection belongs to one caller; there are never more than the limit, and none that is broken."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tenure.errors import StoreError, TooManyConnections
from tenure.stores.postgres import connection_pool
from tenure.stores.postgres.connection_pool import Connection, ConnectionPool

PLENTY_SECONDS = 10.0


class Fake:
    """A connection that only knows what became of it."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = self.terminated = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - the driver calls it so
        self.closed = self.terminated = True


class Server:
    def __init__(self) -> None:
        self.made: list[Fake] = []
        self.refuses = False
        self.connections_max = 100
        self.tries = 0

    async def connect(self) -> Connection:
        self.tries += 1
        await asyncio.sleep(0)
        if sum(not one.closed for one in self.made) >= self.connections_max:
            raise TooManyConnections("the limit of the role is reached")
        if self.refuses:
            raise ConnectionRefusedError("no server listens")
        self.made.append(Fake())
        return cast("Connection", self.made[-1])


@pytest.fixture
def server() -> Server:
    return Server()


def pool_of(server: Server, size: int = 2) -> ConnectionPool:
    return ConnectionPool(server.connect, size=size)


async def test_the_connection_released_last_is_acquired_first(server: Server) -> None:
    pool = pool_of(server)
    one, other = await pool.acquire(), await pool.acquire()
    pool.release(other)
    pool.release(one)
    assert await pool.acquire() is one
    assert await pool.acquire() is other
    assert len(server.made) == 2


async def test_no_more_connections_than_the_limit_are_acquired_and_the_next_waits(server: Server) -> None:
    pool = pool_of(server, size=1)
    first = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    pool.release(first)
    assert await asyncio.wait_for(waiting[0], PLENTY_SECONDS) is first
    assert not waiting[1].done()
    pool.release(first)
    assert await asyncio.wait_for(waiting[1], PLENTY_SECONDS) is first


async def test_a_cancelled_waiter_leaves_its_connection_to_the_next(server: Server) -> None:
    pool = pool_of(server, size=1)
    first = await pool.acquire()
    gone, next_ = asyncio.create_task(pool.acquire()), asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.01)
    pool.release(first)
    gone.cancel()
    assert await asyncio.wait_for(next_, PLENTY_SECONDS) is first
    with pytest.raises(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize("fault", ["closed", "in_transaction"])
async def test_a_broken_connection_is_not_acquired_again(server: Server, fault: str) -> None:
    pool = pool_of(server, size=1)
    poisoned: Any = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.01)
    setattr(poisoned, fault, True)
    pool.release(poisoned)
    assert await asyncio.wait_for(waiting, PLENTY_SECONDS) is not poisoned
    assert poisoned.closed


async def test_a_connection_that_broke_while_idle_is_not_acquired(server: Server) -> None:
    pool = pool_of(server)
    broken: Any = await pool.acquire()
    pool.release(broken)
    broken.closed = True
    assert await pool.acquire() is not broken


async def test_a_refused_connection_fails_all_waiters(server: Server) -> None:
    pool = pool_of(server, size=1)
    server.refuses = True
    asked = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    async with asyncio.timeout(PLENTY_SECONDS):
        for task in asked:
            with pytest.raises(ConnectionRefusedError):
                await task
    server.refuses = False
    await pool.acquire()


@pytest.mark.requirement("WC-05")
async def test_a_pool_that_cannot_grow_continues_with_the_connections_that_it_has(server: Server) -> None:
    server.connections_max = 1
    pool = pool_of(server, size=10)
    only = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(5)]
    async with asyncio.timeout(PLENTY_SECONDS):
        for task in waiting:
            pool.release(only)
            assert await task is only
    assert server.tries <= 1 + len(waiting)


@pytest.mark.requirement("WC-05")
async def test_a_pool_without_a_connection_reports_that_there_are_too_many(server: Server) -> None:
    server.connections_max = 1
    pool = pool_of(server, size=10)
    broken = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(2)]
    await asyncio.sleep(0.01)
    server.connections_max = 0
    broken.terminate()
    pool.release(broken)
    async with asyncio.timeout(PLENTY_SECONDS):
        for task in waiting:
            with pytest.raises(TooManyConnections):
                await task


@pytest.mark.requirement("WC-05")
async def test_a_pool_grows_again_once_the_limit_is_raised(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "GROW_SECONDS", 0.0)
    server.connections_max = 1
    pool = pool_of(server, size=2)
    only = await pool.acquire()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.acquire(), 0.01)
    server.connections_max = 2
    assert await asyncio.wait_for(pool.acquire(), PLENTY_SECONDS) is not only


async def test_a_connection_that_was_idle_for_long_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(server, size=3)
    connections = [await pool.acquire() for _ in range(3)]
    for connection in connections:
        pool.release(connection)
    monkeypatch.setattr(connection_pool, "IDLE_SECONDS_MAX", -1.0)
    assert await pool.acquire() is connections[2]
    assert [made.terminated for made in server.made] == [True, False, False]


async def test_closing_a_pool_waits_for_acquired_connections_and_refuses_new_ones(server: Server) -> None:
    pool = pool_of(server, size=2)
    acquired, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    another = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(pool.close())
    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(waiting, PLENTY_SECONDS)
    pool.release(another)
    assert not closing.done()
    pool.release(acquired)
    await asyncio.wait_for(closing, PLENTY_SECONDS)
    assert all(made.closed for made in server.made)
    with pytest.raises(StoreError, match="closed"):
        await pool.acquire()


async def test_a_connection_requested_before_the_close_is_not_acquired_after_it(server: Server) -> None:
    pool = pool_of(server)
    asked = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(StoreError, match="closed"):
        await asked
    assert [made.closed for made in server.made] == [True]


async def test_terminating_a_pool_waits_for_no_connection(server: Server) -> None:
    pool = pool_of(server, size=2)
    await pool.acquire()
    pool.release(await pool.acquire())
    pool.terminate()
    assert all(made.closed for made in server.made)
