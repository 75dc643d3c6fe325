"""Workers on queues with limits, on both stores: a claim that a limit refused is repeated when the limit allows it.

Workers poll so seldom that a poll cannot be the cause: what happens sooner follows a wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import tenure
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

SELDOM = 600.0
JOBS = 6


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url)
    yield app
    await app.close()


def counting(app: tenure.App, seen: list[int]) -> tenure.JobFunction[[], None]:
    """A job that records how many of it run at once."""
    at_once = 0

    @app.job()
    async def count() -> None:
        nonlocal at_once
        at_once += 1
        seen.append(at_once)
        await asyncio.sleep(0.01)
        at_once -= 1

    return count


async def is_there(app: tenure.App) -> bool:
    """Whether a worker has registered, which it does once it runs."""
    return bool(await (await app.store()).workers())


async def test_a_freed_concurrency_slot_wakes_workers(app: tenure.App) -> None:
    seen: list[int] = []
    count = counting(app, seen)
    await app.queues.put("default", concurrency_max=2)
    await app.enqueue_many(count.request() for _ in range(JOBS))
    async with working(app, poll_seconds=SELDOM, scan_seconds=0.5), working(app, poll_seconds=SELDOM, scan_seconds=0.5):
        await eventually(lambda: len(seen) == JOBS, seconds=40)
    assert max(seen) <= 2


async def test_a_rate_that_has_room_again_is_not_slept_through(app: tenure.App) -> None:
    seen: list[int] = []
    count = counting(app, seen)
    await app.queues.put("default", rate=tenure.Rate(2, 0.5))
    await app.enqueue_many(count.request() for _ in range(JOBS))
    async with working(app, poll_seconds=SELDOM, scan_seconds=0.5) as worker:
        await eventually(lambda: len(seen) == JOBS, seconds=40)
    assert worker.counts["succeeded"] == JOBS


async def test_resuming_a_queue_wakes_its_workers(app: tenure.App) -> None:
    seen: list[int] = []
    count = counting(app, seen)
    await app.queues.pause("default")
    await app.enqueue_many(count.request() for _ in range(JOBS))
    async with working(app, poll_seconds=SELDOM, scan_seconds=0.5) as worker:
        await eventually(lambda: is_there(app))
        assert worker.counts["claimed"] == 0
        await app.queues.resume("default")
        await eventually(lambda: len(seen) == JOBS, seconds=40)
