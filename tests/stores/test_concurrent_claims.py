"""Sixty-four claimers at once: every job is claimed once, and by one of them. The log is the witness."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenure.lifecycle.records import EventType
from tenure.stores.contract import Store
from tenure.testing.driver import Driver
from tenure.testing.store_check import all_jobs, check_job
from tests.support.claimers import READY_SECONDS, claim_all, claim_in_process, claim_on_own_store
from tests.support.databases import SQLITE_IN_DEPTH, Database
from tests.support.worker_processes import all_at_once

CLAIMERS = 64
JOBS = 640
WORKERS = [f"worker-{number}" for number in range(CLAIMERS)]
SECONDS = 150

pytestmark = [pytest.mark.requirement("SM-14", "SM-02", "SM-13"), pytest.mark.timeout(300)]


async def queue_jobs(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        await store.enqueue([drive.enqueue() for _ in range(JOBS)])


async def check_claims(database: Database, won: list[list[str]]) -> None:
    """A claimer that reports a job is the one in the job's only claim, and every job was claimed."""
    async with database.opened() as store:
        owners = await owners_in_the_log(store)
    claimed = [(job_id, worker) for worker, jobs in zip(WORKERS, won, strict=True) for job_id in jobs]
    assert sorted(claimed) == sorted(owners.items())
    assert len(claimed) == JOBS
    assert sum(map(bool, won)) > 1, "one claimer won everything, so nothing was contended for"


async def owners_in_the_log(store: Store) -> dict[str, str]:
    jobs = await all_jobs(store)
    histories = await store.history([job.id for job in jobs])
    owners: dict[str, str] = {}
    for job in jobs:
        check_job(job, histories[job.id])
        [claim] = [event for event in histories[job.id] if event.type is EventType.CLAIMED]
        owners[str(job.id)] = claim.owner
    return owners


async def test_sixty_four_tasks_never_claim_the_same_job(database: Database) -> None:
    await queue_jobs(database)
    async with database.opened() as store:
        won = await asyncio.gather(*(claim_all(store, worker) for worker in WORKERS))
    await check_claims(database, list(won))


async def test_sixty_four_threads_never_claim_the_same_job(database: Database) -> None:
    await queue_jobs(database)
    barrier = threading.Barrier(CLAIMERS)

    def claim(worker: str) -> list[str]:
        return asyncio.run(claim_on_own_store(database.url, worker, ready=lambda: barrier.wait(READY_SECONDS)))

    with ThreadPoolExecutor(CLAIMERS) as threads:
        won = await asyncio.to_thread(lambda: list(threads.map(claim, WORKERS, timeout=SECONDS)))
    await check_claims(database, won)


@SQLITE_IN_DEPTH
async def test_sixty_four_processes_never_claim_the_same_job(database: Database) -> None:
    await queue_jobs(database)
    arguments = [(database.url, worker) for worker in WORKERS]
    won = await asyncio.to_thread(all_at_once, claim_in_process, arguments, seconds=SECONDS)
    await check_claims(database, won)
