"""Steps with `isolation="process"`: a crash costs the step and nothing else, and a kill ends them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

import tenure
from tests.support.in_process_worker import working
from tests.support.waiting import eventually
from tests.workflow import process_steps
from tests.workflow.process_steps import NOON, Page, Refused

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)
SECONDS = 90


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.requirement("WF-08", "WF-05")
async def test_a_step_runs_in_a_process_of_its_own_with_types_key_and_spend(app: tenure.App) -> None:
    @app.workflow()
    async def measured(run: tenure.Run) -> list[str]:
        isolated = run.using(isolation="process")
        pid, factor, page = await isolated.step(process_steps.measure, Page("otters", NOON), factor=3)
        assert (pid != os.getpid(), factor, page) == (True, 3, Page("OTTERS", NOON))
        assert await isolated.step(process_steps.loops) == 7
        keys = await isolated.map(process_steps.identify, [[1, 2], [3]], concurrency=2)
        return sorted(keys)

    async with app, working(app):
        handle = await measured.enqueue()
        keys = await handle.result(timeout_seconds=SECONDS)
        steps = await (await app.store()).steps(handle.id)
    assert keys == [f"{handle.id}/2/0 3", f"{handle.id}/2/1 3"]
    assert steps[0].spend == '{"cost":0.25}'


@pytest.mark.requirement("WF-08", "WF-05", "WF-06")
async def test_errors_of_another_process_are_raised_as_those_of_this_one(app: tenure.App) -> None:
    @app.workflow(errors=[Refused])
    async def refused(run: tenure.Run) -> int:
        isolated = run.using(isolation="process")
        with pytest.raises(tenure.StepFailed, match="Expected `array`"):
            await isolated.step(cast(Any, process_steps.identify), None)
        try:
            await isolated.step(process_steps.refuse, 7)
        except Refused as error:
            return error.code
        return 0

    async with app, working(app):
        handle = await refused.enqueue()
        assert await handle.result(timeout_seconds=SECONDS) == 7


@pytest.mark.requirement("WF-08")
async def test_a_step_whose_process_dies_has_failed_and_is_retried(app: tenure.App, tmp_path: Path) -> None:
    @app.workflow()
    async def risky(run: tenure.Run, *, retries: bool) -> str:
        on_error = run.using(isolation="process", on_error="retry" if retries else "abort", backoff=AT_ONCE)
        return await on_error.step(process_steps.dies, str(tmp_path / f"died-{retries}"))

    async with app, working(app):
        retried, aborted = await risky.enqueue(retries=True), await risky.enqueue(retries=False)
        assert await retried.result(timeout_seconds=SECONDS) == "survived"
        with pytest.raises(tenure.JobFailed, match="ProcessDied"):
            await aborted.result(timeout_seconds=SECONDS)


@pytest.mark.requirement("WF-10", "WF-08")
@pytest.mark.parametrize("how", ["a cancel", "a timeout", "the end of the worker"])
async def test_a_process_is_killed_with_its_step(app: tenure.App, tmp_path: Path, how: str) -> None:
    marker = tmp_path / "pid"

    @app.workflow(max_attempts=1)
    async def stuck(run: tenure.Run) -> None:
        isolated = run.using(isolation="process")
        if how == "a timeout":
            # As often as it takes until an attempt has written its marker in time.
            isolated = run.using(
                isolation="process", timeout_seconds=2.0, on_error="retry", max_attempts=1000, backoff=AT_ONCE
            )
        await isolated.step(process_steps.hangs, str(marker))

    async with app:
        async with working(app, grace_seconds=0.1):
            handle = await stuck.enqueue()
            await eventually(marker.exists, seconds=SECONDS)
            pid = int(marker.read_text())
            if how == "a timeout":
                await eventually(lambda: not is_alive(pid), seconds=SECONDS)

                async def is_recorded() -> bool:
                    return "TimeoutError" in str(await (await app.store()).steps(handle.id))

                await eventually(is_recorded, seconds=SECONDS)
            if how != "the end of the worker":
                await handle.cancel()
                with pytest.raises(tenure.JobCancelled):
                    await handle.result(timeout_seconds=SECONDS)
        await eventually(lambda: not is_alive(pid), seconds=SECONDS)


async def test_a_function_that_no_process_can_find_is_refused_at_the_call(app: tenure.App) -> None:
    def local() -> None:
        return None

    @app.workflow(max_attempts=1)
    async def wrong(run: tenure.Run) -> None:
        await run.using(isolation="process").step(local)

    async with app, working(app):
        handle = await wrong.enqueue()
        with pytest.raises(tenure.JobFailed, match="top level"):
            await handle.result(timeout_seconds=SECONDS)


async def test_the_harness_executes_such_a_step_in_its_own_process() -> None:
    app = tenure.App("sqlite:///unused.db")

    @app.workflow
    async def measured(run: tenure.Run) -> bool:
        pid, _, page = await run.using(isolation="process").step(process_steps.measure, Page("a", NOON))
        return (pid, page) == (os.getpid(), Page("A", NOON))

    async with app.testing() as harness:
        handle = await measured.enqueue()
        await harness.run_all()
        assert await handle.result()


def test_another_isolation_is_refused() -> None:
    from tenure.workflow.step_call import StepOptions

    with pytest.raises(tenure.InvalidInput, match="process of its own"):
        StepOptions(isolation="thread")  # type: ignore[arg-type]
