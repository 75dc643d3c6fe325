"""`app.testing()` and its fixtures: an app's jobs in memory, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import InvalidInput, JobFailed, PayloadRefused, PermanentError, Snooze, TransientError
from tenure.lifecycle.records import EventType
from tenure.testing.clock import START
from tenure.testing.harness import harness as harness_module
from tenure.testing.harness.environment import HarnessClock
from tenure.testing.harness.harness import Harness
from tenure.testing.harness.report import HarnessError


@pytest.fixture
def app(tmp_path: Path) -> tenure.App:
    """An app whose real database is a file that no test here may make."""
    return tenure.App(f"sqlite:///{tmp_path / 'real.db'}", name="shop")


def kinds(harness: Harness) -> list[str]:
    return [ran.job.kind for ran in harness.ran]


class TestTheContext:
    async def test_the_app_is_itself_again_afterwards_and_its_database_was_not_touched(
        self, app: tenure.App, tmp_path: Path
    ) -> None:
        @app.job()
        def work(n: int) -> int:
            return n

        before = dict(vars(app))
        async with app.testing() as harness:
            with pytest.raises(PayloadRefused):
                await work.enqueue("one")  # type: ignore[arg-type]
            await work.enqueue(1)
            await harness.drain()
            await app.close()
            assert app.rejections == {"work": 1}
        assert vars(app) == before
        assert not app.rejections
        assert list(tmp_path.iterdir()) == []
        handle = await work.enqueue(1)
        assert (await handle.refresh()).status == "queued", "the real database is in use again"
        await app.close()

    async def test_the_app_is_itself_again_after_an_error(self, app: tenure.App) -> None:
        before = dict(vars(app))
        with pytest.raises(ZeroDivisionError):
            async with app.testing():
                raise ZeroDivisionError
        assert vars(app) == before

    async def test_a_store_that_was_open_before_is_not_seen_meanwhile(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        outside, store = await work.enqueue(), await app.store()
        async with app.testing() as harness:
            inside = await work.enqueue()
            await harness.drain()
            assert (await inside.refresh()).status == "succeeded"
            await app.close()
        assert await app.store() is store
        assert (await outside.refresh()).status == "queued", "nor was it closed"
        await app.close()

    async def test_each_use_begins_with_an_empty_database(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        for _ in range(2):
            async with app.testing() as harness:
                await work.options(dedupe_key="only one").enqueue()
                assert (await harness.drain()).counts == {"succeeded": 1}

    async def test_a_second_use_inside_the_first_is_refused_and_harms_neither(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing() as harness:
            with pytest.raises(HarnessError, match="tested already"):
                async with app.testing():
                    pytest.fail("it was let in")
            await work.enqueue()
            assert (await harness.drain()).counts == {"succeeded": 1}
        async with app.testing():
            pass

    async def test_it_cannot_be_left_twice(self, app: tenure.App) -> None:
        testing = app.testing()
        async with testing:
            pass
        with pytest.raises(HarnessError, match="was not entered, or left before"):
            testing.leave()

    def test_what_makes_no_sense_is_refused(self, app: tenure.App) -> None:
        with pytest.raises(InvalidInput, match="must be one of drain, inline"):
            app.testing("at once")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="has no time zone"):
            app.testing(now=datetime(2031, 1, 1))  # noqa: DTZ001 - the mistake that is refused

    async def test_the_plain_form_is_refused_where_an_event_loop_runs(self, app: tenure.App) -> None:
        with pytest.raises(HarnessError, match="async with"), app.testing():
            pytest.fail("it was let in")
        assert "harness" not in vars(app)

    async def test_a_closed_harness_is_refused(self, app: tenure.App) -> None:
        async with app.testing() as harness:
            pass
        with pytest.raises(HarnessError, match="its test has ended"):
            await harness.drain()

    def test_another_event_loop_is_refused_with_advice(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async def elsewhere() -> None:
            await work.enqueue()

        with app.testing(), pytest.raises(HarnessError, match="belongs to another event loop"):
            asyncio.run(elsewhere())

    async def test_no_worker_can_be_started_meanwhile(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing():
            with pytest.raises(HarnessError, match=r"harness.drain\(\) runs its jobs"):
                await app.worker().run()

    async def test_a_user_connection_cannot_reach_jobs_in_memory(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        connection = sqlite3.connect(":memory:")
        async with app.testing():
            with pytest.raises(InvalidInput, match="in the memory of its store"):
                await work.within(connection).enqueue()
        connection.close()

    async def test_what_still_runs_at_the_end_is_cancelled(self, app: tenure.App) -> None:
        began, seen = asyncio.Event(), list[str]()

        @app.job()
        async def hang() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async with app.testing() as harness:
            await hang.enqueue()
            draining = asyncio.create_task(harness.drain())
            await asyncio.wait_for(began.wait(), 10)
            draining.cancel()
            await asyncio.wait([draining])
            assert seen == []
        assert seen == ["cancelled"]


class TestDrain:
    async def test_it_runs_what_is_due_and_what_that_enqueues_and_reports_in_order(self, app: tenure.App) -> None:
        @app.job()
        async def first(n: int) -> int:
            await second.enqueue(n)
            return n

        @app.job(queue="other")
        def second(n: int) -> int:
            if n > 1:
                second.enqueue_sync(n - 1)
            return n * n

        async with app.testing() as harness:
            handle = await first.enqueue(2)
            assert handle.job.status == "queued", "nothing runs before the test runs it"
            report = await harness.drain()
            assert [(job.kind, job.result) for job in report.jobs] == [("first", "2"), ("second", "4"), ("second", "1")]
            assert report.counts == {"succeeded": 3}
            assert report.errors == ()
            assert await handle.result() == 2
            assert (await harness.drain()).ran == ()
            assert len(harness.ran) == 3

    async def test_jobs_are_run_in_the_order_of_a_worker(self, app: tenure.App) -> None:
        seen: list[int] = []

        @app.job()
        async def work(n: int) -> None:
            seen.append(n)

        async with app.testing() as harness:
            for n in range(5):
                await work.enqueue(n)
            await work.options(priority=9).enqueue(9)
            await harness.drain()
        assert seen == [9, 0, 1, 2, 3, 4]

    async def test_a_job_in_a_queue_that_only_a_commit_knows_of_is_found(self, app: tenure.App) -> None:
        @app.job()
        async def parent(ctx: tenure.Context) -> None:
            async with ctx.commit() as tx:
                tx.enqueue(child.options(queue="made-up").request())

        @app.job()
        async def child() -> None: ...

        async with app.testing() as harness:
            await parent.enqueue()
            assert [job.queue for job in (await harness.drain()).jobs] == ["default", "made-up"]

    async def test_errors_are_reported_and_raised_on_demand_once_the_outcome_is_written(self, app: tenure.App) -> None:
        boom = ValueError("boom")

        @app.job(max_attempts=1, on_exhausted="fail")
        def work() -> None:
            raise boom

        async with app.testing() as harness:
            await work.enqueue()
            report = await harness.drain()
            assert (report.errors, report.counts) == ((boom,), {"failed": 1})
            handle = await work.enqueue()
            with pytest.raises(ValueError, match="boom") as raised:
                await harness.drain(raise_errors=True)
            assert raised.value is boom
            assert (await handle.refresh()).status == "failed"

    async def test_an_error_is_raised_on_demand_although_the_function_was_never_called(self, app: tenure.App) -> None:
        @app.job()
        def work(n: int) -> int:
            return n

        async with app.testing() as harness:
            await work.enqueue(1)
            changed = tenure.App(app.database)

            @changed.job(kind="work")
            def other(n: str) -> str:
                return n

            app.kinds["work"] = changed.kinds["work"]
            with pytest.raises(JobFailed, match=r"became a dead letter.*Expected `str`"):
                await harness.drain(raise_errors=True)

    @pytest.mark.parametrize("call", ["drain", "advance", "run_all", "until_empty"])
    async def test_jobs_that_keep_coming_are_named_and_nothing_is_left_half_done(
        self, app: tenure.App, call: str
    ) -> None:
        @app.job()
        async def hydra() -> None:
            await hydra.enqueue()

        async with app.testing() as harness:
            await hydra.enqueue()
            calls = {
                "drain": lambda: harness.drain(jobs_max=20),
                "advance": lambda: harness.advance(1, jobs_max=20),
                "run_all": lambda: harness.run_all(jobs_max=20),
                "until_empty": lambda: harness.drain(until_empty=True, jobs_max=20),
            }
            with pytest.raises(HarnessError, match=r"20 jobs were run.*hydra \(20 of the last 20\)"):
                await calls[call]()
            tallies = (await (await app.store()).stats()).tallies
            assert {tally.status: tally.jobs for tally in tallies} == {"succeeded": 20, "queued": 1}

    async def test_exactly_as_many_jobs_as_allowed_are_no_error(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing() as harness:
            await app.enqueue_many(work.request() for _ in range(7))
            assert (await harness.drain(jobs_max=7)).counts == {"succeeded": 7}
            with pytest.raises(InvalidInput, match="jobs_max"):
                await harness.drain(jobs_max=0)

    async def test_kinds_that_the_app_does_not_have_are_left_alone(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        @app.job()
        def gone() -> None: ...

        async with app.testing() as harness:
            await work.enqueue()
            left = await gone.enqueue()
            del app.kinds["gone"]
            assert (await harness.drain()).counts == {"succeeded": 1}
            assert (await left.refresh()).status == "queued"
            with pytest.raises(HarnessError, match=r"1 jobs are left and none.*gone \(queued\)"):
                await harness.run_all()

    async def test_concurrent_drains_run_one_after_the_other(self, app: tenure.App) -> None:
        inside = 0

        @app.job()
        async def work() -> None:
            nonlocal inside
            inside += 1
            await asyncio.sleep(0)
            assert inside == 1
            inside -= 1

        async with app.testing() as harness:
            await app.enqueue_many(work.request() for _ in range(10))
            reports = await asyncio.gather(harness.drain(raise_errors=True), harness.drain(raise_errors=True))
            assert sum(len(report.ran) for report in reports) == 10


class TestTime:
    async def test_the_clock_is_manual_and_starts_at_the_given_time(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        now = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
        async with app.testing(now=now) as harness:
            job = (await work.enqueue()).job
            assert (job.created_at, app.seams.clock.now(), harness.clock.now()) == (now, now, now)
            [done] = (await harness.drain()).jobs
            assert done.finished_at == now

    async def test_a_delayed_job_runs_when_its_time_has_come(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing() as harness:
            await work.options(delay_seconds=60).enqueue()
            assert (await harness.drain()).ran == ()
            assert (await harness.advance(59.999)).ran == ()
            assert (await harness.advance(0.001)).counts == {"succeeded": 1}

    async def test_advancing_the_clock_runs_each_job_at_its_due_time(self, app: tenure.App) -> None:
        seen: list[tuple[str, float]] = []

        def note(name: str) -> None:
            seen.append((name, app.seams.clock.monotonic_seconds()))

        @app.job()
        async def early() -> None:
            note("early")
            await late.options(delay_seconds=30).enqueue()

        @app.job()
        async def late() -> None:
            note("late")

        async with app.testing() as harness:
            await early.options(delay_seconds=10).enqueue()
            await late.options(delay_seconds=100).enqueue()
            assert (await harness.advance(90)).counts == {"succeeded": 2}
            assert harness.clock.monotonic_seconds() == 90
        assert seen == [("early", 10), ("late", 40)]

    async def test_everything_can_be_run_to_its_end_whenever_it_is_due(self, app: tenure.App) -> None:
        tries: list[int] = []

        @app.job(max_attempts=4, on_exhausted="fail")
        async def flaky(ctx: tenure.Context) -> str:
            tries.append(ctx.attempt)
            if ctx.attempt == 2:
                raise Snooze(3600)
            if ctx.attempt < 5:
                raise TransientError("not yet")
            return "at last"

        async with app.testing() as harness:
            handle = await flaky.options(delay_seconds=600).enqueue()
            report = await harness.run_all()
            assert tries == [1, 2, 3, 4, 5]
            assert report.counts == {"retry": 3, "stalled": 1, "succeeded": 1}
            assert harness.clock.monotonic_seconds() > 4200
            assert await handle.result() == "at last"
            assert (await harness.drain(until_empty=True)).ran == ()

    async def test_a_job_that_waited_too_long_in_the_queue_is_timed_out_by_recovery(self, app: tenure.App) -> None:
        @app.job(timeouts=tenure.Timeouts(queued_seconds=30))
        def work() -> None: ...

        async with app.testing() as harness:
            handle = await work.enqueue()
            assert (await harness.advance(31)).ran == ()
            assert (await handle.refresh()).status == "failed"

    async def test_a_job_keeps_its_lease_while_the_harness_lets_time_pass(self, app: tenure.App) -> None:
        @app.job(lease_seconds=30)
        async def slow() -> str:
            await harness.advance(300)
            return "done"

        async with app.testing() as harness:
            handle = await slow.enqueue()
            assert (await harness.drain()).counts == {"succeeded": 1}
            types = [event.type for event in await handle.events()]
            assert types.count(EventType.HEARTBEAT) >= 10

    @pytest.mark.requirement("EH-03", "WF-15")
    @pytest.mark.parametrize(
        "limit",
        [{"timeouts": tenure.Timeouts(running_seconds=100), "on_timeout": "fail"}, {"deadline_seconds": 100}],
        ids=["threshold", "deadline"],
    )
    async def test_a_job_that_hangs_while_it_heartbeats_ends_at_its_threshold_or_deadline(
        self, app: tenure.App, limit: dict[str, Any]
    ) -> None:
        began, seen = asyncio.Event(), list[str]()

        @app.job(lease_seconds=30, **limit)
        async def hangs() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("stopped")

        async with app.testing() as harness:
            handle = await hangs.enqueue()
            draining = asyncio.create_task(harness.drain())
            await asyncio.wait_for(began.wait(), 10)
            await harness.advance(99)
            assert (await handle.refresh()).status == "running"
            await harness.advance(3600)
            assert [ran.recorded for ran in (await asyncio.wait_for(draining, 10)).ran] == [True]
            job = await handle.refresh()
            assert (job.status, job.finished_at, seen) == ("failed", START + timedelta(seconds=100), ["stopped"])

    async def test_what_becomes_due_while_another_call_is_at_work_is_run_by_that_one(self, app: tenure.App) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()

        @app.job()
        async def first() -> None:
            began.set()
            await go_on.wait()

        @app.job()
        async def second() -> None: ...

        async with app.testing() as harness:
            await first.enqueue()
            await second.options(delay_seconds=10).enqueue()
            draining = asyncio.create_task(harness.drain())
            await asyncio.wait_for(began.wait(), 10)
            assert (await harness.advance(10)).ran == ()
            go_on.set()
            assert [job.kind for job in (await asyncio.wait_for(draining, 10)).jobs] == ["first", "second"]

    @pytest.mark.requirement("SM-06")
    async def test_a_job_that_freezes_past_its_lease_is_lost_and_runs_again(self, app: tenure.App) -> None:
        @app.job(lease_seconds=30)
        async def freezes(ctx: tenure.Context) -> int:
            if ctx.attempt == 1:
                harness.clock.advance(31)
            return ctx.attempt

        async with app.testing() as harness:
            handle = await freezes.enqueue()
            report = await harness.drain()
            assert [ran.recorded for ran in report.ran] == [False, True]
            assert await handle.result() == 2
            types = [event.type for event in await handle.events()]
            assert types == ["enqueued", "claimed", "started", "stalled", "requeued", "claimed", "started", "succeeded"]
            assert handle.job.failures == 1


class TestWaiting:
    async def test_waiting_for_a_result_runs_the_job(self, app: tenure.App) -> None:
        @app.job()
        async def double(n: int) -> int:
            return 2 * n

        async with app.testing():
            handles = [await double.options(delay_seconds=n).enqueue(n) for n in range(3)]
            assert await asyncio.gather(*(handle.result() for handle in handles)) == [0, 2, 4]

    async def test_a_job_may_wait_for_another(self, app: tenure.App) -> None:
        @app.job()
        async def outer() -> int:
            handle = await inner.enqueue()
            return await handle.result() + 1

        @app.job(max_attempts=2, on_exhausted="fail")
        async def inner(ctx: tenure.Context) -> int:
            if ctx.attempt == 1:
                raise TransientError("again", delay_seconds=90)
            return 41

        async with app.testing() as harness:
            handle = await outer.enqueue()
            await harness.drain()
            assert await handle.result() == 42
            assert kinds(harness) == ["inner", "inner", "outer"]

    async def test_a_timeout_of_the_test_is_measured_by_the_manual_clock(self, app: tenure.App) -> None:
        @app.job()
        def work() -> int:
            return 1

        async with app.testing() as harness:
            handle = await work.options(delay_seconds=10).enqueue()
            with pytest.raises(TimeoutError):
                await handle.result(timeout_seconds=9.999)
            assert harness.ran == []
            assert harness.clock.monotonic_seconds() == pytest.approx(9.999)
            assert await handle.result(timeout_seconds=1) == 1

    async def test_to_wait_for_what_will_never_come_is_an_error_and_not_a_hang(
        self, app: tenure.App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(harness_module, "IDLE_MAX", 20)

        @app.job()
        def gone() -> None: ...

        async with app.testing():
            handle = await gone.enqueue()
            del app.kinds["gone"]
            with pytest.raises(HarnessError, match="none will become due"):
                await handle.result()

    async def test_to_wait_while_another_call_is_at_work_holds_neither_up(self, app: tenure.App) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()

        @app.job()
        async def work() -> int:
            began.set()
            await go_on.wait()
            return 1

        async with app.testing() as harness:
            handle = await work.enqueue()
            draining = asyncio.create_task(harness.drain())
            await asyncio.wait_for(began.wait(), 10)
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0)
            go_on.set()
            assert await asyncio.wait_for(waiting, 10) == 1
            await asyncio.wait_for(draining, 10)

    async def test_a_wait_ends_when_the_job_is_cancelled(self, app: tenure.App) -> None:
        @app.job()
        def gone() -> None: ...

        async with app.testing():
            handle = await gone.enqueue()
            del app.kinds["gone"]
            waiting = asyncio.create_task(handle.wait())
            await asyncio.sleep(0)
            await app.cancel(handle.id)
            assert (await asyncio.wait_for(waiting, 10)).status == "cancelled"


class TestInline:
    async def test_a_job_is_done_when_its_enqueue_returns(self, app: tenure.App) -> None:
        @app.job()
        async def double(n: int) -> int:
            return 2 * n

        async with app.testing("inline"):
            handle = await double.enqueue(21)
            assert (handle.job.status, handle.job.result) == ("succeeded", "42")
            handles = await app.enqueue_many(double.request(n) for n in range(3))
            assert [handle.job.result for handle in handles] == ["0", "2", "4"]

    async def test_what_a_job_enqueues_runs_after_it(self, app: tenure.App) -> None:
        seen: list[str] = []

        @app.job()
        async def outer() -> None:
            seen.append("outer begins")
            handle = await inner.enqueue()
            assert handle.job.status == "queued"
            seen.append("outer ends")

        @app.job()
        async def inner() -> None:
            seen.append("inner")

        async with app.testing("inline") as harness:
            await outer.enqueue()
            assert seen == ["outer begins", "outer ends", "inner"]
            assert kinds(harness) == ["outer", "inner"]

    async def test_several_at_once_are_each_done_when_they_return(self, app: tenure.App) -> None:
        @app.job()
        async def work(n: int) -> int:
            await asyncio.sleep(0)
            return n

        async with app.testing("inline"):
            handles = await asyncio.gather(*(work.enqueue(n) for n in range(5)))
            assert [handle.job.result for handle in handles] == list("01234")

    async def test_a_failure_ends_the_job_and_does_not_raise_in_the_enqueuing_code(self, app: tenure.App) -> None:
        @app.job()
        async def work() -> None:
            raise PermanentError("no")

        async with app.testing("inline") as harness:
            assert (await work.enqueue()).job.status == "failed"
            assert [type(ran.error) for ran in harness.ran] == [PermanentError]

    async def test_what_is_not_due_waits_for_the_clock(self, app: tenure.App) -> None:
        @app.job()
        async def work() -> None: ...

        async with app.testing("inline") as harness:
            assert (await work.options(delay_seconds=5).enqueue()).job.status == "queued"
            assert (await harness.advance(5)).counts == {"succeeded": 1}

    async def test_a_redrive_runs_at_once_too(self, app: tenure.App) -> None:
        healthy = False

        @app.job()
        async def work() -> None:
            if not healthy:
                raise PermanentError("no")

        async with app.testing("inline"):
            failed = await work.enqueue()
            healthy = True
            assert (await app.redrive(failed.id)).job.status == "succeeded"

    async def test_a_thread_of_a_jobs_own_enqueues_without_a_deadlock(self, app: tenure.App) -> None:
        @app.job()
        def outer() -> None:
            thread = threading.Thread(target=inner.enqueue_sync)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()

        @app.job()
        def inner() -> None: ...

        async with app.testing("inline") as harness:
            assert (await outer.enqueue()).job.status == "succeeded"
            assert kinds(harness) == ["outer", "inner"]


class TestPlainCode:
    def test_plain_tests_drain_on_the_apps_own_loop(self, app: tenure.App) -> None:
        @app.job()
        def work(n: int) -> int:
            return 2 * n

        background = app.background
        with app.testing() as harness:
            handle = work.enqueue_sync(21)
            delayed = work.options(delay_seconds=60).enqueue_sync(1)
            assert harness.drain_sync().counts == {"succeeded": 1}
            assert harness.run(handle.result) == 42
            assert harness.advance_sync(30).ran == ()
            assert harness.run_all_sync().jobs[0].id == delayed.id
            assert harness.drain_sync(until_empty=True).ran == ()
        assert app.background is background
        assert "harness" not in vars(app)

    def test_plain_enqueues_run_inline(self, app: tenure.App) -> None:
        @app.job()
        async def work(n: int) -> int:
            return 2 * n

        with app.testing("inline"):
            assert work.enqueue_sync(21).job.result == "42"

    def test_the_app_is_itself_again_after_an_error(self, app: tenure.App) -> None:
        before = dict(vars(app))
        with pytest.raises(ZeroDivisionError), app.testing():
            raise ZeroDivisionError
        assert vars(app) == before

    async def test_a_plain_call_does_not_block_the_loop_that_it_is_made_on(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing() as harness:
            with pytest.raises(RuntimeError, match="await it"):
                work.enqueue_sync()
            with pytest.raises(RuntimeError, match="await it"):
                harness.drain_sync()

    async def test_a_thread_beside_an_async_test_reaches_the_same_jobs(self, app: tenure.App) -> None:
        @app.job()
        def work() -> None: ...

        async with app.testing() as harness:
            await asyncio.to_thread(work.enqueue_sync)
            report = await asyncio.to_thread(harness.drain_sync)
            assert report.counts == {"succeeded": 1}

    @pytest.mark.requirement("EL-04")
    def test_a_plain_function_commits_with_its_own_sql(self, app: tenure.App) -> None:
        assert _sent_by_a_plain_function(app) == [{"address": "ada"}]

    @pytest.mark.requirement("EL-04")
    async def test_an_async_function_commits_with_its_own_sql_also_after_reporting_progress(
        self, app: tenure.App
    ) -> None:
        @app.job()
        async def send(ctx: tenure.Context, to: str) -> str:
            ctx.progress(50, "half")
            async with ctx.commit(result=to) as tx:
                await asyncio.sleep(0)
                await tx.execute("insert into sent values ($1)", to)
            return to

        async with app.testing() as harness:
            await harness.execute("create table sent(address text)")
            handle = await send.enqueue("ada")
            assert (await harness.drain(raise_errors=True)).counts == {"succeeded": 1}
            assert harness.clock.now() == START, "a progress report behind an open block does not move the clock"
            assert await handle.result() == "ada"
            assert await harness.fetch("select address from sent where address = $1", "ada") == [{"address": "ada"}]

    @pytest.mark.parametrize("is_async", [True, False])
    def test_process_jobs_run_in_this_process(self, app: tenure.App, is_async: bool) -> None:
        async def here() -> int:
            return os.getpid()

        def plainly() -> int:
            return os.getpid()

        job = app.job(isolation="process")(here) if is_async else app.job(isolation="process")(plainly)
        with app.testing("inline"):
            assert job.enqueue_sync().job.result == str(os.getpid())


def _sent_by_a_plain_function(app: tenure.App) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    @app.job()
    def send(ctx: tenure.Context, to: str) -> str:
        with ctx.commit(result=to) as tx:
            tx.execute("create table sent(address text)")
            tx.execute("insert into sent values ($1)", to)
            tx.enqueue(look.request())
        return to

    @app.job()
    def look(ctx: tenure.Context) -> None:
        with ctx.commit() as tx:
            found.extend(tx.fetch("select address from sent"))

    with app.testing() as harness:
        send.enqueue_sync("ada")
        assert harness.drain_sync(raise_errors=True).counts == {"succeeded": 2}
    return found


class TestTheClock:
    async def test_who_sleeps_on_it_wakes_when_it_was_moved_that_far(self) -> None:
        clock = HarnessClock()
        sleeper = asyncio.create_task(clock.sleep(10))
        await asyncio.sleep(0)
        clock.advance(9.5)
        await asyncio.sleep(0)
        assert not sleeper.done()
        await asyncio.to_thread(clock.advance, 0.5)
        await asyncio.wait_for(sleeper, 10)
        assert clock.now() - START == timedelta(seconds=10)
        await clock.sleep(0)


PROJECT = """
import pytest
import tenure

app = tenure.App("sqlite:///never.db")

@app.job()
def work(n: int) -> int:
    return 2 * n

before = dict(vars(app))

def test_plain(tenure_testing, tenure_clock):
    harness = tenure_testing(app)
    handle = work.options(delay_seconds=5).enqueue_sync(21)
    assert harness.drain_sync().ran == ()
    tenure_clock.advance(5)
    assert harness.drain_sync().counts == {"succeeded": 1}
    assert harness.run(handle.result) == 42

@pytest.mark.asyncio
async def test_async(tenure_testing, tenure_clock):
    harness = tenure_testing(app, "inline")
    assert harness.clock is tenure_clock
    assert (await work.enqueue(21)).job.result == "42"

@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
@pytest.mark.asyncio
async def test_failing(tenure_testing):
    harness = tenure_testing(app)
    await work.enqueue(21)
    raise ZeroDivisionError

def test_the_app_is_itself_again():
    assert vars(app) == before
"""


def in_subprocess(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


class TestThePlugin:
    def test_pytest_finds_the_fixtures_by_itself_for_async_and_plain_tests(self, tmp_path: Path) -> None:
        (tmp_path / "test_project.py").write_text(PROJECT)
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
        )
        done = in_subprocess("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 passed, 1 xfailed" in done.stdout
        assert not (tmp_path / "never.db").exists()

    def test_it_is_registered_under_the_projects_name(self) -> None:
        [found] = entry_points(group="pytest11", name="tenure")
        assert found.value == "tenure.testing.pytest_plugin"

    def test_every_pytest_run_loads_it_so_it_loads_nothing_else(self, tmp_path: Path) -> None:
        heavy = ["tenure.app", "tenure.lifecycle", "tenure.stores", "tenure.workers", "msgspec"]
        code = f"import sys, tenure.testing.pytest_plugin; print([name for name in {heavy} if name in sys.modules])"
        done = in_subprocess("-c", code, cwd=tmp_path)
        assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr

    async def test_its_fixtures_are_at_hand_here_as_well(
        self, app: tenure.App, tenure_testing: Callable[[tenure.App], Harness], tenure_clock: HarnessClock
    ) -> None:
        @app.job()
        def work() -> None: ...

        harness = tenure_testing(app)
        await work.enqueue()
        assert (await harness.drain()).counts == {"succeeded": 1}
        assert harness.clock is tenure_clock
