"""How long to wait between tries while the database is unavailable."""

from __future__ import annotations

from tenure.seams import Seams

WAIT_SECONDS_MIN, WAIT_SECONDS_MAX = 0.05, 2.0


class ReconnectBackoff:
    """Exponential waits with jitter. `reset` is called when the database has replied."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._mean_seconds = WAIT_SECONDS_MIN

    def next_seconds(self) -> float:
        """The next wait, twice as long as the one before in the mean."""
        seconds = self._mean_seconds * (0.5 + self._seams.random.fraction())
        self._mean_seconds = min(2 * self._mean_seconds, WAIT_SECONDS_MAX)
        return seconds

    async def wait(self) -> None:
        await self._seams.clock.sleep(self.next_seconds())

    def reset(self) -> None:
        self._mean_seconds = WAIT_SECONDS_MIN
