"""Batches: one round trip, exactly their events, no deadlock, and no wait for a row that another session has locked."""

from __future__ import annotations

import asyncio
import re

import psycopg
import pytest

from tenure.errors import JobLocked
from tenure.lifecycle.operations import Cancel, Complete, Heartbeat, Operation, Progress, Retry
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import Status
from tenure.seams import SYSTEM
from tenure.stores import locked_rows
from tenure.stores.contract import Applied, Busy, Failure
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import CLIENT, ERROR, Driver, runner
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.support.relay import relay_to

BATCH = 500
PLENTY_SECONDS = 30.0


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
    applied = 0
    for percent in range(15):
        both = await asyncio.gather(
            drive.store.apply([drive.request(job.id, Progress(percent), actor=runner(job)) for job in jobs]),
            other.apply([drive.request(job.id, Progress(percent), actor=runner(job)) for job in reversed(jobs)]),
        )
        outcomes = [outcome for batch in both for outcome in batch]
        assert {type(outcome) for outcome in outcomes} <= {Applied, Busy}
        applied += sum(isinstance(outcome, Applied) for outcome in outcomes)
    await other.close()
    with psycopg.connect(dsn) as connection:
        [deadlocks] = connection.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone() or (None,)
    assert deadlocks == 0
    revisions = sum(job.rev for job in (await drive.store.read([job.id for job in jobs])).values())
    assert revisions == 3 * len(jobs) + applied, "each applied change is one revision, and no other is"


LOCKS = "select 1 from tenure.jobs where id = %s for update"


@pytest.mark.parametrize(
    "operation", [Heartbeat(), Complete("1"), Progress(5), Retry(ERROR)], ids=lambda operation: operation.type
)
async def test_a_locked_row_does_not_delay_the_rest_of_its_batch(dsn: str, drive: Driver, operation: Operation) -> None:
    jobs = await running(drive, 3)
    requests = [drive.request(job, operation, fresh=True) for job in jobs]
    with psycopg.connect(dsn, application_name="a forgotten session") as connection:
        connection.execute(LOCKS, (jobs[1].id,))
        async with asyncio.timeout(PLENTY_SECONDS):
            outcomes = await drive.store.apply(requests)
        pid = connection.info.backend_pid
    assert [type(outcome) for outcome in outcomes] == [Applied, Busy, Applied]
    assert isinstance(outcomes[1], Busy)
    assert outcomes[1].holder is not None
    assert f"process {pid} (a forgotten session, idle in transaction" in outcomes[1].holder
    [again] = await drive.store.apply([requests[1]])
    assert isinstance(again, Applied)


async def test_recovery_skips_a_locked_row_and_returns_to_it(
    dsn: str, drive: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [await drive.running(policy={"lease_seconds": 0.01}) for _ in range(3)]
    recovery = RecoveryWorker(drive.store, SYSTEM, name="recovery-1")
    with psycopg.connect(dsn) as connection:
        connection.execute(LOCKS, (jobs[1].id,))
        async with asyncio.timeout(PLENTY_SECONDS):
            assert await recovery.scan() == 2
    assert f"job {jobs[1].id} (mail) not recovered: its row is locked by process" in caplog.text
    assert await recovery.scan() == 1


async def test_a_client_waits_for_a_locked_row(dsn: str, drive: Driver) -> None:
    job = await drive.running()
    with psycopg.connect(dsn) as connection:
        connection.execute(LOCKS, (job.id,))
        cancelling = asyncio.create_task(drive.apply(job.id, Cancel(), actor=CLIENT))
        await asyncio.wait({cancelling}, timeout=0.1)
        assert not cancelling.done()
    async with asyncio.timeout(PLENTY_SECONDS):
        assert (await cancelling).status is Status.CANCELLED


async def test_a_client_is_refused_when_a_row_stays_locked(
    dsn: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCKED_SECONDS_MAX", 0.05)
    job = await drive.running()
    with psycopg.connect(dsn) as connection:
        connection.execute(LOCKS, (job.id,))
        [outcome] = await drive.store.apply([drive.request(job.id, Cancel(), actor=CLIENT)])
        pid = connection.info.backend_pid
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, JobLocked)
    assert re.search(rf"job {job.id} was not changed: .* locked .*process {pid}", str(outcome.error))
    assert (await drive.store.read([job.id]))[job.id].status is Status.RUNNING
