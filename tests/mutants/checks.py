"""Checks that only mutants need."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import msgspec
import psycopg
import pytest

from tenure.errors import LeaseLost
from tenure.lifecycle.operations import Cancel, Progress
from tenure.lifecycle.statuses import QUEUED, RUNNING
from tenure.seams import Seams
from tenure.stores.contract import Applied, Busy, EnqueueRequest, JobFilter, TransactionStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver
from tenure.workers.commit.commit import Committer
from tenure.workers.leases import Lease
from tenure.workers.maintenance.recovery import RecoveryWorker

HOUR_SECONDS = 3600.0
UNKNOWN_ID = UUID(int=0)


@pytest.mark.parametrize("off_seconds", [HOUR_SECONDS, -HOUR_SECONDS])
async def recovery_goes_by_the_clock_of_the_database(off_seconds: float) -> None:
    """A worker whose clock is an hour off recovers no job under a valid lease, and every job whose lease has
    expired."""
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
        assert await mender.scan() == 1, "the lease has expired, and the job was not recovered"
        recovered = await drive.job(job.id)
        assert (recovered.status, (await drive.events_of(job.id))[-2].cause) == (QUEUED, "lease_expired")
    finally:
        await store.close()


async def a_block_whose_mark_is_refused_leaves_nothing_behind() -> None:
    """The lease was revoked, and its owner does not know: the block is rolled back with the mark."""
    clock = ManualClock()
    store = SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    try:
        drive = Driver(store)
        job = await drive.running()
        held = Lease(job, worker="worker-1", token=job.token or UNKNOWN_ID, sent_at_seconds=clock.monotonic_seconds())
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


async def batches_skip_locked_rows(dsn: str, drive: Driver) -> None:
    """A batch is written while another session has locked one of its rows."""
    await drive.store.enqueue([drive.enqueue() for _ in range(3)])
    jobs = await drive.claim(limit=3)
    requests = [drive.request(job, Progress(5), fresh=True) for job in jobs]
    with psycopg.connect(dsn) as holder:
        holder.execute("select from tenure.jobs where id = %s for update", [jobs[1].id])
        batch = asyncio.create_task(drive.store.apply(requests))
        done, _ = await asyncio.wait({batch}, timeout=5)
        holder.rollback()
    outcomes = await batch
    assert done, "a batch waited for a row that another session has locked"
    assert [type(outcome) for outcome in outcomes] == [Applied, Busy, Applied]
