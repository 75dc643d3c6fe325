"""Jobs driven through the whole lifecycle by eight processes: one event per transition, in order, none missing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import EventType
from tenure.stores.contract import JobFilter, Store
from tenure.testing.store_check import check_job
from tests.support.databases import Database
from tests.support.lifecycle_worker import ENDS, path_of, run_lifecycle_worker
from tests.support.worker_processes import all_at_once

PROCESSES = 8

pytestmark = [pytest.mark.requirement("SM-04", "SM-03", "SM-02", "LC-08", "LC-09", "LC-10", "EL-02", "WC-11")]


@pytest.mark.timeout(300)
async def test_a_thousand_jobs_live_through_everything(database: Database) -> None:
    await check_full_lifecycle(database, jobs=1_000, seconds=240)


@pytest.mark.deep
@pytest.mark.timeout(300)
async def test_five_thousand_jobs_live_through_everything(database: Database) -> None:
    await check_full_lifecycle(database, jobs=5_000, seconds=240)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_hundred_thousand_jobs_live_through_everything(database: Database) -> None:
    await check_full_lifecycle(database, jobs=100_000, seconds=3000)


async def check_full_lifecycle(database: Database, *, jobs: int, seconds: float) -> None:
    async with database.opened():
        pass
    share = jobs // PROCESSES
    arguments = [(database.url, f"worker-{n}", n * share, share, seconds) for n in range(PROCESSES)]
    applied = await asyncio.to_thread(all_at_once, run_lifecycle_worker, arguments, seconds=seconds)
    async with database.opened() as store:
        seen = await check_everything(store)
        assert await count_tail(store, expected=seen["events"]) == seen["events"]
    assert seen["jobs"] == jobs
    assert min(applied) > 0, f"some process did nothing: {applied}"


async def check_everything(store: Store) -> Counter[str]:
    """Every job ended as its payload demands, and its log folds to its row. Returns the numbers of jobs and events."""
    seen: Counter[str] = Counter()
    after = None
    while True:
        page = await store.find(JobFilter(), after=after, limit=1000)
        histories = await store.history([job.id for job in page.jobs])
        for job in page.jobs:
            events = histories[job.id]
            check_job(job, events)
            status, claims = ENDS[path_of(job)]
            assert job.status.value == status, f"{path_of(job)} ended as {job.status}: {[e.type.value for e in events]}"
            assert job.attempt >= claims
            assert sum(event.type is EventType.CLAIMED for event in events) == job.attempt == len(executions(events))
            seen["jobs"] += 1
            seen["events"] += len(events)
        if page.after is None:
            return seen
        after = page.after


async def count_tail(store: Store, *, expected: int) -> int:
    """How many events the tail shows, each once, in the order of each job's revisions."""
    count, position = 0, None
    last: dict[object, int] = {}
    for _ in range(100 + expected):
        page = await store.tail(after=position, limit=5000)
        for event in page.events:
            assert event.rev == last.get(event.job_id, 0) + 1
            last[event.job_id] = event.rev
        count, position = count + len(page.events), page.position
        if not page.events and count >= expected:
            return count
        await asyncio.sleep(0 if page.events else 0.01)
    return count
