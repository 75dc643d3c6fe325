"""The default concurrency of a worker: its one definition, and that no more jobs are claimed than it starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tenure import App, InvalidInput, Run
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.stores.contract import JobFilter
from tenure.workers.concurrency import BLOCKING, TASKS
from tenure.workers.worker import Worker
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

LIMIT_SECONDS = 60


async def pause() -> None:
    """A job in a task."""


def block() -> None:
    """A job in a thread."""


def worker_of(app: App, *jobs: tuple[Callable[..., Any], dict[str, Any]], **options: Any) -> Worker:
    for function, declared in jobs:
        app.job(**declared)(function)
    return app.worker(**options)


def new_app() -> App:
    return App("sqlite:///jobs.db")


@pytest.mark.requirement("WC-05")
def test_the_default_is_for_the_jobs_that_need_most() -> None:
    assert (TASKS, BLOCKING) == (100, 10)
    assert worker_of(new_app(), (pause, {})).concurrency == TASKS
    assert worker_of(new_app(), (block, {})).concurrency == BLOCKING
    assert worker_of(new_app(), (pause, {"isolation": "process"})).concurrency == BLOCKING
    assert worker_of(new_app(), (pause, {}), (block, {})).concurrency == BLOCKING


def test_remote_jobs_need_no_slot() -> None:
    app = new_app()
    app.remote_job(block)
    assert worker_of(app, (pause, {})).concurrency == TASKS


def test_a_workflow_is_a_task() -> None:
    app = new_app()

    @app.workflow
    async def order(run: Run, number: int) -> None: ...

    assert app.worker().concurrency == TASKS


def test_a_given_number_is_used_for_all_jobs() -> None:
    assert worker_of(new_app(), (block, {}), concurrency=30).concurrency == 30
    with pytest.raises(InvalidInput, match="concurrency"):
        worker_of(new_app(), (block, {}), concurrency=0)


@pytest.fixture
async def app(database: Database) -> AsyncIterator[App]:
    async with database.opened():
        pass
    async with App(database.url) as app:
        yield app


@pytest.mark.requirement("WC-05")
async def test_no_more_tasks_are_claimed_than_the_default(app: App) -> None:
    release = asyncio.Event()

    @app.job()
    async def hold() -> None:
        await release.wait()

    await _check_runs_exactly(app, hold, TASKS, release.set)


@pytest.mark.requirement("WC-05")
async def test_no_more_jobs_are_claimed_than_the_default_has_threads_for(app: App) -> None:
    release, threads = threading.Event(), set[int]()

    @app.job()
    def hold() -> None:
        threads.add(threading.get_ident())
        release.wait(LIMIT_SECONDS)

    try:
        await _check_runs_exactly(app, hold, BLOCKING, release.set)
    finally:
        release.set()
    assert len(threads) == BLOCKING


async def _check_runs_exactly(app: App, job: Any, count: int, release: Callable[[], None]) -> None:
    """So many jobs take all slots, and no further one is leased. Once released, all of them succeed."""
    jobs = 2 * count + 5
    await app.enqueue_many(job.request() for _ in range(jobs))
    store, leased = await app.store(), JobFilter(statuses=(CLAIMED, RUNNING))
    async with working(app) as worker:
        await eventually(lambda: worker.running == count, seconds=LIMIT_SECONDS)
        # However often the pool is woken, it claims nothing more.
        for _ in range(100):
            worker._slots.changed.set()
            await asyncio.sleep(0)
        assert (worker.running, len((await store.find(leased, limit=jobs)).jobs)) == (count, count)
        release()
        await eventually(lambda: worker.counts["succeeded"] == jobs, seconds=LIMIT_SECONDS)
