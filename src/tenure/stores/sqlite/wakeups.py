"""Wake-ups: at once from this process, by polling the file's version from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from tenure.seams import Seams

POLL_SECONDS_LEAST, POLL_SECONDS_MOST, POLL_GROWTH = 0.01, 0.1, 1.2
"""How often a waiting subscription polls the file: often at first, since work comes in bursts, then less often."""

FileVersion = Callable[[], Awaitable[int]]


class SqliteNotifier:
    """Sends wake-ups to the subscriptions of this process, in any event loop."""

    def __init__(self, seams: Seams, file_version: FileVersion) -> None:
        self._seams = seams
        self._file_version = file_version
        self._subscriptions: dict[SqliteSubscription, frozenset[str]] = {}

    @asynccontextmanager
    async def subscribe(self, names: Iterable[str]) -> AsyncIterator[SqliteSubscription]:
        subscription = SqliteSubscription(self._seams, self._file_version)
        subscription.file_version = await self._file_version()
        self._subscriptions[subscription] = frozenset(names)
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]

    def send(self, names: Iterable[str]) -> None:
        """Wake the subscriptions to these queues and workers. From any thread."""
        sent = set(names)
        for subscription, wanted in list(self._subscriptions.items()):
            if sent & wanted:
                subscription.wake()

    def send_later(self, names: Iterable[str], seconds: float) -> None:
        """Send the wake-up after this time."""
        asyncio.get_running_loop().call_later(seconds, self.send, frozenset(names))


class SqliteSubscription:
    """Waits for wake-ups. A wake-up between two waits ends the next wait at once."""

    def __init__(self, seams: Seams, file_version: FileVersion) -> None:
        self._clock, self._spawn = seams.clock, seams.spawn
        self._read_version = file_version
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.file_version = 0

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            # The loop is closed, so that no task waits there.
            return

    async def wait(self, timeout_seconds: float) -> bool:
        """True after a wake-up, False after the timeout."""
        deadline = self._clock.monotonic_seconds() + timeout_seconds
        pause = POLL_SECONDS_LEAST
        while True:
            if self._woken.is_set() or await self._file_changed():
                self._woken.clear()
                return True
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0:
                return False
            await self._sleep(min(left, pause))
            pause = min(POLL_SECONDS_MOST, POLL_GROWTH * pause)

    async def _file_changed(self) -> bool:
        version = await self._read_version()
        changed = version != self.file_version
        self.file_version = version
        return changed

    async def _sleep(self, seconds: float) -> None:
        """Until a wake-up or the end of this time, whichever comes first."""
        woken = self._spawn.task(self._woken.wait(), name="tenure-wakeup")
        slept = self._spawn.task(self._clock.sleep(seconds), name="tenure-poll")
        try:
            await asyncio.wait({woken, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (woken, slept):
                task.cancel()
            await asyncio.wait({woken, slept})
