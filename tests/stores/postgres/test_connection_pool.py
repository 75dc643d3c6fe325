"""Connections are lent to one at a time, never more than there may be, and none that is not fit for it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tenure.errors import StoreError
from tenure.stores.postgres import connection_pool
from tenure.stores.postgres.connection_pool import Connection, ConnectionPool

PLENTY_SECONDS = 10.0


class Fake:
    """A connection that only knows what became of it."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = self.told = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - the driver calls it so
        self.closed = self.told = True


class Server:
    def __init__(self) -> None:
        self.made: list[Fake] = []
        self.refuses = False

    async def connect(self) -> Connection:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError("nobody listens")
        self.made.append(Fake())
        return cast("Connection", self.made[-1])


@pytest.fixture
def server() -> Server:
    return Server()


def pool_of(server: Server, size: int = 2) -> ConnectionPool:
    return ConnectionPool(server.connect, size=size)


async def test_what_was_given_back_last_is_lent_first(server: Server) -> None:
    pool = pool_of(server)
    one, other = await pool.take(), await pool.take()
    pool.give_back(other)
    pool.give_back(one)
    assert await pool.take() is one
    assert await pool.take() is other
    assert len(server.made) == 2


async def test_no_more_are_lent_than_there_may_be_and_the_next_waits(server: Server) -> None:
    pool = pool_of(server, size=1)
    first = await pool.take()
    waiting = [asyncio.create_task(pool.take()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    pool.give_back(first)
    assert await asyncio.wait_for(waiting[0], PLENTY_SECONDS) is first
    assert not waiting[1].done()
    pool.give_back(first)
    assert await asyncio.wait_for(waiting[1], PLENTY_SECONDS) is first


async def test_one_who_waits_no_longer_leaves_his_turn_to_the_next(server: Server) -> None:
    pool = pool_of(server, size=1)
    first = await pool.take()
    gone, next_ = asyncio.create_task(pool.take()), asyncio.create_task(pool.take())
    await asyncio.sleep(0.01)
    pool.give_back(first)
    gone.cancel()
    assert await asyncio.wait_for(next_, PLENTY_SECONDS) is first
    with pytest.raises(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize("fault", ["closed", "in_transaction"])
async def test_what_is_not_fit_is_not_lent_again(server: Server, fault: str) -> None:
    pool = pool_of(server, size=1)
    spoilt: Any = await pool.take()
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0.01)
    setattr(spoilt, fault, True)
    pool.give_back(spoilt)
    assert await asyncio.wait_for(waiting, PLENTY_SECONDS) is not spoilt
    assert spoilt.closed


async def test_what_broke_while_nobody_had_it_is_not_lent(server: Server) -> None:
    pool = pool_of(server)
    broken: Any = await pool.take()
    pool.give_back(broken)
    broken.closed = True
    assert await pool.take() is not broken


async def test_a_server_that_refuses_keeps_nobody_waiting(server: Server) -> None:
    pool = pool_of(server, size=1)
    server.refuses = True
    asked = [asyncio.create_task(pool.take()) for _ in range(3)]
    async with asyncio.timeout(PLENTY_SECONDS):
        for task in asked:
            with pytest.raises(ConnectionRefusedError):
                await task
    server.refuses = False
    await pool.take()


async def test_what_nobody_has_needed_for_long_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(server, size=3)
    taken = [await pool.take() for _ in range(3)]
    for connection in taken:
        pool.give_back(connection)
    monkeypatch.setattr(connection_pool, "IDLE_SECONDS_MAX", -1.0)
    assert await pool.take() is taken[2]
    assert [made.told for made in server.made] == [True, False, False]


async def test_a_pool_that_is_closed_waits_for_what_is_lent_and_lends_no_more(server: Server) -> None:
    pool = pool_of(server, size=2)
    lent, idle = await pool.take(), await pool.take()
    pool.give_back(idle)
    another = await pool.take()
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(pool.close())
    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(waiting, PLENTY_SECONDS)
    pool.give_back(another)
    assert not closing.done()
    pool.give_back(lent)
    await asyncio.wait_for(closing, PLENTY_SECONDS)
    assert all(made.closed for made in server.made)
    with pytest.raises(StoreError, match="closed"):
        await pool.take()


async def test_what_was_asked_for_before_a_pool_was_closed_is_not_lent_after(server: Server) -> None:
    pool = pool_of(server)
    asked = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(StoreError, match="closed"):
        await asked
    assert [made.closed for made in server.made] == [True]


async def test_a_pool_that_is_cut_off_waits_for_nobody(server: Server) -> None:
    pool = pool_of(server, size=2)
    await pool.take()
    pool.give_back(await pool.take())
    pool.terminate()
    assert all(made.closed for made in server.made)
