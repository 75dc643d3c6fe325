"""Three scheduler processes on one database, some of them killed: each due time leads to one job.

Every worker is a scheduler too. The schedules are due every second; the log shows which due times have jobs, and which
process enqueued them.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import DUE_TAG, SCHEDULE_TAG, Missed, Schedule, ScheduleRecord
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.stores.contract import JobFilter, Store
from tenure.testing.driver import OPERATOR
from tests.chaos.checks import check_everything, history
from tests.chaos.processes import WorkerProcess, WorkerProcesses, until
from tests.support.databases import SQLITE_IN_DEPTH

pytestmark = pytest.mark.timeout(150)

SECOND = timedelta(seconds=1)
SCAN_SECONDS = 0.2


async def scheduled(store: Store, *, missed: Missed = "all") -> datetime:
    """A schedule that is due every second; its first due time."""
    schedule = Schedule(
        name="tick",
        cron="every 1s",
        kind="nap",
        payload='{"seconds":0}',
        policy=Policy(lease_seconds=1.0),
        missed=missed,
    )
    first = (await store.now()).replace(microsecond=0) + SECOND
    written = await store.schedules.put(schedule, next_at=first, paused=False, expected_rev=0, actor=OPERATOR)
    assert written is not None
    return first


async def record_of(store: Store) -> ScheduleRecord:
    record = await store.schedules.get("tick")
    assert record is not None
    return record


async def fired(store: Store) -> Counter[str]:
    """How many jobs each due time has."""
    page = await store.find(JobFilter(tags={SCHEDULE_TAG: "tick"}), limit=10_000)
    assert page.after is None
    return Counter((job.origin.tags or {})[DUE_TAG] for job in page.jobs)


async def until_fired(store: Store, count: int) -> None:
    async def enough() -> bool:
        return len(await fired(store)) >= count

    await until(enough, f"{count} due times were fired", seconds=60)


async def stopped(store: Store) -> datetime:
    """Pause the schedule, however often it is fired meanwhile; returns the last due time that was handled."""

    async def paused() -> bool:
        record = await record_of(store)
        written = await store.schedules.put(
            record.schedule, next_at=record.next_at, paused=True, expected_rev=record.rev, actor=OPERATOR
        )
        return written is not None

    await until(paused, "the schedule is paused")
    last_at = (await record_of(store)).last_at
    assert last_at is not None
    return last_at


def every_second(first: datetime, last: datetime) -> Counter[str]:
    count = (last - first) // SECOND + 1
    times = (first + number * SECOND for number in range(count))
    return Counter(one.astimezone(UTC).isoformat().replace("+00:00", "Z") for one in times)


async def actors(store: Store) -> set[str]:
    page = await store.find(JobFilter(tags={SCHEDULE_TAG: "tick"}), limit=10_000)
    return {(await history(store, job.id))[0].actor for job in page.jobs}


async def until_has_fired(store: Store, worker: WorkerProcess) -> None:
    async def has() -> bool:
        return any(worker.signed(actor) for actor in await actors(store))

    await until(has, f"{worker} has fired", seconds=60)


@SQLITE_IN_DEPTH
async def test_each_due_time_is_fired_once_by_three_schedulers_of_which_one_is_killed(
    store: Store, processes: WorkerProcesses
) -> None:
    first = await scheduled(store)
    staff = [processes.start(name, scan_seconds=SCAN_SECONDS) for name in ("one", "two", "three")]
    await processes.up(*staff)
    await until_has_fired(store, staff[0])
    staff[0].kill9()
    before = len(await fired(store))
    await until_fired(store, before + 4)
    last = await stopped(store)
    assert await fired(store) == every_second(first, last)
    assert len(await actors(store)) >= 2, "only one of them has fired, so that they did not compete"
    await all_done(store)


@pytest.mark.deep
async def test_each_due_time_is_fired_once_after_a_time_without_schedulers(
    store: Store, processes: WorkerProcesses
) -> None:
    """The only scheduler is killed, and the next ones catch up concurrently."""
    first = await scheduled(store)
    lonely = processes.start("lonely", scan_seconds=SCAN_SECONDS)
    await until_fired(store, 2)
    lonely.kill9()
    gap_from = await store.now()

    async def some_are_missed() -> bool:
        return await store.now() - gap_from > 3 * SECOND

    await until(some_are_missed, "three due times are missed")
    await processes.up(*(processes.start(name, scan_seconds=SCAN_SECONDS) for name in ("left", "right")))

    async def made_up_for() -> bool:
        last_at = (await record_of(store)).last_at
        return last_at is not None and last_at > gap_from + 4 * SECOND

    await until(made_up_for, "they have caught up", seconds=60)
    last = await stopped(store)
    assert await fired(store) == every_second(first, last)
    await all_done(store)


@pytest.mark.deep
async def test_schedulers_whose_clocks_are_wrong_fire_by_the_databases_clock(
    store: Store, processes: WorkerProcesses
) -> None:
    first = await scheduled(store)
    staff = [
        processes.start(name, scan_seconds=SCAN_SECONDS, clock_off_seconds=off)
        for name, off in (("ahead", 3600.0), ("behind", -3600.0), ("right", 0.0))
    ]
    await processes.up(*staff)
    await until_fired(store, 5)
    last = await stopped(store)
    now = await store.now()
    assert last <= now, "it was fired before its time"
    assert await fired(store) == every_second(first, last)
    for job in (await store.find(JobFilter(tags={SCHEDULE_TAG: "tick"}), limit=1000)).jobs:
        due = datetime.fromisoformat((job.origin.tags or {})[DUE_TAG])
        assert job.created_at >= due


async def all_done(store: Store) -> None:
    """The jobs of the schedule end like all others, and the log explains them."""

    async def ended() -> bool:
        page = await store.find(JobFilter(tags={SCHEDULE_TAG: "tick"}), limit=10_000)
        return all(job.status is SUCCEEDED for job in page.jobs)

    await until(ended, "all jobs of the schedule succeeded", seconds=60)
    await check_everything(store)
