"""Tasks for attempts: those that never wait take turns in one, and whoever waits keeps the one that it is in.

A task of its own for every job costs more than many jobs do. Whether one needs it, to wait in, is only known once it
happens: then the event loop gets to run something else, and two other tasks go on with the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import copy_context
from typing import Protocol

from tenure.jobs.context import current_context
from tenure.seams import Spawner

TURNS_MAX = 100
"""After so many the event loop has its turn: others have something to do as well."""

log = logging.getLogger("tenure.workers")


class SharedTask(Protocol):
    """Something to run in a task."""

    async def live(self, task: asyncio.Task[None]) -> None:
        """Run in this task, which is nobody else's until this returns. Raises nothing."""
        ...


class SharedTasks:
    """Runs what it is given, in its order, on the event loop that it was made on.

    Nothing is carried over from one turn to the next: a task in which context variables were set, or which somebody
    has cancelled, is not used again; nor is one whose turn has waited: there are libraries that know whom they serve by
    the task.
    """

    def __init__(self, spawn: Spawner) -> None:
        self._spawn, self._loop = spawn, asyncio.get_running_loop()
        self._waiting: deque[SharedTask] = deque()
        self._sharing: set[asyncio.Task[None]] = set()

    def add(self, turn: SharedTask) -> None:
        """Run this soon."""
        self._waiting.append(turn)
        if not self._sharing:
            self._share()

    def _share(self) -> None:
        self._sharing.add(self._spawn.task(self._take_turns(), name="tenure-jobs"))

    async def _take_turns(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "this is a task"
        # Whoever has begun this may have been a job itself.
        current_context.set(None)
        clean = copy_context()
        if not self._waiting:
            self._sharing.discard(task)
            return
        watch = self._loop.call_soon(self._waits, task)
        for _ in range(TURNS_MAX):
            try:
                await self._waiting.popleft().live(task)
            except Exception:
                # A bug of ours. The others must not wait for ever because of it.
                log.exception("an attempt could not be seen to its end")
            if task not in self._sharing:
                return
            current_context.set(None)
            if not self._waiting or task.cancelling() or copy_context() != clean:
                break
        watch.cancel()
        self._sharing.discard(task)
        if self._waiting and not self._sharing:
            # A new task begins with the context that it is made in, which must not be that of the last turn.
            clean.run(self._share)

    def _waits(self, task: asyncio.Task[None]) -> None:
        """The loop is back although the task has more to do: its turn waits for something, and goes on by itself."""
        self._sharing.discard(task)
        for _ in range(min(2, len(self._waiting))):
            self._share()
