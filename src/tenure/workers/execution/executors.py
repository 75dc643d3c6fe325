"""Where a function runs: in a task of the event loop, or in a thread. `process/` has the executor for processes."""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tenure.jobs.middleware import Middleware, on_thread
from tenure.observe.meter import Meter
from tenure.seams import Clock, Spawner
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.invoke import invoke
from tenure.workers.execution.outcomes import Outcome

Work = queue.SimpleQueue[Callable[[], None] | None]
"""The calls for one thread. None ends the thread."""


class Executor(Protocol):
    """Invokes an attempt's function. Cancelling the awaitable stops the function where that is possible."""

    def invoke(self, attempt: RunningAttempt) -> Awaitable[Outcome]: ...

    async def close(self) -> None: ...


class TaskExecutor:
    """Runs async functions on the worker's event loop."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware

    def invoke(self, attempt: RunningAttempt) -> Awaitable[Outcome]:
        return invoke(attempt.definition, attempt, self._middleware, _call)

    async def close(self) -> None:
        return None


class ThreadExecutor:
    """Runs plain functions in threads. A thread cannot be stopped: the function of an abandoned attempt runs on, and
    its result is ignored. Threads are started as needed and reused."""

    def __init__(self, middleware: Sequence[Middleware], spawn: Spawner) -> None:
        self._middleware, self._spawn = middleware, spawn
        self._idle: list[Work] = []
        self._closed = False

    def invoke(self, attempt: RunningAttempt) -> Awaitable[Outcome]:
        return invoke(attempt.definition, attempt, self._middleware, self.call)

    async def close(self) -> None:
        self._closed = True
        for work in self._idle:
            work.put(None)
        self._idle.clear()

    async def call(self, function: Callable[[], Any]) -> Any:
        """The result of the function, which runs in a thread, inside `run_sync` of the middleware."""
        function = on_thread(self._middleware, function)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        work = self._idle.pop() if self._idle else self._start_thread()

        def body() -> None:
            try:
                value, error = context.run(function), None
            except BaseException as raised:  # noqa: BLE001 - the error is set on the future
                value, error = None, raised
            try:
                loop.call_soon_threadsafe(self._finish, work, result, value, error)
            except RuntimeError:
                # The worker has ended and its event loop is closed.
                return

        work.put(body)
        return await result

    def _finish(self, work: Work, result: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        if self._closed:
            work.put(None)
        else:
            self._idle.append(work)
        if not result.done():
            set_result(result, value, error)

    def _start_thread(self) -> Work:
        work: Work = queue.SimpleQueue()

        def run_calls() -> None:
            while (body := work.get()) is not None:
                body()

        self._spawn.thread(run_calls, name="tenure-job")
        return work


class TimedExecutor:
    """Measures how long functions run, interrupted ones included."""

    def __init__(self, executor: Executor, meter: Meter, clock: Clock) -> None:
        self._executor, self._meter, self._monotonic_seconds = executor, meter, clock.monotonic_seconds

    async def invoke(self, attempt: RunningAttempt) -> Outcome:
        began_at_seconds = self._monotonic_seconds()
        try:
            return await self._executor.invoke(attempt)
        finally:
            self._meter.ran(attempt.job.origin.kind, self._monotonic_seconds() - began_at_seconds)

    async def close(self) -> None:
        await self._executor.close()


def set_result(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Set a function's result or error. A future does not accept StopIteration, so that is wrapped."""
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        wrapped = RuntimeError(f"the job raised {error!r}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    else:
        future.set_exception(error)


def _call(function: Callable[[], Any]) -> Awaitable[Any]:
    awaitable: Awaitable[Any] = function()
    return awaitable
