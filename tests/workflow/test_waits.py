"""Sleeping and waiting for signals: without a worker, and without losing a signal."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import tenure
from tenure.errors import IllegalTransition
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import CANCELLED, SUCCEEDED, WAITING
from tenure.workflow import engine
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.001, max_seconds=0.001)


class Crash(Exception):
    """Raised by a workflow's function, so that its run is retried from the beginning."""


class Approval(msgspec.Struct):
    by: str


async def until_waiting(handle: tenure.Handle[Any]) -> None:
    async def waits() -> bool:
        return (await handle.refresh()).status is WAITING

    await eventually(waits, seconds=60)


async def test_a_sleeping_run_holds_no_worker(app: tenure.App) -> None:
    @app.workflow()
    async def nap(run: tenure.Run) -> float:
        before = run.now()
        await run.sleep(2)
        return (run.now() - before).total_seconds()

    @app.job()
    def quick() -> str:
        return "done"

    async with app, working(app, concurrency=1):
        handle = await nap.enqueue()
        await until_waiting(handle)
        assert await (await quick.enqueue()).result(timeout_seconds=60) == "done"
        assert await handle.result(timeout_seconds=60) >= 2
        events = await handle.events()
    assert [event.cause for event in events if event.type is EventType.SUSPENDED] == ["awaits_time"]


@pytest.mark.requirement("WF-12")
async def test_the_time_of_a_sleep_begins_with_its_first_call(app: tenure.App) -> None:
    ends: list[Any] = []

    @app.workflow(backoff=AT_ONCE)
    async def nap(run: tenure.Run) -> None:
        if run.attempt > 2:
            await run.sleep(hours=1)
            return
        await run.sleep(0.05)
        ends.append(run.now())
        if len(ends) == 1:
            raise Crash

    async with app, working(app):
        handle = await nap.enqueue()
        await eventually(lambda: _true(len(ends) >= 1), seconds=60)
        await until_waiting_or_ended(handle)
        steps = await (await app.store()).steps(handle.id)
    assert ends[0] == steps[0].finished_at + timedelta(seconds=0.05)


async def _true(value: bool) -> bool:
    return value


async def until_waiting_or_ended(handle: tenure.Handle[Any]) -> None:
    async def settled() -> bool:
        job = await handle.refresh()
        return not job.live or job.status is WAITING

    await eventually(settled, seconds=60)


@pytest.mark.requirement("WF-11")
async def test_signals_may_come_early_and_are_received_in_order_each_once(app: tenure.App) -> None:
    @app.workflow(backoff=AT_ONCE)
    async def collect(run: tenure.Run) -> list[Any]:
        received = [await run.wait_for("number", int)]
        if run.attempt == 1:
            raise Crash
        received.append(await run.wait_for("number", int))
        approval = await run.wait_for("approved", Approval)
        received.append(await run.wait_for("number", int))
        return [*received, approval.by]

    async with app:
        handle = await collect.enqueue()
        for number in (1, 2):
            await handle.signal("number", number)
        async with working(app):
            await until_waiting(handle)
            await handle.signal("number", 3)
            await app.signal(handle.id, "approved", Approval("ada"))
            assert await handle.result(timeout_seconds=60) == [1, 2, 3, "ada"]


@pytest.mark.requirement("WF-11")
async def test_a_signal_is_sent_once_per_request_id(app: tenure.App) -> None:
    @app.workflow()
    async def collect(run: tenure.Run) -> list[int]:
        return [await run.wait_for("number", int), await run.wait_for("number", int)]

    async with app:
        handle = await collect.enqueue()
        for number, request_id in ((1, "a"), (1, "a"), (2, "b")):
            await handle.signal("number", number, request_id=request_id)
        async with working(app):
            assert await handle.result(timeout_seconds=60) == [1, 2]


@pytest.mark.requirement("WF-11")
async def test_a_signal_to_a_run_that_has_ended_is_a_typed_error(app: tenure.App) -> None:
    @app.workflow()
    async def short(run: tenure.Run) -> None: ...

    async with app, working(app):
        handle = await short.enqueue()
        await handle.result(timeout_seconds=60)
        with pytest.raises(IllegalTransition, match="terminal"):
            await handle.signal("late")


@pytest.mark.requirement("WF-12")
async def test_a_wait_ends_by_its_deadline_and_that_is_recorded(app: tenure.App) -> None:
    timed_out, signalled = asyncio.Event(), asyncio.Event()

    @app.workflow(backoff=AT_ONCE)
    async def ask(run: tenure.Run) -> str:
        try:
            await run.wait_for("answer", timeout_seconds=0.05)
        except TimeoutError as error:
            timed_out.set()
            await signalled.wait()
            if run.attempt < 3:
                raise Crash from error
            return "late"
        return "in time"

    async with app, working(app):
        handle = await ask.enqueue()
        await asyncio.wait_for(timed_out.wait(), 60)
        await handle.signal("answer")
        signalled.set()
        assert await handle.result(timeout_seconds=60) == "late"


@pytest.mark.requirement("WF-13")
async def test_a_run_whose_branches_all_wait_is_suspended_and_continues_with_the_first_to_end(app: tenure.App) -> None:
    executed: list[str] = []

    def note(text: str) -> str:
        executed.append(text)
        return text

    async def branch(run: tenure.Run, name: str) -> str:
        await run.wait_for(name)
        return await run.step(note, name)

    @app.workflow()
    async def both(run: tenure.Run) -> tuple[str, ...]:
        return await run.gather(branch(run, "a"), branch(run, "b"))

    async with app, working(app):
        handle = await both.enqueue()
        await until_waiting(handle)
        await handle.signal("b")
        await eventually(lambda: _true(executed == ["b"]), seconds=60)
        await until_waiting(handle)
        await handle.signal("a")
        assert await handle.result(timeout_seconds=60) == ("a", "b")
    assert executed == ["b", "a"]


@pytest.mark.requirement("WF-13")
async def test_asyncio_gather_of_waits_suspends_the_run(app: tenure.App) -> None:
    @app.workflow()
    async def both(run: tenure.Run) -> list[Any]:
        return [*await asyncio.gather(run.wait_for("a"), run.wait_for("b"))]

    async with app, working(app):
        handle = await both.enqueue()
        await until_waiting(handle)
        await handle.signal("b", 2)
        await handle.signal("a", 1)
        assert await handle.result(timeout_seconds=60) == [1, 2]


@pytest.mark.requirement("WF-13")
async def test_a_branch_that_awaits_something_not_durable_keeps_the_run_on_its_worker(
    app: tenure.App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.workflow.run_waits.WARNING_SECONDS", 0.05)
    monkeypatch.setattr("tenure.workflow.run_waits.WATCH_SECONDS", 0.02)
    event = asyncio.Event()

    async def branch(run: tenure.Run) -> str:
        await event.wait()
        return "event"

    @app.workflow()
    async def mixed(run: tenure.Run) -> tuple[str, Any]:
        return await run.gather(branch(run), run.wait_for("a"))

    async with app, working(app):
        with caplog.at_level(logging.WARNING, "tenure.workflow"):
            handle = await mixed.enqueue()
            await eventually(lambda: _true("not durable" in caplog.text), seconds=60)
        await handle.signal("a", 1)
        event.set()
        assert await handle.result(timeout_seconds=60) == ("event", 1)
        assert EventType.SUSPENDED not in [one.type for one in await handle.events()]


@pytest.mark.requirement("WF-13")
async def test_a_signal_reaches_a_wait_beside_a_running_step(app: tenure.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.workflow.run_waits.WATCH_SECONDS", 0.02)
    received = asyncio.Event()

    async def slow() -> str:
        await received.wait()
        return "step"

    async def branch(run: tenure.Run) -> Any:
        value = await run.wait_for("a")
        received.set()
        return value

    @app.workflow()
    async def mixed(run: tenure.Run) -> tuple[str, Any]:
        return await run.gather(run.step(slow), branch(run))

    async with app, working(app):
        handle = await mixed.enqueue()
        await handle.signal("a", 1)
        assert await handle.result(timeout_seconds=60) == ("step", 1)


@pytest.mark.requirement("WF-10", "SM-10")
async def test_a_cancel_request_reaches_a_running_step(app: tenure.App) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @app.workflow()
    async def long(run: tenure.Run) -> None:
        try:
            await run.step(hangs)
        except Exception:  # noqa: BLE001 - what user code may write
            await run.step(hangs)

    async with app, working(app):
        handle = await long.enqueue()
        await asyncio.wait_for(started.wait(), 60)
        await handle.cancel(reason="no longer needed")
        job = await handle.wait(60)
    assert cancelled.is_set()
    assert (job.status, job.reason) == (CANCELLED, "no longer needed")


@pytest.mark.requirement("WF-10")
async def test_a_run_that_waits_is_cancelled_at_once(app: tenure.App) -> None:
    @app.workflow()
    async def ask(run: tenure.Run) -> None:
        await run.wait_for("answer")

    async with app, working(app):
        handle = await ask.enqueue()
        await until_waiting(handle)
        await handle.cancel()
        assert (await handle.wait(60)).status is CANCELLED


async def test_a_worker_that_stops_hands_a_run_over_without_a_failure(app: tenure.App) -> None:
    started = asyncio.Event()
    executed: list[int] = []

    async def first() -> int:
        executed.append(1)
        return 1

    async def slow() -> int:
        started.set()
        if len(executed) == 1:
            executed.append(2)
            await asyncio.Event().wait()
        return 2

    @app.workflow()
    async def long(run: tenure.Run) -> int:
        return await run.step(first) + await run.step(slow)

    async with app:
        handle = await long.enqueue()
        async with working(app, grace_seconds=0.01):
            await asyncio.wait_for(started.wait(), 60)
        job = await handle.refresh()
        assert (job.live, job.failures) == (True, 0)
        async with working(app):
            assert await handle.result(timeout_seconds=60) == 3
        assert (await handle.refresh()).status is SUCCEEDED
    assert executed == [1, 2]


@pytest.mark.requirement("WF-10")
async def test_a_step_in_a_thread_finds_that_it_is_cancelled(app: tenure.App) -> None:
    started, noticed = threading.Event(), threading.Event()

    def poll() -> None:
        started.set()
        step = tenure.current_step()
        until = time.monotonic() + 60
        while not step.cancelled and time.monotonic() < until:
            time.sleep(0.01)
        if step.cancelled:
            noticed.set()

    @app.workflow()
    async def wait(run: tenure.Run) -> None:
        await run.step(poll)

    async with app, working(app):
        handle = await wait.enqueue()

        async def has_started() -> bool:
            return started.is_set()

        await eventually(has_started, seconds=60)
        await handle.cancel()
        assert (await handle.wait(60)).status is CANCELLED

        async def has_noticed() -> bool:
            return noticed.is_set()

        await eventually(has_noticed, seconds=60)


@pytest.mark.requirement("WF-10")
async def test_a_swallowed_cancellation_is_logged(
    app: tenure.App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SWALLOWED_SECONDS", 0.05)
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    @app.workflow()
    async def wait(run: tenure.Run) -> None:
        await run.step(stubborn)

    async with app, working(app):
        handle = await wait.enqueue()
        await asyncio.wait_for(started.wait(), 60)
        await handle.cancel()

        async def is_logged() -> bool:
            return any("which its code swallows" in record.getMessage() for record in caplog.records)

        await eventually(is_logged, seconds=60)
        release.set()
        assert (await handle.wait(60)).status is CANCELLED
