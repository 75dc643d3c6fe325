"""The log's tail never skips what commits late, and wake-ups come through without being needed."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from tenure.stores.postgres.connections import Address
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import CLIENT, Driver

ENQUEUE = """select created from tenure.enqueue_jobs(array[%(id)s]::uuid[], array['mail'], array['default'],
    array[0]::smallint[], array['{}'], array[1], array[%(key)s]::text[], array[null]::text[], array[null]::text[],
    array[null]::text[], array[null]::text[], array[null]::text[], array[null]::text[], array[null]::uuid[],
    array[null]::uuid[], array[false], array[0]::bigint[], array[null]::timestamptz[], array['x'], array[null]::text[],
    array[null]::text[], array['client:psql'], 1::smallint)"""

BLOCKED = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def enqueue(connection: psycopg.Connection, job_id: UUID, key: str | None = None) -> bool:
    [created] = connection.execute(ENQUEUE, {"id": job_id, "key": key}).fetchone() or (False,)
    return bool(created)


async def followed(drive: Driver, position: str | None, *, count: int) -> tuple[list[UUID], str]:
    """The next events of the tail. A transaction of any database of the server holds it back for a short time."""
    async with asyncio.timeout(30):
        while True:
            page = await drive.store.tail(after=position)
            if len(page.events) >= count:
                return [event.job_id for event in page.events], page.position
            await asyncio.sleep(0.01)


@pytest.mark.requirement("EL-05", "SM-04")
async def test_the_tail_waits_for_a_transaction_that_commits_late(dsn: str, drive: Driver) -> None:
    first = await drive.add()
    with psycopg.connect(dsn) as late:
        late_id = drive.random.job_id()
        assert enqueue(late, late_id)
        after = await drive.add()
        seen, position = await followed(drive, None, count=1)
        assert seen == [first.id], "an event was shown while one before it was still open"
        late.commit()
    seen, _ = await followed(drive, position, count=2)
    assert seen == [late_id, after.id]


@pytest.mark.requirement("LC-11")
async def test_an_enqueue_waits_for_an_uncommitted_one_with_its_dedupe_key(dsn: str, drive: Driver) -> None:
    await drive.add()
    for commits in (True, False):
        with psycopg.connect(dsn) as other:
            theirs = drive.random.job_id()
            assert enqueue(other, theirs, f"key-{commits}")
            mine = asyncio.create_task(drive.add(dedupe_key=f"key-{commits}"))
            await _until_blocked(dsn)
            other.commit() if commits else other.rollback()
        job = await asyncio.wait_for(mine, 10)
        assert (job.id == theirs) is commits


async def _until_blocked(dsn: str) -> None:
    async with asyncio.timeout(10):
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while not watcher.execute(BLOCKED).fetchone():  # noqa: ASYNC110  the condition is in another process
                await asyncio.sleep(0.01)


async def test_a_job_enqueued_in_a_transaction_that_rolls_back_was_never_there(dsn: str, drive: Driver) -> None:
    await drive.add()
    job_id = drive.random.job_id()
    with psycopg.connect(dsn) as connection:
        assert enqueue(connection, job_id)
        connection.rollback()
    assert await drive.store.read([job_id]) == {}
    assert (await drive.store.history([job_id]))[job_id] == []


async def test_a_listener_is_woken_by_another_process_and_only_for_its_queues(dsn: str, drive: Driver) -> None:
    other = PostgresStore.from_url(dsn)
    await other.open()
    async with other.wakeups(["default"]) as mine, other.wakeups(["elsewhere"]) as theirs:
        assert await mine.wait(10), "a new listener is woken once"
        assert await theirs.wait(10)
        await drive.add()
        assert await mine.wait(10)
        assert not await theirs.wait(0.05)
    await other.close()


async def test_a_listener_reconnects_after_its_connection_was_cut(dsn: str, drive: Driver) -> None:
    other = PostgresStore.from_url(dsn)
    await other.open()
    async with other.wakeups(["default"]) as mine:
        assert await mine.wait(10)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query ilike 'listen%'"
            )
        assert await mine.wait(10), "after a gap every subscription is woken once"
        await drive.add()
        assert await mine.wait(10)
    await other.close()


@pytest.mark.requirement("EL-05", "SM-04")
async def test_what_commits_late_comes_after_the_end_of_the_log(dsn: str, drive: Driver) -> None:
    first = await drive.add()
    assert (await followed(drive, None, count=1))[0] == [first.id]
    with psycopg.connect(dsn) as late:
        late_id = drive.random.job_id()
        assert enqueue(late, late_id)
        after = await drive.add()
        end = await drive.store.end()
        late.commit()
    seen, _ = await followed(drive, end, count=2)
    assert seen == [late_id, after.id]


@pytest.mark.requirement("LC-10")
async def test_the_view_has_the_values_that_the_table_omits(dsn: str, drive: Driver) -> None:
    job = await drive.running()
    named = await drive.add(request_id="named")
    with psycopg.connect(dsn) as connection:
        asked = "select type, from_status, to_status, actor, request_id from tenure.{} where job_id = %s order by rev"
        table = connection.execute(asked.format("events"), (job.id,)).fetchall()
        view = connection.execute(asked.format("log"), (job.id,)).fetchall()
        [origin] = connection.execute(asked.format("log"), (named.id,)).fetchall()
    events = [(e.type, e.from_status, e.to_status, e.actor, e.request_id) for e in await drive.events_of(job.id)]
    assert [row[:3] for row in table] == [("enqueued", None, "queued"), ("claimed", "queued", "running")]
    assert [row[:3] for row in view] == [
        ("enqueued", None, "queued"),
        ("claimed", "queued", "claimed"),
        ("started", "claimed", "running"),
    ]
    assert view == events
    assert table[0][3:] == (str(CLIENT), None)
    assert view[0][4] == str(job.id)
    assert origin[4] == "named"


async def test_a_store_with_one_connection_prepares_itself_too(dsn: str) -> None:
    store = PostgresStore(Address.from_url(dsn), connections=1)
    await store.open()
    async with asyncio.timeout(30):
        await store.prepare()
        assert await store.recoverable(limit=1) == [], "the one connection is free again"
    await store.close()
