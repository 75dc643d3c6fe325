"""How long to wait between tries while the database is unavailable, what is logged of it, and the wait of a worker that
starts."""

from __future__ import annotations

import asyncio
import logging
import threading

from tenure.errors import StoreUnavailable, TenureError
from tenure.seams import Seams

WAIT_SECONDS_MIN, WAIT_SECONDS_MAX = 0.05, 2.0

log = logging.getLogger("tenure.workers")


class DatabaseAvailability:
    """Whether the database replies to the parts of a worker, such as the pool and the completer.

    One line is logged when it does not reply to one of them, and one when it has replied to all of them again. The
    parts call this from several threads.
    """

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._lock = threading.Lock()
        self._failing: set[object] = set()
        self._failed_at_seconds = 0.0

    def failed(self, part: object, message: str, error: Exception) -> None:
        """Log that this part failed. `message` is logged where the database did reply, with an error."""
        if not isinstance(error, StoreUnavailable | TimeoutError):
            self.replied(part)
            log.warning("%s: %s", message, error)
            return
        with self._lock:
            is_first = not self._failing
            self._failing.add(part)
            if is_first:
                self._failed_at_seconds = self._seams.clock.monotonic_seconds()
        if is_first:
            log.warning("database unavailable, retrying: %s", str(error) or "no reply in time")
        else:
            log.debug("%s: %s", message, error)

    def replied(self, part: object) -> None:
        """The database has replied to this part, or the part waits for no reply any more."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            is_last = not self._failing
            seconds = self._seams.clock.monotonic_seconds() - self._failed_at_seconds
        if is_last:
            log.info("database available again after %.1f s", seconds)

    def ended(self, part: object) -> None:
        """The part has ended, also while the database is unavailable."""
        with self._lock:
            self._failing.discard(part)


class ReconnectBackoff:
    """Exponential waits with jitter. `reset` is called when the database has replied."""

    def __init__(
        self,
        seams: Seams,
        availability: DatabaseAvailability | None = None,
        *,
        seconds_min: float = WAIT_SECONDS_MIN,
        seconds_max: float = WAIT_SECONDS_MAX,
    ) -> None:
        self._seams, self._seconds_min, self._seconds_max = seams, seconds_min, seconds_max
        self._availability = availability or DatabaseAvailability(seams)
        self._mean_seconds = seconds_min

    def failed(self, what: str, error: TenureError) -> float:
        """Log the failure; the seconds to wait before the next try."""
        seconds = self.next_seconds()
        self._availability.failed(self, f"{what} failed, retrying in {seconds:.1f} s", error)
        return seconds

    def next_seconds(self) -> float:
        """The next wait, twice as long as the one before in the mean."""
        seconds = self._mean_seconds * (0.5 + self._seams.random.fraction())
        self._mean_seconds = min(2 * self._mean_seconds, self._seconds_max)
        return seconds

    async def wait(self) -> None:
        await self._seams.clock.sleep(self.next_seconds())

    def reset(self) -> None:
        self._mean_seconds = self._seconds_min
        self._availability.replied(self)

    def end(self) -> None:
        """There is no further try, also if the database is unavailable."""
        self._availability.ended(self)


class StartWait:
    """The wait of a starting worker for its database. One line is logged when it begins, and one when it is over."""

    def __init__(self, seams: Seams, stopped: asyncio.Event) -> None:
        self._seams, self._stopped = seams, stopped
        self._backoff = ReconnectBackoff(seams)
        self._began_at_seconds: float | None = None

    async def wait(self, problem: StoreUnavailable) -> None:
        """Wait before the next try, or until the worker is stopped."""
        if self._began_at_seconds is None:
            self._began_at_seconds = self._seams.clock.monotonic_seconds()
            log.warning("waiting for the database: %s", problem)
        spawn = self._seams.spawn.task
        waits = {
            spawn(self._backoff.wait(), name="tenure-start-backoff"),
            spawn(self._stopped.wait(), name="tenure-start-stopped"),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def over(self) -> None:
        if self._began_at_seconds is not None:
            seconds = self._seams.clock.monotonic_seconds() - self._began_at_seconds
            log.info("database available after %.1f s", seconds)
