"""A worker in this process, on both stores: what it takes, what it finishes, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tenure
from tenure.errors import InvalidInput
from tenure.lifecycle.statuses import CANCELLED, FAILED, QUEUED, RUNNING, STALLED, SUCCEEDED
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

SELDOM = 600.0
"""Too long for a test: what happens sooner follows a wake-up."""


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url, version="2026.11")
    yield app
    await app.close()


async def test_async_and_plain_functions_run_to_their_results(app: tenure.App) -> None:
    @app.job()
    async def double(n: int) -> int:
        return 2 * n

    @app.job()
    def triple(ctx: tenure.Context, n: int) -> list[int]:
        ctx.progress(50, "half way")
        return [n, ctx.attempt]

    async with working(app) as worker:
        assert await (await double.enqueue(21)).result(20) == 42
        assert await (await triple.enqueue(7)).result(20) == [7, 1]
        await eventually(lambda: worker.running == 0)
        assert worker.counts["succeeded"] == 2


async def test_a_worker_takes_only_its_queues_and_its_kinds(app: tenure.App, database: Database) -> None:
    @app.job(queue="mail")
    async def mail() -> str:
        return "sent"

    @app.job(queue="other")
    async def other() -> None: ...

    stranger = tenure.App(database.url)

    @stranger.job(queue="mail")
    async def unknown() -> None: ...

    async with stranger:
        foreign = await unknown.enqueue()
        elsewhere = await other.enqueue()
        async with working(app, queues=("mail",)):
            assert await (await mail.enqueue()).result(20) == "sent"
        assert (await foreign.refresh()).status is QUEUED
        assert (await elsewhere.refresh()).status is QUEUED


async def test_new_work_is_begun_without_waiting_for_the_next_look(app: tenure.App) -> None:
    @app.job()
    async def ping() -> str:
        return "pong"

    async with working(app, poll_seconds=SELDOM) as worker:
        await (await ping.enqueue()).result(20)
        await eventually(lambda: worker.running == 0)
        assert await (await ping.enqueue()).result(20) == "pong"


@pytest.mark.requirement("WC-05")
async def test_no_more_jobs_run_at_once_than_were_asked_for(app: tenure.App) -> None:
    now, most = 0, 0
    go = asyncio.Event()

    @app.job()
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1

    jobs = await app.enqueue_many(work.request() for _ in range(12))
    async with working(app, concurrency=3) as worker:
        # A slot is taken before its function begins.
        await eventually(lambda: now == 3)
        assert worker.running == 3
        page = await app.find(tenure.JobFilter(statuses=(RUNNING,)))
        assert len(page.jobs) == 3
        go.set()
        for job in jobs:
            await job.result(20)
    assert most == 3


@pytest.mark.requirement("WC-05")
async def test_a_stop_lets_running_jobs_finish_and_claims_no_more(app: tenure.App) -> None:
    go = asyncio.Event()

    @app.job()
    async def work(ctx: tenure.Context) -> bool:
        await go.wait()
        return ctx.stopping

    first, second = await work.enqueue(), await work.enqueue()
    async with working(app, concurrency=1) as worker:
        await eventually(lambda: worker.running == 1)
        worker.stop()
        asyncio.get_running_loop().call_later(0.1, go.set)
    assert await first.result(5) is True
    assert (await second.refresh()).status is QUEUED


@pytest.mark.requirement("WC-05")
async def test_what_does_not_finish_in_time_is_handed_back_without_a_failure(app: tenure.App) -> None:
    tidied: list[str] = []
    stuck = threading.Event()

    @app.job()
    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tidied.append("async")

    @app.job()
    def hangs_plainly() -> None:
        stuck.wait(60)

    jobs = [await hangs.enqueue(), await hangs_plainly.enqueue()]
    async with working(app, grace_seconds=0.2) as worker:
        await eventually(lambda: worker.running == 2)
    stuck.set()
    for job in jobs:
        record = await job.refresh()
        assert (record.status, record.failures, record.lost) == (STALLED, 0, False)
        assert [event.type for event in await job.events()][-1] == "released"
    assert tidied == ["async"]

    other = app.kinds["hangs"]
    other.function = _finishes
    app.kinds["hangs_plainly"].function = lambda: None
    async with working(app):
        for job in jobs:
            record = await job.wait(20)
            assert (record.status, record.attempt, record.failures) == (SUCCEEDED, 2, 0)


async def _finishes() -> None: ...


async def test_a_second_stop_does_not_wait_for_the_grace_time(app: tenure.App) -> None:
    @app.job()
    async def hangs() -> None:
        await asyncio.Event().wait()

    job = await hangs.enqueue()
    async with working(app, grace_seconds=SELDOM) as worker:
        await eventually(lambda: worker.running == 1)
        worker.stop()
        worker.stop()
    assert (await job.refresh()).failures == 0


@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_reaches_a_running_job_that_may_tidy_up(app: tenure.App) -> None:
    tidied: list[bool] = []

    @app.job()
    async def work(ctx: tenure.Context) -> None:
        try:
            while True:
                ctx.check()
                await asyncio.sleep(0.01)
        finally:
            tidied.append(ctx.cancel_requested)

    async with working(app, poll_seconds=SELDOM):
        job = await work.enqueue()
        await eventually(lambda: _is(job, "running"))
        ended = await job.cancel(reason="no longer wanted")
        assert ended.status is RUNNING
        record = await job.wait(20)
    assert record.status is CANCELLED
    assert record.failures == 0
    assert tidied == [True]
    types = [event.type for event in await job.events()]
    assert types[-2:] == ["cancel_requested", "cancelled"] or "heartbeat" in types


@pytest.mark.requirement("SM-10")
async def test_a_hard_cancel_ends_the_job_at_once_and_stops_its_work(app: tenure.App) -> None:
    ended: list[str] = []

    @app.job()
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    async with working(app, poll_seconds=SELDOM) as worker:
        job = await work.enqueue()
        await eventually(lambda: worker.running == 1)
        await eventually(lambda: _is(job, "running"))
        assert (await job.cancel(hard=True)).status is CANCELLED
        await eventually(lambda: worker.running == 0)
        assert worker.counts["lost"] == 1
    assert ended == ["stopped"]
    with pytest.raises(tenure.TenureError, match="cancelled"):
        await job.result(1)


@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_of_a_job_without_a_lease_runs_nothing(app: tenure.App) -> None:
    ran: list[int] = []

    @app.job()
    async def work() -> None:
        ran.append(1)

    job = await work.enqueue()
    assert (await job.cancel()).status is CANCELLED
    async with working(app) as worker:
        await eventually(lambda: _registered(app))
        assert worker.counts["claimed"] == 0
    assert ran == []


@pytest.mark.parametrize(
    ("percent", "message", "written"),
    [
        (33.3, "a third", (33, "a third")),
        (-1, "", (0, None)),
        (float("inf"), "x" * 3000, (100, "x" * 1998 + "…")),
        (50, "é" * 2001, (50, "é" * 1998 + "…")),
        (50, "\N{SLIGHTLY SMILING FACE}" * 1001, (50, "\N{SLIGHTLY SMILING FACE}" * 998 + "…")),
        (50, "nul \0, lone \udcff", (50, "nul �, lone ?")),
        (float("nan"), "not a number", (None, None)),
        ("many", "neither", (None, None)),
    ],
)
async def test_progress_never_fails_a_job(
    app: tenure.App, percent: Any, message: str, written: tuple[int | None, str | None]
) -> None:
    @app.job()
    async def work(ctx: tenure.Context) -> str:
        ctx.progress(percent, message)
        return "done"

    async with working(app):
        job = await work.enqueue()
        assert await job.result(20) == "done"
    assert (job.job.attempt, job.job.progress, job.job.progress_message) == (1, *written)


async def test_of_many_progress_reports_the_last_is_written(app: tenure.App) -> None:
    go = asyncio.Event()

    @app.job()
    async def work(ctx: tenure.Context) -> None:
        for percent in range(100):
            ctx.progress(percent, f"at {percent}")
        await go.wait()

    async with working(app):
        job = await work.enqueue()

        async def reported() -> bool:
            return (await job.refresh()).progress == 99

        await eventually(reported)
        go.set()
        await job.result(20)
    events = [event for event in await job.events() if event.type == "progress"]
    assert 1 <= len(events) < 50
    assert job.job.progress_message == "at 99"


async def test_a_worker_registers_and_unregisters(app: tenure.App) -> None:
    @app.job()
    async def work() -> None: ...

    async with working(app, concurrency=7) as worker:
        await eventually(lambda: _registered(app))
        [record] = await (await app.store()).workers()
        assert (record.id, record.kinds, record.concurrency) == (worker.name, ("work",), 7)
        assert record.version == "2026.11"
    assert await (await app.store()).workers() == []


async def test_a_worker_that_is_cancelled_hands_its_jobs_back(app: tenure.App) -> None:
    @app.job()
    async def hangs() -> None:
        await asyncio.Event().wait()

    job = await hangs.enqueue()
    worker = app.worker(poll_seconds=0.05, grace_seconds=SELDOM)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)
    record = await job.refresh()
    assert (record.status, record.failures) == (STALLED, 0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tenure-pool")]


async def test_a_worker_on_a_database_in_memory_is_refused_since_it_would_see_no_jobs() -> None:
    app = tenure.App("sqlite://:memory:")

    @app.job()
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match=r"use a file"):
        await app.worker().run()


async def test_an_app_without_jobs_has_nothing_to_work_on(app: tenure.App) -> None:
    with pytest.raises(InvalidInput, match="declares no jobs"):
        app.worker()


@pytest.mark.parametrize(
    "options", [{"queues": ()}, {"concurrency": 0}, {"grace_seconds": -1}, {"poll_seconds": 0}, {"queues": ("",)}]
)
async def test_options_that_make_no_sense_are_refused(app: tenure.App, options: dict[str, Any]) -> None:
    @app.job()
    async def work() -> None: ...

    with pytest.raises(InvalidInput):
        app.worker(**options)


@pytest.mark.requirement("EH-06")
async def test_no_failure_is_silent(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def breaks() -> None:
        raise KeyError("the cause")

    with caplog.at_level(logging.WARNING):
        async with working(app):
            record = await (await breaks.enqueue()).wait(20)
    assert record.status is FAILED
    assert "KeyError" in (record.error or "")
    assert "test_worker.py" in (record.error or "")
    lines = [line for line in caplog.messages if "the cause" in line]
    assert len(lines) == 2
    assert all(str(record.id) in line for line in lines)


async def test_a_function_that_calls_exit_does_not_take_the_worker_down(app: tenure.App) -> None:
    @app.job(max_attempts=1, on_exhausted="fail")
    async def leaves() -> None:
        raise SystemExit(3)

    @app.job(max_attempts=1, on_exhausted="fail")
    def leaves_plainly() -> None:
        raise KeyboardInterrupt

    @app.job()
    async def stays() -> str:
        return "here"

    async with working(app):
        assert (await (await leaves.enqueue()).wait(20)).status is FAILED
        assert (await (await leaves_plainly.enqueue()).wait(20)).status is FAILED
        assert await (await stays.enqueue()).result(20) == "here"


async def _is(job: tenure.Handle[Any], status: str) -> bool:
    return (await job.refresh()).status == status


async def _registered(app: tenure.App) -> bool:
    return bool(await (await app.store()).workers())
