"""Wake-ups: at once from this process, and from others by a signal of the kernel. Where that is missing, by polling the
file's version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager, nullcontext

from tenure.seams import Seams
from tenure.stores.sqlite.file_signal import FileSignal

POLL_SECONDS_LEAST, POLL_SECONDS_MOST, POLL_GROWTH = 0.01, 0.1, 1.2
"""How often a waiting subscription polls the file: often at first, since work comes in bursts, then less often."""

FileVersion = Callable[[], Awaitable[int]]


class SqliteNotifier:
    """Sends wake-ups to the subscriptions of this process, in any event loop, and of others, by `signal`."""

    def __init__(self, seams: Seams, file_version: FileVersion, signal: FileSignal | None = None) -> None:
        self._seams = seams
        self._file_version = file_version
        self._signal = signal
        self._signals_soon: asyncio.AbstractEventLoop | None = None
        self._subscriptions: dict[SqliteSubscription, frozenset[str]] = {}

    @asynccontextmanager
    async def subscribe(self, names: Sequence[str]) -> AsyncIterator[SqliteSubscription]:
        subscription = SqliteSubscription(self._seams, self._file_version)
        # Watched before the version is read: a commit between the two is received or seen.
        with nullcontext() if self._signal is None else self._signal.watched(subscription.poll_now):
            subscription.file_version = await self._file_version()
            self._subscriptions[subscription] = frozenset(names)
            try:
                yield subscription
            finally:
                del self._subscriptions[subscription]

    def send(self, names: Set[str], *, notified: bool = False) -> None:
        """Wake the subscriptions to these queues and workers. From any thread."""
        self.send_here(names)
        if self._signal is not None:
            self._signal_soon(self._signal)

    def _signal_soon(self, signal: FileSignal) -> None:
        """One signal for all wake-ups that an event loop sends at a time."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            signal.send()
            return
        if self._signals_soon is not loop:
            self._signals_soon = loop
            loop.call_soon(self._signal_now, signal)

    def _signal_now(self, signal: FileSignal) -> None:
        self._signals_soon = None
        signal.send()

    def send_here(self, names: Set[str]) -> None:
        for subscription, wanted in list(self._subscriptions.items()):
            if not wanted.isdisjoint(names):
                subscription.wake()


class SqliteSubscription:
    """Waits for wake-ups. A wake-up between two waits ends the next wait at once."""

    def __init__(self, seams: Seams, file_version: FileVersion) -> None:
        self._clock, self._spawn = seams.clock, seams.spawn
        self._read_version = file_version
        self._loop = asyncio.get_running_loop()
        self._woken = False
        self._pause_ended = asyncio.Event()
        self.file_version = 0

    def wake(self) -> None:
        """End the wait. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed, so that no task waits there.
            return

    def _wake(self) -> None:
        self._woken = True
        self._pause_ended.set()

    def poll_now(self) -> None:
        """Another process may have committed. A signal of this process's own changes no version, and ends no wait."""
        self._pause_ended.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """True after a wake-up, False after the timeout."""
        deadline = self._clock.monotonic_seconds() + timeout_seconds
        pause = POLL_SECONDS_LEAST
        while True:
            # Cleared before the version is read, so that what comes meanwhile ends the next pause.
            self._pause_ended.clear()
            if self._woken or await self._file_changed():
                self._woken = False
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
        """Until a wake-up, a signal or the end of this time, whichever comes first."""
        ended = self._spawn.task(self._pause_ended.wait(), name="tenure-wakeup")
        slept = self._spawn.task(self._clock.sleep(seconds), name="tenure-poll")
        try:
            await asyncio.wait({ended, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, slept):
                task.cancel()
            await asyncio.wait({ended, slept})
