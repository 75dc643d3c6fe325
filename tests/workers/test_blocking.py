"""Warnings about jobs that hold up their worker: a blocked event loop, and a wait for another job."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.stores.sqlite.store import SqliteStore
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually


@pytest.fixture
def app(tmp_path: Path) -> tenure.App:
    return tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_job_that_blocks_the_event_loop_is_named_in_a_warning(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def hog() -> None:
        ends_at = time.monotonic() + 60
        while time.monotonic() < ends_at and not any("hog" in text for text in warnings_of(caplog)):
            time.sleep(0.05)  # noqa: ASYNC251 - that is the point

    @app.job
    def sits_on_a_thread() -> None:
        time.sleep(1.5)

    async with app, working(app):
        job = await hog.enqueue()
        await job.result(90)
        await (await sits_on_a_thread.enqueue()).result(60)
    [warning] = [text for text in warnings_of(caplog) if "blocked the event loop" in text]
    assert f"job {job.id} (hog) has blocked the event loop for" in warning
    assert "declare a plain function" in warning
    assert "test_blocking.py" in warning


@pytest.mark.parametrize("sync", [False, True])
async def test_a_job_that_waits_for_another_one_is_named_in_one_warning(
    app: tenure.App, caplog: pytest.LogCaptureFixture, sync: bool
) -> None:
    @app.job
    async def child() -> str:
        await eventually(lambda: any("waits for" in text for text in warnings_of(caplog)), seconds=30)
        return "done"

    @app.job
    async def parent() -> str:
        return await (await child.enqueue()).result(30)

    @app.job
    def plain_parent() -> str:
        return child.enqueue_sync().result_sync(30)

    async with app, working(app):
        job = await (plain_parent if sync else parent).enqueue()
        assert await job.result(60) == "done"
    [warning] = [text for text in warnings_of(caplog) if "waits for" in text]
    assert warning.startswith(f"job {job.id} ({job.job.kind}) waits for job ")
    assert "workflow" in warning


def test_repeated_asyncio_run_without_closing_leaks_no_threads_and_no_descriptors(database: Database) -> None:
    app = tenure.App(database.url)
    asyncio.run(app.migrate())

    @app.job
    async def ping() -> None: ...

    async def enqueue() -> None:
        await ping.enqueue()

    async def finish() -> None:
        await app.store()
        await app.close()

    counts = []
    for _ in range(12):
        asyncio.run(enqueue())
        counts.append((threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))))
    asyncio.run(finish())
    assert counts[-1][0] <= counts[2][0] + 1
    assert counts[-1][1] <= counts[2][1] + 2


async def test_an_enqueue_on_a_file_that_the_caller_has_locked_names_within(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened():
        pass
    store = SqliteStore(str(database.path), busy_seconds=0.05)
    await store.open()
    app = tenure.App(database.url)

    @app.job
    async def ping() -> None: ...

    with closing(sqlite3.connect(database.path, isolation_level=None)) as mine:
        mine.execute("begin immediate")
        with pytest.raises(tenure.StoreUnavailable, match=r"job\.within\(connection\)\.enqueue"):
            await store.enqueue([ping.request().enqueue])
    await store.close()
