"""Where a function runs: on the event loop, in a thread, or in a process of its own."""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tenure.jobs.middleware import Middleware
from tenure.seams import Spawner
from tenure.workers.execution.attempt import AttemptRun
from tenure.workers.execution.invoke import call
from tenure.workers.execution.outcomes import Outcome


class Executor(Protocol):
    """Runs one attempt and says what it came to. Cancelling the call ends the work, as far as that can be done."""

    def outcome(self, run: AttemptRun) -> Awaitable[Outcome]: ...

    async def close(self) -> None: ...


class TaskExecutor:
    """Async functions on the worker's own event loop."""

    def __init__(self, layers: Sequence[Middleware]) -> None:
        self._layers = layers

    def outcome(self, run: AttemptRun) -> Awaitable[Outcome]:
        return call(run.kind, run, self._layers, _awaited)

    async def close(self) -> None:
        return None


class ThreadExecutor:
    """Plain functions in threads. A thread cannot be ended from outside: one that is given up on goes on by itself,
    and nothing that it does under its job's lease is recorded any more."""

    def __init__(self, layers: Sequence[Middleware], spawn: Spawner) -> None:
        self._layers, self._spawn = layers, spawn
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    async def outcome(self, run: AttemptRun) -> Outcome:
        return await call(run.kind, run, self._layers, self._in_thread)

    async def close(self) -> None:
        self._closed = True
        for thread in self._idle:
            thread.put(None)
        self._idle.clear()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        work = self._idle.pop() if self._idle else self._new_thread()

        def body() -> None:
            try:
                value, error = context.run(function), None
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the answer
                value, error = None, raised
            _deliver(loop, lambda: self._done(work, answer, value, error))

        work.put(body)
        return await answer

    def _done(
        self,
        work: queue.SimpleQueue[Callable[[], None] | None],
        answer: asyncio.Future[Any],
        value: Any,
        error: BaseException | None,
    ) -> None:
        if self._closed:
            work.put(None)
        else:
            self._idle.append(work)
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        elif isinstance(error, StopIteration):
            # A future cannot carry it, and it must not end anybody's generator.
            stopped = RuntimeError(f"the job raised {error!r}")
            stopped.__cause__ = error
            answer.set_exception(stopped)
        else:
            answer.set_exception(error)

    def _new_thread(self) -> queue.SimpleQueue[Callable[[], None] | None]:
        work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        def live() -> None:
            while (body := work.get()) is not None:
                body()

        self._spawn.thread(live, name="tenure-job")
        return work


def _awaited(function: Callable[[], Any]) -> Awaitable[Any]:
    called: Awaitable[Any] = function()
    return called


def _deliver(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(done)
    except RuntimeError:
        # The worker is gone: its loop is closed, and nobody waits for the answer.
        return
