"""Runs attempts' coroutines in shared tasks. A task per job would cost more than a short job's function does.

A coroutine that never suspends shares its task with others. One that suspends keeps the task for itself, and other
tasks run the rest: a function may identify itself by its task (timeouts, cancellation, libraries with state per task).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from tenure.jobs.context import current_context
from tenure.seams import Spawner

RUNS_MAX = 100
"""A task ends after this many coroutines, so that the event loop can serve other tasks."""

log = logging.getLogger("tenure.workers")

T = TypeVar("T")


class SharedTasks(Generic[T]):
    """Runs a coroutine function on items, in the order in which they were added, on the event loop that it was made on.

    Nothing is carried from one coroutine to the next: a task in which context variables were set, which was cancelled,
    or in which a coroutine was suspended is not used again.
    """

    def __init__(self, run: Callable[[T, asyncio.Task[None]], Coroutine[Any, Any, None]], spawn: Spawner) -> None:
        self._run, self._spawn, self._loop = run, spawn, asyncio.get_running_loop()
        self._queued: deque[T] = deque()
        self._sharing: set[asyncio.Task[None]] = set()

    def add(self, item: T) -> None:
        """Run the coroutine for this item soon. An error that it raises is only logged."""
        self._queued.append(item)
        if not self._sharing:
            self._start_task()

    def _start_task(self) -> None:
        self._sharing.add(self._spawn.task(self._run_queued(), name="tenure-jobs"))

    async def _run_queued(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "this is a task"
        # A job's function may have started this task, and a task inherits its context.
        current_context.set(None)
        clean = copy_context()
        if not self._queued:
            self._sharing.discard(task)
            return
        suspension = self._loop.call_soon(self._suspended, task)
        for _ in range(RUNS_MAX):
            try:
                await self._run(self._queued.popleft(), task)
            except Exception:
                log.exception("attempt ended with an unhandled error; recovery takes its job over")
            if task not in self._sharing:
                return
            current_context.set(None)
            if not self._queued or task.cancelling() or copy_context() != clean:
                break
        suspension.cancel()
        self._sharing.discard(task)
        if self._queued and not self._sharing:
            # The new task must not inherit the context variables of the last coroutine.
            clean.run(self._start_task)

    def _suspended(self, task: asyncio.Task[None]) -> None:
        """The event loop runs although the task has not ended: its coroutine is suspended and keeps the task."""
        self._sharing.discard(task)
        for _ in range(min(2, len(self._queued))):
            self._start_task()
