"""Hints that work may have come: at once from this process, by a look at the file's version from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from tenure.seams import Seams

LOOK_SECONDS_LEAST, LOOK_SECONDS_MOST, LOOK_GROWTH = 0.01, 0.1, 1.2
"""How often the file is looked at while somebody waits: often at first, since work comes in bursts, then seldom."""

FileVersion = Callable[[], Awaitable[int]]


class SqliteNotifier:
    """Who waits for which queues, in which event loop."""

    def __init__(self, seams: Seams, file_version: FileVersion) -> None:
        self._seams = seams
        self._file_version = file_version
        self._waiting: dict[SqliteSubscription, frozenset[str]] = {}

    @asynccontextmanager
    async def listen(self, queues: Iterable[str]) -> AsyncIterator[SqliteSubscription]:
        waiting = SqliteSubscription(self._seams, self._file_version)
        waiting.file_version = await self._file_version()
        self._waiting[waiting] = frozenset(queues)
        try:
            yield waiting
        finally:
            del self._waiting[waiting]

    def give(self, queues: Iterable[str]) -> None:
        """From any thread: there may be work in these queues."""
        names = set(queues)
        for waiting, wanted in list(self._waiting.items()):
            if names & wanted:
                waiting.hint()

    def give_later(self, queues: Iterable[str], seconds: float) -> None:
        """The same once this time is over, for those who still wait then."""
        asyncio.get_running_loop().call_later(seconds, self.give, frozenset(queues))


class SqliteSubscription:
    """One who waits. Hints that come between two waits are kept."""

    def __init__(self, seams: Seams, file_version: FileVersion) -> None:
        self._clock, self._spawn = seams.clock, seams.spawn
        self._read_version = file_version
        self._loop = asyncio.get_running_loop()
        self._hinted = asyncio.Event()
        self.file_version = 0

    def hint(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hinted.set)
        except RuntimeError:
            # Its loop is closed, so nobody waits there.
            return

    async def wait(self, timeout_seconds: float) -> bool:
        """True when a hint came, False when the time was up."""
        deadline = self._clock.monotonic_seconds() + timeout_seconds
        pause = LOOK_SECONDS_LEAST
        while True:
            if self._hinted.is_set() or await self._changed_elsewhere():
                self._hinted.clear()
                return True
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0:
                return False
            await self._nap(min(left, pause))
            pause = min(LOOK_SECONDS_MOST, LOOK_GROWTH * pause)

    async def _changed_elsewhere(self) -> bool:
        version = await self._read_version()
        changed = version != self.file_version
        self.file_version = version
        return changed

    async def _nap(self, seconds: float) -> None:
        """Until the hint or the end of this time, whichever comes first."""
        hinted = self._spawn.task(self._hinted.wait(), name="tenure-hint")
        slept = self._spawn.task(self._clock.sleep(seconds), name="tenure-nap")
        try:
            await asyncio.wait({hinted, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hinted, slept):
                task.cancel()
            await asyncio.wait({hinted, slept})
