"""Retention without an index on the ends of jobs: finished jobs are found by summaries of ranges of ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenure.lifecycle.operations import Complete, Fail
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import FAILED, SUCCEEDED
from tenure.stores.contract import FinishedJobs, PrunedBatch
from tenure.stores.postgres import finished_ranges
from tenure.stores.postgres.connections import Connections
from tenure.stores.postgres.finished_ranges import FinishedRanges
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import ERROR, Driver
from tenure.testing.store_check import all_jobs

MAILS = FinishedJobs(status=SUCCEEDED, kind="mail", older_than_seconds=0)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_ranges, "RANGE_JOBS", 5)


class CountingFetches:
    """Counts the ranges that are read."""

    def __init__(self, connections: Connections) -> None:
        self._connections, self.reads = connections, 0

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        self.reads += 1
        return await self._connections.fetch(name, values)

    async def reads_of(self, ranges: FinishedRanges) -> int:
        before = self.reads
        await ranges.kinds()
        return self.reads - before


async def finished(drive: Driver, count: int, kind: str = "mail", end: Any = None) -> list[Job]:
    return [await drive.apply(await drive.running(kind=kind), end or Complete("1")) for _ in range(count)]


@pytest.mark.requirement("SM-12")
async def test_jobs_of_many_ranges_are_pruned_in_batches(store: PostgresStore, drive: Driver) -> None:
    await finished(drive, 13)
    [failed] = await finished(drive, 1, end=Fail(ERROR))
    live = await drive.add()
    await finished(drive, 8)
    assert [await store.prune(MAILS, limit=9) for _ in range(3)] == [
        PrunedBatch(9, MAILS),
        PrunedBatch(9, MAILS),
        PrunedBatch(3, None),
    ]
    assert {job.id for job in await all_jobs(store)} == {failed.id, live.id}
    assert [(one.status, one.kind) for one in await store.finished_kinds()] == [(FAILED, "mail")]


@pytest.mark.requirement("SM-12")
async def test_a_job_that_was_live_when_its_range_was_read_is_found_once_it_has_ended(
    store: PostgresStore, drive: Driver
) -> None:
    running = await drive.running()
    await finished(drive, 12, kind="kept")
    assert [one.kind for one in await store.finished_kinds()] == ["kept"]
    await drive.apply(running, Complete("1"))
    assert [one.kind for one in await store.finished_kinds()] == ["kept", "mail"]
    assert await store.prune(MAILS) == PrunedBatch(1, None)


@pytest.mark.requirement("SM-12")
async def test_a_locked_job_is_left_to_the_next_pass(store: PostgresStore, drive: Driver, dsn: str) -> None:
    jobs = await finished(drive, 7)
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("select from tenure.jobs where id = $1 for update", jobs[0].id)
            assert await store.prune(MAILS) == PrunedBatch(6, None)
    finally:
        await connection.close()
    await store.finished_kinds()
    assert await store.prune(MAILS) == PrunedBatch(1, None)


async def test_ranges_of_ended_jobs_are_read_once_a_day(store: PostgresStore, drive: Driver) -> None:
    clock, fetches = ManualClock(), CountingFetches(store._connections)
    ranges = FinishedRanges(fetches, clock)
    await finished(drive, 12, kind="kept")
    assert await fetches.reads_of(ranges) == 3
    assert await fetches.reads_of(ranges) == 1, "the last range is open"
    clock.advance(finished_ranges.SUMMARY_SECONDS_MAX + 1)
    assert await fetches.reads_of(ranges) == 3


async def test_a_job_that_was_added_late_with_an_early_id_is_found_within_a_day(
    store: PostgresStore, drive: Driver
) -> None:
    clock, fetches = ManualClock(), CountingFetches(store._connections)
    ranges = FinishedRanges(fetches, clock)
    await finished(drive, 12, kind="kept")
    assert [one.kind for one in await ranges.kinds()] == ["kept"]
    await store.enqueue([drive.enqueue(kind="mail", id=UUID(int=7))])
    [late] = await drive.claim(kinds=("mail",))
    await drive.apply(late, Complete("1"))
    clock.advance(finished_ranges.SUMMARY_SECONDS_MAX + 1)
    assert [one.kind for one in await ranges.kinds()] == ["kept", "mail"]


@pytest.mark.requirement("SM-12")
async def test_a_prune_alone_finds_jobs_that_have_ended_since_the_last_one(store: PostgresStore, drive: Driver) -> None:
    await finished(drive, 3)
    assert await store.prune(MAILS) == PrunedBatch(3, None)
    await finished(drive, 2)
    assert await store.prune(MAILS) == PrunedBatch(2, None)
    assert await store.prune(MAILS) == PrunedBatch(0, None)
