"""Eight workers on a queue with limits, some of them killed: limits are neither exceeded nor left unused.

By the log: a job counts from its claim to the event that ends its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import LEASED
from tenure.stores.contract import Store
from tenure.testing.driver import OPERATOR, Driver
from tests.chaos.checks import check_everything, ended
from tests.chaos.processes import WorkerProcesses, until
from tests.support.databases import Database

pytestmark = [pytest.mark.requirement("WC-02", "WC-05"), pytest.mark.timeout(240)]

WORKERS, KILLED = 8, 3
JOBS, KEYS = 160, 8
CONCURRENCY, KEY_CONCURRENCY = 6, 2
RATE = Rate(40, 1.0)
POLICY = {"lease_seconds": 2.0, "max_attempts": 10, "on_exhausted": "fail"}


async def fill(store: Store) -> list[UUID]:
    """Jobs of eight keys, the first of which has half of them."""
    drive = Driver(store)
    keys = ["k0"] * (JOBS // 2) + [f"k{number % KEYS}" for number in range(JOBS // 2)]
    enqueues = [drive.enqueue("nap", policy=POLICY, payload='{"seconds":0.04}', partition_key=key) for key in keys]
    return [one.job.id for one in await store.enqueue(enqueues)]


@pytest.mark.deep
async def test_limits_are_neither_exceeded_nor_left_unused_when_workers_are_killed(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    rules = QueueLimits(concurrency_max=CONCURRENCY, key_concurrency_max=KEY_CONCURRENCY, rate=RATE, fair=True)
    await store.queues.put("default", rules, actor=OPERATOR)
    workers = [processes.start(f"worker-{number}", concurrency=CONCURRENCY) for number in range(WORKERS)]
    await processes.up(*workers)
    ids = await fill(store)

    async def so_many_are_done(count: int) -> bool:
        return sum(not job.live for job in (await store.read(ids)).values()) >= count

    for number, victim in enumerate(workers[:KILLED], start=1):
        await until(partial(so_many_are_done, number * 20), f"{number * 20} are done", seconds=90)
        victim.kill9()
    jobs = await ended(store, ids, seconds=150)

    assert {job.status for job in jobs} == {"succeeded"}
    await check_everything(store)
    histories = await store.history(ids)
    used = leased_spans(jobs, histories)
    assert most_at_once(used.values()) == CONCURRENCY, "it was never passed, and was reached"
    for key in {job.origin.partition_key for job in jobs}:
        of_key = [used[job.id] for job in jobs if job.origin.partition_key == key]
        assert most_at_once(of_key) <= KEY_CONCURRENCY
    check_rate(event.at for events in histories.values() for event in events if event.type is EventType.CLAIMED)
    assert (await store.queues.known())[0].leased == 0, "no job counts against the limit any more"


Span = tuple[datetime, datetime]


def leased_spans(jobs: Iterable[Job], histories: dict[UUID, list[Event]]) -> dict[UUID, list[Span]]:
    """For each job the intervals in which it was leased."""
    spans: dict[UUID, list[Span]] = {}
    for job in jobs:
        begun: datetime | None = None
        spans[job.id] = []
        for event in histories[job.id]:
            if event.type is EventType.CLAIMED:
                begun = event.at
            elif begun is not None and event.to_status not in LEASED:
                spans[job.id].append((begun, event.at))
                begun = None
        assert begun is None, "it has ended, and yet it is held"
    return spans


def most_at_once(spans: Iterable[list[Span]]) -> int:
    """If one lease ends at the timestamp at which another begins, its slot was free."""
    turns = [
        (at_time, change) for of_one in spans for span in of_one for at_time, change in zip(span, (1, -1), strict=True)
    ]
    held = most = 0
    for _, change in sorted(turns):
        held += change
        most = max(most, held)
    return most


def check_rate(claims: Iterable[datetime]) -> None:
    starts = sorted(claims)
    within: Counter[datetime] = Counter()
    for first in starts:
        within[first] = sum(first <= one < first + timedelta(seconds=RATE.seconds) for one in starts)
    assert max(within.values()) <= RATE.count
