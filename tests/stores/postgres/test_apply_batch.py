"""Batches: one round trip, exactly their events, no deadlock, and nobody waits for somebody else's row."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.lifecycle.operations import Complete, Heartbeat, Progress
from tenure.lifecycle.records import Job
from tenure.stores.contract import Applied, Busy
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver, runner
from tests.support.relay import relay_to

BATCH = 500


async def running(drive: Driver, count: int) -> list[Job]:
    await drive.store.enqueue([drive.enqueue() for _ in range(count)])
    return await drive.claim(limit=count)


def events(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        [count] = connection.execute("select count(*) from tenure.log").fetchone() or (0,)
        return int(count)


@pytest.mark.requirement("LC-10", "SM-04")
async def test_a_batch_writes_exactly_its_events_in_one_round_trip_a_step(dsn: str, drive: Driver) -> None:
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        for measured in (False, False, True):  # the first passes prepare the statements
            await drive.store.enqueue([drive.enqueue() for _ in range(BATCH)])
            written, trips = events(dsn), relay.round_trips
            jobs = await store.claim(drive.claim_request(limit=BATCH))
            claimed_trips, claimed = relay.round_trips - trips, events(dsn) - written
            written, trips = events(dsn), relay.round_trips
            requests = [drive.request(job, Complete("1"), fresh=True) for job in jobs]
            outcomes = await store.apply(requests)
            completed_trips, completed = relay.round_trips - trips, events(dsn) - written
            assert all(isinstance(outcome, Applied) for outcome in outcomes)
            assert (len(jobs), claimed, completed) == (BATCH, 2 * BATCH, BATCH)
            if measured:
                assert (claimed_trips, completed_trips) == (1, 1)
        await store.close()


async def test_two_batches_in_opposite_order_do_not_deadlock(dsn: str, drive: Driver) -> None:
    other = PostgresStore.from_url(dsn)
    await other.open()
    jobs = await running(drive, 40)
    for percent in range(15):
        await asyncio.gather(
            drive.store.apply([drive.request(job.id, Progress(percent), actor=runner(job)) for job in jobs]),
            other.apply([drive.request(job.id, Progress(percent), actor=runner(job)) for job in reversed(jobs)]),
        )
    await other.close()
    with psycopg.connect(dsn) as connection:
        [deadlocks] = connection.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone() or (None,)
    assert deadlocks == 0
    assert {job.rev for job in (await drive.store.read([job.id for job in jobs])).values()} == {3 + 30}


async def test_a_row_that_someone_has_locked_does_not_hold_up_a_heartbeat_batch(dsn: str, drive: Driver) -> None:
    jobs = await running(drive, 3)
    beats = [drive.request(job, Heartbeat(), fresh=True) for job in jobs]
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1 from tenure.jobs where id = %s for update", (jobs[1].id,))
        async with asyncio.timeout(10):
            outcomes = await drive.store.apply(beats)
    assert [type(outcome) for outcome in outcomes] == [Applied, Busy, Applied]
    [again] = await drive.store.apply([beats[1]])
    assert isinstance(again, Applied)
