"""Sessions that wait for each other: the second one sees what the first has committed, and decides accordingly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import psycopg
import pytest

from tenure.errors import JobNotFound, StoreUnavailable
from tenure.lifecycle.operations import Complete, Heartbeat, Progress
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.stores.contract import Applied
from tenure.stores.postgres import connections
from tenure.stores.postgres.connections import Session, fetch
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import OPERATOR, Driver, prune_finished
from tenure.testing.store_check import whole_tail
from tests.stores.postgres.test_contention import (
    test_a_repetition_waits_for_the_claim_that_is_under_way as a_repetition_waits,
)
from tests.stores.postgres.test_contention import waiting
from tests.support.waiting import eventually


@asynccontextmanager
async def beside(dsn: str) -> AsyncIterator[Driver]:
    """Another process, as far as the database can see."""
    store = PostgresStore.from_url(dsn)
    await store.open()
    try:
        yield Driver(store)
    finally:
        await store.close()


def revisions(events: list[Any]) -> list[int]:
    return [event.rev for event in events]


@pytest.mark.requirement("SM-04")
async def test_a_job_enqueued_while_a_claim_waited_for_limits_is_dated_before_its_claim(
    dsn: str, drive: Driver
) -> None:
    for queue in ("a", "b"):
        await drive.store.queues.put(queue, QueueLimits(concurrency_max=5), actor=OPERATOR)
    await drive.claim(queues=("a", "b"))  # from now on the store knows that they have limits
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("select from tenure.queues where name = 'b' for update")
        claim = asyncio.ensure_future(drive.claim(queues=("a", "b")))
        await eventually(lambda: waiting(watcher) == 1)
        job = await drive.add(queue="a")
        blocker.rollback()
    assert [one.id for one in await claim] == [job.id]
    assert revisions(await whole_tail(drive.store, expected=3)) == [1, 2, 3]


@pytest.mark.requirement("SM-04")
async def test_a_heartbeat_in_a_transaction_comes_after_what_was_written_beside_it(dsn: str, drive: Driver) -> None:
    job = await drive.running(policy={"lease_seconds": 60.0})
    async with beside(dsn) as other, drive.store.transaction(deadline_seconds=30) as block:
        await block.execute("create table effects (job_id text)")
        reported = await other.apply(job, Progress(50))
        assert isinstance(await block.apply(drive.request(reported, Heartbeat())), Applied)
    assert revisions(await whole_tail(drive.store, expected=5)) == [1, 2, 3, 4, 5]


@pytest.mark.requirement("SM-04", "WC-02")
async def test_it_does_not_depend_on_the_isolation_that_a_database_has_by_default(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format('alter database %I set default_transaction_isolation = ''repeatable read''',"
            " current_database()); end $$"
        )
    async with beside(dsn) as drive:
        await a_repetition_waits(dsn, drive)
        async with drive.store._connections.transaction() as session:  # type: ignore[attr-defined]
            assert await session.fetchval("show transaction_isolation") == "read committed"


@pytest.mark.requirement("SM-07")
async def test_an_enqueue_that_is_answered_twice_at_once_has_one_answer(dsn: str, drive: Driver) -> None:
    first = await drive.running(dedupe_key="order 7")
    asked = drive.enqueue(dedupe_key="order 7", request_id="again")
    with psycopg.connect(dsn, autocommit=True) as watcher:
        async with beside(dsn) as other:
            async with drive.store.transaction(deadline_seconds=30) as block:
                [answer] = await block.enqueue([asked])
                await other.apply(first, Complete("1"))
                assert (await other.add(dedupe_key="order 7")).id != first.id
                repeated = asyncio.ensure_future(other.store.enqueue([asked]))
                await eventually(lambda: waiting(watcher) == 1)
            [again] = await repeated
    assert (answer.job.id, answer.created) == (again.job.id, again.created) == (first.id, False)


async def test_a_job_that_is_pruned_while_it_is_read_is_reported_as_missing(
    dsn: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drive.enqueue(request_id="old")
    [added] = await drive.store.enqueue([asked])
    await drive.apply((await drive.claim(start=True))[0], Complete("1"))
    store = drive.store
    assert isinstance(store, PostgresStore)
    ask = store._connections.fetch

    async def with_retention_before_it(name: str, values: Mapping[str, Any]) -> list[Any]:
        if name == "jobs/select":
            await prune(drive)
        return await ask(name, values)

    monkeypatch.setattr(store._connections, "fetch", with_retention_before_it)
    with pytest.raises(JobNotFound) as gone:
        await store.enqueue([asked])
    assert gone.value.job_id == added.job.id
    monkeypatch.undo()
    [anew] = await store.enqueue([asked])
    assert anew.created


async def prune(drive: Driver, *, limit: int = 1000) -> int:
    return await prune_finished(drive.store, older_than_seconds=0, limit=limit)


async def two_that_were_claimed_together(drive: Driver) -> list[Any]:
    for _ in range(2):
        await drive.add()
    return [await drive.apply(job, Complete("1")) for job in await drive.claim(limit=2, start=True)]


async def test_retention_beside_retention_forgets_a_claim_with_the_last_of_its_jobs(dsn: str, drive: Driver) -> None:
    ended = await two_that_were_claimed_together(drive)
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("select from tenure.events where job_id = any (%s) for update", [[job.id for job in ended]])
        both = [asyncio.ensure_future(prune(drive, limit=1)) for _ in range(2)]
        await eventually(lambda: waiting(watcher) == 2)
        blocker.rollback()
        assert [await one for one in both] == [1, 1]
        assert watcher.execute("select count(*) from tenure.claims").fetchone() == (0,)


async def test_retention_that_meets_a_deadlock_is_done_again(dsn: str, drive: Driver) -> None:
    ended = await two_that_were_claimed_together(drive)
    # PostgreSQL looks for a deadlock once, so long after a wait began: by then there must be one.
    async with cast(PostgresStore, drive.store)._connections.session() as pruner:
        await pruner.execute("set deadlock_timeout = '5s'")
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("set deadlock_timeout = '5min'")  # so that it is not the one that gives way
        blocker.execute("select from tenure.events where job_id = %s for update", [ended[1].id])
        pruning = asyncio.ensure_future(prune(drive))
        await eventually(lambda: waiting(watcher) == 1)
        await asyncio.to_thread(blocker.execute, "select from tenure.jobs where id = %s for update", [ended[0].id])
        blocker.rollback()
        # Done again before the other has let go of the job that it got, it passes that one over.
        pruned = await pruning
        assert pruned in (1, 2)
        assert pruned + await prune(drive) == 2


async def test_a_claimer_that_freezes_while_it_holds_a_queue_does_not_hold_it_for_long(
    dsn: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_MAX", "100ms")
    store = drive.store
    assert isinstance(store, PostgresStore)
    await store.queues.put("default", QueueLimits(concurrency_max=5), actor=OPERATOR)
    job = await drive.add()
    held, go_on = asyncio.Event(), asyncio.Event()

    async def freeze(session: Session) -> None:
        await fetch(session, "queues/lock_limited", {"queues": ["default"]})
        held.set()
        await go_on.wait()
        await fetch(session, "queues/lock_limited", {"queues": ["default"]})

    frozen = asyncio.ensure_future(store._connections.write("store", freeze))
    await held.wait()
    monkeypatch.undo()
    async with asyncio.timeout(30):
        assert [one.id for one in await drive.claim()] == [job.id]
    go_on.set()
    with pytest.raises(StoreUnavailable):
        await frozen


async def test_a_queue_change_returns_the_record_after_the_change_it_waited_for(dsn: str, drive: Driver) -> None:
    queues = drive.store.queues
    await queues.put("mail", QueueLimits(concurrency_max=5), actor=OPERATOR)
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as other:
        other.execute("update tenure.queues set paused_at = now() where name = 'mail'")
        pausing = asyncio.ensure_future(queues.pause("mail", actor=OPERATOR))
        await eventually(lambda: waiting(watcher) == 1)
        other.commit()
        assert (await pausing).paused_at is not None
        other.execute("update tenure.queues set paused_at = null where name = 'mail'")
        resuming = asyncio.ensure_future(queues.resume("mail", actor=OPERATOR))
        await eventually(lambda: waiting(watcher) == 1)
        other.commit()
        resumed = await resuming
    assert resumed is not None
    assert resumed.paused_at is None


async def test_a_queue_is_forgotten_with_what_a_claim_spent_while_that_was_waited_for(dsn: str, drive: Driver) -> None:
    queues = drive.store.queues
    await queues.put("mail", QueueLimits(key_rate=Rate(1, 60)), actor=OPERATOR)
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as claimer:
        claimer.execute("select from tenure.queues where name = 'mail' for no key update")
        forgetting = asyncio.ensure_future(queues.forget("mail", actor=OPERATOR))
        await eventually(lambda: waiting(watcher) == 1)
        claimer.execute("insert into tenure.rate_usage values ('mail', 'ada', '{}', now())")
        claimer.commit()
        assert await forgetting
        assert watcher.execute("select count(*) from tenure.rate_usage").fetchone() == (0,)
