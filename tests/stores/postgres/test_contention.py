"""Locks of other sessions, poisoned rows, a read-only database: due jobs are found, and errors name the remedy."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tenure.errors import StoreError, StoreUnavailable
from tenure.lifecycle.operations import Complete
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver
from tests.support.waiting import eventually

WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def waiting(connection: psycopg.Connection) -> int:
    """How many sessions wait for a lock."""
    [count] = connection.execute(WAITING).fetchone() or (0,)
    return int(count)


@pytest.mark.requirement("WC-02")
@pytest.mark.parametrize("locked", [{"priority": 10}, {"queue": "other", "priority": 10}])
async def test_a_row_that_someone_has_locked_does_not_hide_what_is_due_behind_it(
    dsn: str, drive: Driver, locked: dict[str, Any]
) -> None:
    first = await drive.add(**locked)
    rest = [await drive.add() for _ in range(5)]
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1 from tenure.jobs where id = %s for update", (first.id,))
        for job in rest:
            won = await drive.claim(limit=1, queues=("default", "other"))
            assert [one.id for one in won] == [job.id]
    assert [one.id for one in await drive.claim(queues=("default", "other"))] == [first.id]


@pytest.mark.requirement("SM-14", "WC-02")
async def test_claimers_over_many_priorities_do_not_come_back_empty_while_work_is_due(dsn: str, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue(priority=n % 8) for n in range(160)])
    stores = [PostgresStore.from_url(dsn) for _ in range(4)]
    for store in stores:
        await store.open()
    won: list[object] = []
    while len(won) < 160:
        claims = [stores[n % 4].claim(drive.claim_request(limit=1)) for n in range(16)]
        answers = await asyncio.gather(*claims)
        assert all(answers[: 160 - len(won)]), "a claim came back empty while jobs were due"
        won += [job.id for jobs in answers for job in jobs]
    assert len(set(won)) == 160
    for store in stores:
        await store.close()


@pytest.mark.requirement("WC-02")
async def test_a_repetition_waits_for_the_claim_that_is_under_way(dsn: str, drive: Driver) -> None:
    jobs = [await drive.add() for _ in range(3)]
    request = drive.claim_request(limit=3)
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("set local tenure.writer = 'store'")
        blocker.execute("insert into tenure.claims values (%s, '', now(), '{}')", (request.request_id,))
        first = asyncio.ensure_future(drive.store.claim(request))
        await eventually(lambda: waiting(watcher) == 1)  # it has all of the jobs, and would write its answer down
        again = asyncio.ensure_future(drive.store.claim(request))
        await eventually(lambda: waiting(watcher) == 2 or again.done())
        blocker.rollback()
    won = [[job.id for job in await claim] for claim in (first, again)]
    assert won == [[job.id for job in jobs]] * 2


async def test_a_row_that_cannot_be_decoded_does_not_block_the_others(dsn: str, drive: Driver) -> None:
    poisoned = await drive.add(tags={"tenant": "x"}, policy={"lease_seconds": 0.05})
    good = await drive.add(policy={"lease_seconds": 0.05})
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("update tenure.jobs set tags = 'tenant=x' where id = %s", (poisoned.id,))
    assert [job.id for job in await drive.claim(limit=10)] == [good.id]
    async with asyncio.timeout(10):
        while [job.id for job in await drive.store.recoverable(limit=10)] != [good.id]:  # noqa: ASYNC110  lease runs out
            await asyncio.sleep(0.02)


async def test_a_database_that_takes_no_writes_is_unavailable_and_not_a_bug(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format('alter database %I set default_transaction_read_only = on', "
            "current_database()); end $$"
        )
    store = PostgresStore.from_url(dsn)
    await store.open()
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        await Driver(store).add()
    await store.close()


async def test_a_role_without_rights_gets_an_error_with_advice(dsn: str, drive: Driver) -> None:
    await drive.add()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("do $$ begin create role weak login; exception when duplicate_object then null; end $$")
    user = dsn.split("//")[1].split("@", maxsplit=1)[0]
    weak = PostgresStore.from_url(dsn.replace(f"//{user}@", "//weak@"))
    with pytest.raises(StoreError, match="permission denied"):
        await weak.open()
    await weak.close()


async def test_the_name_of_a_worker_may_hold_colons(drive: Driver) -> None:
    await drive.add()
    [job] = await drive.claim(worker="host:77:abc")
    await drive.apply(job, Complete("1"))
    [execution] = await drive.store.executions(job.id)
    assert execution.lease_owner == "host:77:abc"
