"""`Middleware.run_sync`: on the thread that the function runs on, inside of `run`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import tenure


class Noted(tenure.Middleware):
    """Notes the calls of its hooks with their threads."""

    def __init__(self, name: str, calls: list[tuple[str, int]]) -> None:
        self.name, self.calls = name, calls

    async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append((f"{self.name}.run", threading.get_ident()))
        return await proceed()

    def run_sync(self, ctx: tenure.Context, proceed: Callable[[], Any]) -> Any:
        self.calls.append((f"{self.name}.run_sync {ctx.job.kind}", threading.get_ident()))
        return proceed()


async def test_run_sync_is_called_on_the_thread_of_the_function_from_the_outermost_layer_inwards() -> None:
    calls: list[tuple[str, int]] = []
    app = tenure.App("sqlite:///unused.db", middleware=[Noted("first", calls), Noted("second", calls)])

    @app.job
    def where() -> int:
        return threading.get_ident()

    async with app.testing() as harness:
        handle = await where.enqueue()
        await harness.drain()
        thread = await handle.result()
    assert thread != threading.get_ident()
    assert [name for name, _ in calls] == ["first.run", "second.run", "first.run_sync where", "second.run_sync where"]
    assert [ident for name, ident in calls if "run_sync" in name] == [thread, thread]


async def test_run_sync_surrounds_the_sync_steps_of_a_workflow_and_no_async_function() -> None:
    calls: list[tuple[str, int]] = []
    app = tenure.App("sqlite:///unused.db", middleware=[Noted("only", calls)])

    def plain() -> int:
        return threading.get_ident()

    @app.workflow
    async def steps(run: tenure.Run) -> int:
        return await run.step(plain)

    @app.job
    async def alone() -> None: ...

    async with app.testing() as harness:
        handle = await steps.enqueue()
        await alone.enqueue()
        await harness.drain()
        thread = await handle.result()
    assert [(name, ident) for name, ident in calls if "run_sync" in name] == [("only.run_sync steps", thread)]


async def test_an_error_of_run_sync_is_the_outcome_of_the_job() -> None:
    class Refusing(tenure.Middleware):
        def run_sync(self, ctx: tenure.Context, proceed: Callable[[], Any]) -> Any:
            raise tenure.PermanentError("not on this thread")

    app = tenure.App("sqlite:///unused.db", middleware=[Refusing()])

    @app.job(on_exhausted="fail")
    def never() -> None:
        raise AssertionError("it is not called")

    async with app.testing() as harness:
        handle = await never.enqueue()
        await harness.drain()
        job = await handle.refresh()
    assert "not on this thread" in (job.error or job.last_error or "")
