"""A session that keeps one job's row locked delays that job and no other."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

import tenure
from tenure.lifecycle.statuses import RUNNING
from tenure.workers import completer
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

JOBS = 40
LOCKS = "select 1 from tenure.jobs where id = %s for update"


@pytest.mark.requirement("WC-05", "WC-10")
async def test_other_jobs_finish_while_one_row_is_locked(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(completer, "LOCKED_WARNING_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "tenure.workers")
    async with Database(postgres_dsn).opened():
        pass
    app = tenure.App(postgres_dsn)
    go = asyncio.Event()

    @app.job()
    async def first() -> str:
        await go.wait()
        return "first"

    @app.job()
    async def other(number: int) -> int:
        return number

    async def running() -> bool:
        return (await locked.refresh()).status is RUNNING

    async with app:
        locked = await first.enqueue()
        async with working(app, concurrency=5):
            await eventually(running)
            with psycopg.connect(postgres_dsn, application_name="forgotten") as session:
                session.execute(LOCKS, (locked.id,))
                go.set()
                jobs = await app.enqueue_many(other.request(number) for number in range(JOBS))
                assert [await job.result(60) for job in jobs] == list(range(JOBS))
                await eventually(lambda: "outcome not written" in caplog.text)
                assert (await locked.refresh()).status is RUNNING
                pid = session.info.backend_pid
            assert await locked.result(60) == "first"
            assert (await locked.refresh()).attempt == 1
    assert f"its row is locked by process {pid} (forgotten, idle in transaction" in caplog.text
