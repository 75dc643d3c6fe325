"""What an app under test runs on: clock, tasks, database and event loop of the test harness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.lifecycle.records import Role
from tenure.seams import SYSTEM, JoinHandle, ProcessHandle, Seams, Spawner
from tenure.stores.contract import EnqueueRequest, EnqueueResult, Outcome, Request
from tenure.stores.sqlite.connect import MEMORY
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import START, ManualClock

if TYPE_CHECKING:
    from tenure.testing.harness.harness import Harness

T = TypeVar("T")


class HarnessClock(ManualClock):
    """A manual clock whose `sleep` returns once `advance` has moved the clock that far."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start)
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def advance(self, seconds: float) -> None:
        """Move the clock, from any thread. Running jobs send no heartbeat."""
        super().advance(seconds)
        for wakes_at_seconds, sleeper in list(self._sleepers):
            if wakes_at_seconds <= self.monotonic_seconds():
                sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await SYSTEM.clock.sleep(0)
            return
        sleeper = (self.monotonic_seconds() + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.remove(sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class AppClock:
    """The harness clock as the app sees it: its `sleep` runs due jobs and then moves the clock."""

    def __init__(self, clock: ManualClock, wait: Callable[[float], Awaitable[None]]) -> None:
        self._clock, self._wait = clock, wait

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic_seconds(self) -> float:
        return self._clock.monotonic_seconds()

    async def sleep(self, seconds: float) -> None:
        await self._wait(seconds)


class HarnessSpawner:
    """Keeps track of the tasks that it starts, so that none outlives the test."""

    def __init__(self, inner: Spawner) -> None:
        self._inner = inner
        self._tasks: set[asyncio.Task[Any]] = set()

    def thread(self, body: Callable[[], None], *, name: str) -> JoinHandle:
        return self._inner.thread(body, name=name)

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = self._inner.task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        return self._inner.process(body, *arguments, name=name)

    async def end_all(self) -> None:
        """Cancel the unfinished tasks of this loop. Tasks of another loop end with that loop."""
        here = asyncio.get_running_loop()
        left = [task for task in self._tasks if task.get_loop() is here and not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


class HarnessStore(SqliteStore):
    """SQLite in memory, on the caller's thread, with the harness clock as the database's clock. What clients write is
    passed to the harness."""

    def __init__(self, seams: Seams, harness: Harness) -> None:
        super().__init__(MEMORY, seams=seams, database_clock=seams.clock.now, inline=True)
        self._harness = harness

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> list[EnqueueResult]:
        return await self._harness.added(list(await super().enqueue(requests, after=after)))

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await super().apply(requests)
        if any(request.actor.role is Role.CLIENT for request in requests):
            await self._harness.changed()
        return outcomes


class HarnessLoop:
    """The event loop of the harness. Calls from other threads, those of jobs included, run on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    @property
    def is_running(self) -> bool:
        return self._loop.is_running()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the coroutine. Raises RuntimeError inside a running loop, which it would block."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        raise RuntimeError("this call would block the running event loop; use the async form and await it")
