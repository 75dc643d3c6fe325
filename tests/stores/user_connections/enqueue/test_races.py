"""Concurrent transactions of users that write the same key, the same policy or the same job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import asyncpg
import pytest

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import RequestIdReused, RevisionConflict, StoreError
from tenure.lifecycle.operations import Commit, Heartbeat
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import Applied, Failure, Request
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import Driver
from tests.support.databases import Database

T = TypeVar("T")
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


class OpenTransaction:
    """A transaction that the test ends."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.transaction = connection.transaction()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


@pytest.fixture
async def app(postgres: Database) -> AsyncIterator[tenure.App]:
    async with tenure.App(postgres.url) as app:
        yield app


@pytest.fixture
def send(app: tenure.App) -> JobFunction[[str], str]:
    @app.job(lease_seconds=33)
    def send(to: str) -> str:
        return to

    return send


@pytest.fixture
async def two(postgres: Database) -> AsyncIterator[tuple[OpenTransaction, OpenTransaction]]:
    connections = [await asyncpg.connect(postgres.url) for _ in range(2)]
    transactions = [OpenTransaction(connection) for connection in connections]
    for one in transactions:
        await one.transaction.start()
    yield transactions[0], transactions[1]
    for connection in connections:
        await connection.close(timeout=5)


async def blocked(work: Awaitable[T], postgres: Database) -> asyncio.Task[T]:
    """Start the work, and return once it waits for a lock."""
    watcher = await asyncpg.connect(postgres.url)
    waiting: int = await watcher.fetchval(WAITING)
    task = asyncio.ensure_future(work)
    try:
        async with asyncio.timeout(20):
            while not task.done() and await watcher.fetchval(WAITING) == waiting:
                await asyncio.wait([task], timeout=0.01)
    finally:
        await watcher.close()
    assert not task.done(), "the work did not wait for a lock"
    return task


def commit_of(job: Job, *, result: str = "1", request_id: str = "mark") -> Request:
    actor = Actor(Role.RUNNER, "worker-1", job.token)
    return Request(job=job, operations=(Commit(result),), actor=actor, request_id=request_id, fresh=True)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("by", ["another transaction", "the app"])
async def test_an_enqueue_with_the_same_dedupe_key_waits_for_the_open_transaction(
    postgres: Database,
    app: tenure.App,
    send: JobFunction[[str], str],
    two: tuple[OpenTransaction, OpenTransaction],
    end: str,
    by: str,
) -> None:
    await app.enqueue_many([send.request("a job whose policy is known from now on")])
    keyed = send.options(dedupe_key="k")
    first = await keyed.within(two[0].connection).enqueue("ada")
    asked = keyed.enqueue("ada") if by == "the app" else keyed.within(two[1].connection).enqueue("ada")
    waiting = await blocked(asked, postgres)
    await getattr(two[0], end)()
    second = await waiting
    await two[1].commit()
    assert second.created is (end == "rollback")
    assert (second.id == first.id) is (end == "commit")
    assert await second.refresh() == second.job


async def test_a_request_id_of_another_open_transaction_is_refused_and_the_transaction_continues(
    postgres: Database, app: tenure.App, send: JobFunction[[str], str], two: tuple[OpenTransaction, OpenTransaction]
) -> None:
    await app.enqueue_many([send.request("a job whose policy is known from now on")])
    once = send.options(request_id="order-7")
    first = await once.within(two[0].connection).enqueue("ada")
    waiting = await blocked(once.within(two[1].connection).enqueue("bob"), postgres)
    await two[0].commit()
    with pytest.raises(RequestIdReused, match="order-7"):
        await waiting
    other = await send.within(two[1].connection).enqueue("eve")
    await two[1].commit()
    assert (await first.refresh()).live
    assert (await other.refresh()).live


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_new_policy_of_two_concurrent_transactions_is_written_once(
    postgres: Database, send: JobFunction[[str], str], two: tuple[OpenTransaction, OpenTransaction], end: str
) -> None:
    first = await send.within(two[0].connection).enqueue("ada")
    waiting = await blocked(send.within(two[1].connection).enqueue("bob"), postgres)
    await getattr(two[0], end)()
    second = await waiting
    await two[1].commit()
    assert (await second.refresh()).policy.lease_seconds == 33
    if end == "commit":
        assert (await first.refresh()).policy == second.job.policy
    connection = await asyncpg.connect(postgres.url)
    assert await connection.fetchval("select count(*) from tenure.policies") == 1
    await connection.close()


async def test_a_mark_waits_for_a_concurrent_change_of_the_job_and_reports_the_conflict(
    postgres: Database, app: tenure.App, two: tuple[OpenTransaction, OpenTransaction]
) -> None:
    drive = Driver(await app.store())
    job = await drive.running()
    assert isinstance(await UserTransaction(two[0].connection, postgres.url).apply(commit_of(job)), Applied)
    other = commit_of(job, result="2", request_id="mark-2")
    waiting = await blocked(UserTransaction(two[1].connection, postgres.url).apply(other), postgres)
    await two[0].commit()
    outcome = await waiting
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RevisionConflict)
    await two[1].rollback()
    assert (await drive.job(job.id)).committed_result == "1"


async def test_under_repeatable_read_a_heartbeat_in_between_fails_the_mark(postgres: Database, app: tenure.App) -> None:
    """PostgreSQL refuses an update of a row that has changed since the transaction began."""
    drive = Driver(await app.store())
    job = await drive.running()
    connection = await asyncpg.connect(postgres.url)
    user = UserTransaction(connection, postgres.url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.execute("insert into notes values ('hello')")
    renewed = await drive.apply(job, Heartbeat())
    for known in (renewed, job):
        with pytest.raises(StoreError, match="READ COMMITTED"):
            await user.apply(commit_of(known))
    await transaction.rollback()
    assert not (await drive.job(job.id)).committed
    await connection.close()


async def test_under_repeatable_read_a_key_that_was_taken_since_raises_the_error_of_the_driver(
    postgres: Database, app: tenure.App, send: JobFunction[[str], str]
) -> None:
    connection = await asyncpg.connect(postgres.url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.execute("insert into notes values ('hello')")
    keyed = send.options(dedupe_key="k")
    first = await keyed.enqueue("ada")
    with pytest.raises(asyncpg.SerializationError):
        await keyed.within(connection).enqueue("ada")
    await transaction.rollback()
    async with connection.transaction(isolation="repeatable_read"):
        again = await keyed.within(connection).enqueue("ada")
    assert (again.created, again.id) == (False, first.id)
    await connection.close()
