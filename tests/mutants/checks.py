"""Checks that the mutants asked for and no other layer had."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import msgspec
import psycopg
import pytest

from tenure.errors import LeaseLost
from tenure.lifecycle.operations import Cancel, RequestCancel
from tenure.lifecycle.statuses import QUEUED, RUNNING
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, JobFilter, TransactionStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver
from tenure.workers.commit.commit import Committer
from tenure.workers.leases import Lease
from tenure.workers.maintenance.recovery import RecoveryWorker

HOUR_SECONDS = 3600.0
NOBODY = UUID(int=0)


@pytest.mark.parametrize("off_seconds", [HOUR_SECONDS, -HOUR_SECONDS])
async def recovery_goes_by_the_clock_of_the_database(off_seconds: float) -> None:
    """A worker whose clock is an hour off takes no job whose lease runs, and every job whose lease is over."""
    database, own = ManualClock(), ManualClock()
    own.advance(off_seconds)
    store = SqliteStore(":memory:", database_clock=database.now, inline=True)
    await store.migrate()
    await store.open()
    try:
        drive, mender = Driver(store), RecoveryWorker(store, Seams(clock=own), name="mender")
        job = await drive.running(policy={"lease_seconds": 60, "heartbeat_seconds": 60})
        assert await mender.scan() == 0
        assert (await drive.job(job.id)).status is RUNNING
        database.advance(60)
        assert await mender.scan() == 1, "the lease is over, and nobody took the job back"
        recovered = await drive.job(job.id)
        assert (recovered.status, (await drive.events_of(job.id))[-2].cause) == (QUEUED, "lease_expired")
    finally:
        await store.close()


async def a_block_whose_mark_is_refused_leaves_nothing_behind() -> None:
    """The lease was revoked, and its holder has not heard of it: what the block holds is undone with the mark."""
    clock = ManualClock()
    store = SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    try:
        drive = Driver(store)
        job = await drive.running()
        held = Lease(job, worker="worker-1", token=job.token or NOBODY, sent_at_seconds=clock.monotonic_seconds())
        await drive.apply(job.id, Cancel(), actor=CLIENT)
        with pytest.raises(LeaseLost):
            await _commit(Committer(held, Seams(clock=clock), partial(_itself, store)), drive.enqueue("effect"))
        left = await store.find(JobFilter(kinds=("effect",)))
        assert left.jobs == [], "the effect was kept without its mark"
    finally:
        await store.close()


class _Call(msgspec.Struct, frozen=True):
    enqueue: EnqueueRequest


async def _itself(store: TransactionStore) -> TransactionStore:
    return store


async def _commit(committer: Committer, effect: EnqueueRequest) -> None:
    async with committer.block("1", deadline_seconds=None) as tx:
        tx.enqueue(_Call(effect))


BLOCKED = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
FREE = "select id from tenure.jobs where id = any(%s) for update skip locked"


async def batches_lock_in_the_order_of_ids(dsn: str, drive: Driver) -> None:
    """A batch that waits for the second of three rows holds the first and not the third, however it was asked."""
    first, second, third = sorted([(await drive.add()).id for _ in range(3)], key=lambda job_id: job_id.bytes)
    for asked in ((first, second, third), (third, second, first)):
        requests = [drive.request(job_id, RequestCancel(), actor=CLIENT) for job_id in asked]
        with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as watcher:
            holder.execute("select from tenure.jobs where id = %s for update", [second])
            batch = asyncio.create_task(drive.store.apply(requests))
            async with asyncio.timeout(10):
                while not watcher.execute(BLOCKED).fetchone():  # noqa: ASYNC110  the condition is in another process
                    await asyncio.sleep(0.01)
            free = [row[0] for row in watcher.execute(FREE, [[first, third]])]
            holder.rollback()
        await batch
        assert free == [third], "rows are locked in the order in which they were asked for"
