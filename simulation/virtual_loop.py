"""Virtual time, and processes that can be paused or killed at any await.

A node is a simulated process: whatever its code schedules carries its name in a context variable. After a kill nothing
of it runs, not even a `finally`; while it is paused, everything waits until it continues.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from datetime import datetime, timedelta
from typing import Any

from simulation.random_streams import RandomStream
from tenure.testing.clock import START

CLOSING_TRIES = 20

THE_NODE: ContextVar[Node | None] = ContextVar("tenure_simulated_node", default=None)


class Callback:
    """A scheduled callback, as asyncio's own handles, without what only debugging needs: a run has ten thousand."""

    __slots__ = ("_args", "_callback", "_cancelled", "_when_seconds", "context")

    def __init__(self, callback: Callable[..., Any], args: Any, context: Context | None, when_seconds: float) -> None:
        self._callback, self._args, self._when_seconds, self._cancelled = callback, args, when_seconds, False
        self.context = copy_context() if context is None else context

    def when(self) -> float:
        return self._when_seconds

    def cancel(self) -> None:
        self._cancelled = True
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self, loop: VirtualLoop) -> None:
        try:
            self.context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's own loops
            loop.call_exception_handler({"message": f"exception in callback {self._callback!r}", "exception": error})


class Node:
    """One simulated process: its name, and whether it runs."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name, self.loop = name, loop
        self.dead = False
        self.paused = False
        self.steps = 0
        self.dies_at_step: int | None = None
        self.when_dead: Callable[[], None] = lambda: None
        self._backlog: list[Callback] = []

    def kill(self) -> None:
        """As with SIGKILL: from now on nothing of it runs."""
        if not self.dead:
            self.dead = True
            self._backlog.clear()
            self.when_dead()

    def pause(self) -> None:
        """As with SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """As with SIGCONT: everything that became due in the meantime runs now."""
        self.paused = False
        self.loop.make_ready(self._backlog)
        self._backlog = []

    def may_run(self, handle: Callback) -> bool:
        """Whether this process takes its next step now: not if it is dead, dies here, or is paused."""
        if self.dead:
            return False
        if self.paused:
            self._backlog.append(handle)
            return False
        self.steps += 1
        if self.dies_at_step is not None and self.steps >= self.dies_at_step:
            self.kill()
            return False
        return True


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as no callback is ready."""

    def __init__(self, chance: RandomStream) -> None:
        self._chance = chance
        self._now_seconds = 0.0
        self._ready: deque[Callback]  # the usual loop's own, also filled by what it does itself
        self._timers: list[tuple[float, int, Callback]] = []
        self._timers_set = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.turns = 0
        super().__init__(_NoSelector())

    def time(self) -> float:
        return self._now_seconds

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Callback:
        handle = Callback(callback, args, context, self._now_seconds)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Callback:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Callback:
        timer = Callback(callback, args, context, when)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Callback:
        return self.call_at(self._now_seconds + delay, callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Nothing is destroyed before the run ends, so that no `finally` of a killed process runs meanwhile."""
        task = super().create_task(coro, **options)
        self._tasks.append(task)
        return task

    def close(self) -> None:
        """Close the coroutines of killed processes. A task must live until its coroutine is closed: a timeout inside
        refers to the task, and dropping the last reference would close the coroutine a second time. What their
        `finally`s schedule runs on this loop."""
        asyncio._set_running_loop(self)  # noqa: SLF001 - it is meant for loops, and this is one
        try:
            for task in self._tasks:
                if not task.done():
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
        self._tasks.clear()
        self._timers.clear()
        super().close()

    def make_ready(self, handles: Iterable[Callback]) -> None:
        """Run the postponed callbacks in the next iteration."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        """One iteration without selectors. Callbacks that are ready at the same time run in random order."""
        self.turns += 1
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        batch: list[Any] = [*self._ready]
        self._ready.clear()
        if not batch:
            if not timers:
                raise Deadlock("nothing is ready, and nothing is due")
            self._now_seconds = max(self._now_seconds, timers[0][0])
        while timers and timers[0][0] <= self._now_seconds:
            batch.append(heapq.heappop(timers)[2])
        if len(batch) > 1:
            self._chance.shuffle(batch)
        for handle in batch:
            if handle.cancelled():
                continue
            node = handle.context.get(THE_NODE)
            if node is None or node.may_run(handle):
                handle.run(self)


class DatabaseClock:
    """The database's clock: the loop's time plus its offset."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset_seconds = 0.0
        self._read_seconds, self._read_at = 0.0, START

    def now(self) -> datetime:
        seconds = self._loop.time() + self.offset_seconds
        if seconds != self._read_seconds:
            self._read_seconds, self._read_at = seconds, START + timedelta(seconds=round(seconds, 6))
        return self._read_at

    def monotonic_seconds(self) -> float:
        return self._loop.time()

    def advance(self, seconds: float) -> None:
        self.offset_seconds += seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - the loop's time is virtual


def _close(body: Any) -> None:
    """Close a coroutine, however often it awaits in its `finally`s."""
    for _ in range(CLOSING_TRIES):
        with suppress(Exception):
            body.close()
            return


class Deadlock(Exception):
    """No callback is ready and no timer is set, so that every waiting task would wait for ever."""


class _NoSelector(selectors.BaseSelector):
    """No other thread calls into the loop."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[Any]:
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class Begun(Coroutine[Any, Any, None]):
    """A coroutine that was started by hand and is waiting: a task can run the rest of it."""

    def __init__(self, body: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._body, self._waits_for = body, waits_for

    def send(self, value: Any) -> Any:
        if self._waits_for is not None:
            waits_for, self._waits_for = self._waits_for, None
            return waits_for
        return self._body.send(value)

    def throw(self, *error: Any) -> Any:
        return self._body.throw(*error)

    def close(self) -> None:
        self._body.close()

    def __await__(self) -> Any:
        return self._body.__await__()


def in_node(node: Node, function: Callable[[], Any]) -> Any:
    """Call the function as this process: what it schedules belongs to the process."""
    context = copy_context()
    context.run(THE_NODE.set, node)
    return context.run(function)
