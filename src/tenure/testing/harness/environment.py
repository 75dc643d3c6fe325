"""The world of an app that is being tested: its clock, its tasks, its database, and the event loop of it all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from tenure.lifecycle.records import Role
from tenure.seams import SYSTEM, JoinHandle, ProcessHandle, Seams, Spawner
from tenure.stores.contract import EnqueueRequest, EnqueueResult, Outcome, Request
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import START, ManualClock

T = TypeVar("T")

MEMORY = ":memory:"


class HarnessClock(ManualClock):
    """A manual clock on which one can sleep: until it was moved that far by somebody else."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start)
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def advance(self, seconds: float) -> None:
        """Move the clock, from any thread, and do nothing else: a job that runs meanwhile sends no heartbeat."""
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
    """The same time as the app itself sees it: whoever waits there has the bench work and move on."""

    def __init__(self, clock: ManualClock, wait: Callable[[float], Awaitable[None]]) -> None:
        self._clock, self._wait = clock, wait

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic_seconds(self) -> float:
        return self._clock.monotonic_seconds()

    async def sleep(self, seconds: float) -> None:
        await self._wait(seconds)


class HarnessSpawner:
    """Remembers the tasks that it starts, so that none outlives the test."""

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
        """Cancel what is left on this loop. What is on another one ends with it."""
        here = asyncio.get_running_loop()
        left = [task for task in self._tasks if task.get_loop() is here and not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


class Bystander(Protocol):
    """Who is told of what clients do."""

    async def added(self, added: list[EnqueueResult]) -> list[EnqueueResult]:
        """Jobs were added; what to answer for them."""
        ...

    async def changed(self) -> None:
        """A client has changed jobs, perhaps some that run just now."""
        ...


class HarnessStore(SqliteStore):
    """A database in memory, on the caller's thread, by a clock that stands still."""

    def __init__(self, seams: Seams, bystander: Bystander) -> None:
        super().__init__(MEMORY, seams=seams, database_clock=seams.clock.now, inline=True)
        self._bystander = bystander

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> list[EnqueueResult]:
        return await self._bystander.added(list(await super().enqueue(requests, after=after)))

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await super().apply(requests)
        if any(request.actor.role is Role.CLIENT for request in requests):
            await self._bystander.changed()
        return outcomes


class HomeLoop:
    """The event loop that the test lives on. Plain code in other threads, also of jobs, has its calls done there."""

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
        """The result of the coroutine. Refused inside a running loop, which it would block."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        raise RuntimeError("this call would block the running event loop; use the async form and await it")
