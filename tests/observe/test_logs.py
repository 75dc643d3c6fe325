"""Log records have the fields of their own job."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tenure
from tenure.jobs.context import current_context
from tenure.lifecycle.operations import Complete
from tenure.observe.log_context import JobLogFilter
from tenure.seams import SYSTEM
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver
from tenure.testing.harness.harness import Harness
from tenure.workers.completer import Completer
from tenure.workers.leases import Lease
from tests.support.databases import Database
from tests.support.faults import Fault, FaultyStore
from tests.support.running_command import started
from tests.support.server_process import wait_until

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

JOB_FIELDS = ("job_id", "job_kind", "job_attempt", "correlation_id", "trace_id")

shop = logging.getLogger("shop")


class Kept(logging.Handler):
    """Keeps the records that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobLogFilter())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def lines_with(self, message: str) -> list[dict[str, Any]]:
        return [vars(record) for record in self.records if message in record.getMessage()]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture
def app() -> tenure.App:
    return tenure.App()


@pytest.fixture
async def harness(app: tenure.App) -> AsyncIterator[Harness]:
    async with app.testing() as harness:
        yield harness


@pytest.mark.requirement("SM-16")
@pytest.mark.parametrize("plain", [False, True])
async def test_whatever_a_jobs_code_logs_carries_its_job(
    app: tenure.App, harness: Harness, kept: Kept, plain: bool
) -> None:
    if plain:

        @app.job(kind="work")
        def work(ctx: tenure.Context) -> None:
            shop.info("at work")
            ctx.logger.info("by its own logger")
    else:

        @app.job(kind="work")
        async def work(ctx: tenure.Context) -> None:
            await asyncio.create_task(below())
            ctx.logger.info("by its own logger")

    async def below() -> None:
        shop.info("at work")

    handle = await work.options(correlation_id="order-7", trace=TRACE).enqueue()
    shop.info("outside")
    await harness.drain(raise_errors=True)
    shop.info("outside")
    expected = {
        "job_id": str(handle.id),
        "job_kind": "work",
        "job_attempt": 1,
        "correlation_id": "order-7",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    for message in ("at work", "by its own logger"):
        [record] = kept.lines_with(message)
        assert {name: record[name] for name in JOB_FIELDS} == expected
    assert not any(name in record for record in kept.lines_with("outside") for name in JOB_FIELDS)


@pytest.mark.requirement("SM-16", "EH-06")
async def test_log_lines_of_concurrent_jobs_have_their_own_job_ids(database: Database, kept: Kept) -> None:
    """The worker logs a failed job in a task that writes the outcomes of many jobs."""
    async with database.opened():
        pass
    app = tenure.App(database.url)

    @app.job(max_attempts=1, on_exhausted="fail")
    async def work(number: int) -> None:
        await asyncio.sleep(0.01)
        shop.info("number %d", number)
        raise ValueError(f"number {number} failed")

    handles = [await work.options(correlation_id=f"c-{number}").enqueue(number) for number in range(20)]
    worker = app.worker(poll_seconds=0.05, grace_seconds=10, concurrency=20)
    running = asyncio.create_task(worker.run())
    for handle in handles:
        await handle.wait(20)
    worker.stop()
    await asyncio.wait_for(running, 40)
    await app.close()
    for number, handle in enumerate(handles):
        failed = kept.lines_with(f"number {number} failed), ")
        assert [(line["job_id"], line["correlation_id"]) for line in failed] == [(str(handle.id), f"c-{number}")]
        [lines_with] = [
            line for line in kept.lines_with("number ") if line["name"] == "shop" and line["args"] == (number,)
        ]
        assert (lines_with["job_id"], lines_with["job_attempt"]) == (str(handle.id), 1)
    assert not any("job_id" in line for line in kept.lines_with("claims jobs from"))


async def test_a_log_line_about_many_jobs_has_no_job_id(kept: Kept) -> None:
    """The task that writes outcomes is started by the end of some job, and works for all of them."""
    store = SqliteStore(":memory:", inline=True)
    await store.migrate()
    await store.open()
    job = await Driver(store).running()
    assert job.token is not None
    held = Lease(job, worker="w", token=job.token, sent_at_seconds=SYSTEM.clock.monotonic_seconds())
    faulty = FaultyStore(store)
    faulty.faults.append(Fault.REQUEST_LOST)
    around: Any = SimpleNamespace(job=job, id=job.id)
    token = current_context.set(around)
    try:
        await Completer(faulty, SYSTEM).write(held, "end", lambda _: Complete("1"))
        shop.info("of the job")
    finally:
        current_context.reset(token)
        await store.close()
    [waits], [own] = kept.lines_with("database unavailable, retrying"), kept.lines_with("of the job")
    assert "job_id" not in waits
    assert own["job_id"] == str(job.id)


async def test_job_fields_that_the_user_logs_are_not_overwritten(app: tenure.App, harness: Harness, kept: Kept) -> None:
    @app.job()
    async def work() -> None:
        shop.info("about another", extra={"job_id": "another"})
        shop.info("about this one", extra={"correlation_id": "mine"})

    handle = await work.enqueue()
    await harness.drain(raise_errors=True)
    [another], [this] = kept.lines_with("about another"), kept.lines_with("about this one")
    assert another["job_id"] == "another"
    assert "job_kind" not in another
    assert (this["job_id"], this["correlation_id"]) == (str(handle.id), "mine")


PROGRAM = """
import logging

import tenure

app = tenure.App("sqlite:///shop.db")


@app.job(isolation="process")
def count(number: int) -> int:
    logging.getLogger("shop").info("counted %d", number)
    return number
"""


def test_a_job_with_process_isolation_logs_like_its_worker(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    queued = "from shop import count; count.options(correlation_id='order-7').enqueue_sync(21)"
    subprocess.run([sys.executable, "-c", queued], cwd=tmp_path, check=True, timeout=60)
    with started("worker", "shop:app", "--json", folder=tmp_path) as worker:
        assert wait_until(lambda: "counted 21" in worker.log, seconds=30), worker.log
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log
    [line] = [one for one in map(json.loads, worker.log.splitlines()) if one["message"] == "counted 21"]
    assert (line["logger"], line["level"], line["job_kind"], line["job_attempt"]) == ("shop", "info", "count", 1)
    assert line["correlation_id"] == "order-7"
    assert line["pid"] != worker.process.pid
