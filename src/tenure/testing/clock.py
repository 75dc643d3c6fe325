"""A clock that a test moves by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """Stands still until `advance`. It can be set back, as a database's clock can.

    >>> clock = ManualClock()
    >>> clock.advance(90)
    >>> clock.now().isoformat()
    '2030-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._monotonic_seconds = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic_seconds(self) -> float:
        return self._monotonic_seconds

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic_seconds += max(0.0, seconds)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock by that much, and return at once."""
        self.advance(seconds)
