"""A limit of time for calls of any number of tasks, each of which may take equally long."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimit:
    """`with limit.call():` is like `asyncio.timeout`: what is awaited inside is cancelled after so many seconds, and
    TimeoutError is raised.

    One timer serves all calls, since few of them reach the limit: setting one for each call costs more than the rest of
    a delivery. `close` removes the timer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[LimitedCall, None] = {}
        """Those that run, in the order of their ends."""
        self._timer: asyncio.TimerHandle | None = None

    def call(self) -> LimitedCall:
        """One call of the current task."""
        return LimitedCall(self)

    def close(self) -> None:
        """Remove the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self, call: LimitedCall) -> float:
        """Count the time of a call. Returns when it ends."""
        loop = asyncio.get_running_loop()
        ends_at_seconds = loop.time() + self._seconds
        self._calls[call] = None
        if self._timer is None:
            self._timer = loop.call_at(ends_at_seconds, self._check, loop)
        return ends_at_seconds

    def end(self, call: LimitedCall) -> None:
        """The call has ended."""
        self._calls.pop(call, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_seconds = loop.time()
        while self._calls:
            call = next(iter(self._calls))
            if now_seconds < call.ends_at_seconds:
                self._timer = loop.call_at(call.ends_at_seconds, self._check, loop)
                return
            del self._calls[call]
            call.expire()


class LimitedCall:
    """A call under a limit. `expired` is whether the limit has cancelled it."""

    __slots__ = ("_cancellations", "_limit", "_task", "ends_at_seconds", "expired")

    def __init__(self, limit: TimeLimit) -> None:
        self._limit, self.expired = limit, False

    def __enter__(self) -> LimitedCall:
        task = asyncio.current_task()
        assert task is not None, "a limit applies to the calls of a task"
        self._task: asyncio.Task[object] = task
        self._cancellations = task.cancelling()
        self.ends_at_seconds = self._limit.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.end(self)
        if self.expired:
            is_mine = self._task.uncancel() <= self._cancellations
            if is_mine and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from error

    def expire(self) -> None:
        """Cancel what is awaited."""
        self.expired = True
        self._task.cancel()
