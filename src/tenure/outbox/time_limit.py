"""A limit of time for calls that follow one another in a task."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimit:
    """Like `asyncio.timeout`: what is awaited inside is cancelled after so many seconds, and TimeoutError is raised.

    It belongs to the task that makes it. One timer serves all calls of the task, since few of them reach the limit:
    setting one for each call costs more than the rest of a delivery. `close` removes the timer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        task = asyncio.current_task()
        assert task is not None, "a limit applies to the calls of a task"
        self._task: asyncio.Task[object] = task
        self._loop = asyncio.get_running_loop()
        self._is_inside = False
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at_seconds, self._cancellations = 0.0, 0
        self._expired = False

    def __enter__(self) -> None:
        self._is_inside, self._expired = True, False
        self._cancellations = self._task.cancelling()
        self._ends_at_seconds = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._ends_at_seconds, self._check)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_inside = False
        if self._expired:
            is_mine = self._task.uncancel() <= self._cancellations
            if is_mine and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from error

    def close(self) -> None:
        """Remove the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if not self._is_inside:
            return
        if self._loop.time() < self._ends_at_seconds:
            self._timer = self._loop.call_at(self._ends_at_seconds, self._check)
            return
        self._expired = True
        self._task.cancel()
