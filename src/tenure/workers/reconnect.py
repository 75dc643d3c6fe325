"""How to wait for a database that is away: soon again at first, then more and more seldom, and never all at once."""

from __future__ import annotations

from tenure.seams import Seams

PAUSE_SECONDS_LEAST, PAUSE_SECONDS_MOST = 0.05, 2.0


class ReconnectBackoff:
    """The pauses between tries. `over` says that the database answered, so that the next outage starts afresh."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._pause_seconds = PAUSE_SECONDS_LEAST

    async def pause(self) -> None:
        seconds = self._pause_seconds * (0.5 + self._seams.random.fraction())
        self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MOST)
        await self._seams.clock.sleep(seconds)

    def over(self) -> None:
        self._pause_seconds = PAUSE_SECONDS_LEAST
