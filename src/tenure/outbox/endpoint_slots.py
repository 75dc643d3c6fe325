"""How many streams of one endpoint a processor leases ahead of its deliveries."""

from __future__ import annotations

QUICK_SECONDS = 1.0
"""If streams are settled this soon after their claim, more are leased ahead."""
AHEAD_MIN = 2
AHEAD_MAX = 25
STREAMS_MAX = 5000


class EndpointSlots:
    """Leases streams ahead of the deliveries, so that one claim and one settlement serve many short streams.

    Each stream that ends quickly raises the limit by one. Each slow one lowers it, so that other processors can lease
    the rest.
    """

    def __init__(self, concurrency: int) -> None:
        self._least = min(AHEAD_MIN * concurrency, STREAMS_MAX)
        self._most = min(AHEAD_MAX * concurrency, STREAMS_MAX)
        self._limit = self._least
        self._leased = 0
        self._has_more = False

    @property
    def free(self) -> int:
        """How many streams to claim; 0 while few are free: a claim of one costs nearly as much as a claim of many."""
        free = self._limit - self._leased
        return free if 4 * free >= self._limit else 0

    def claimed(self, streams: int, *, asked: int) -> None:
        """A claim has returned so many streams."""
        self._leased += streams
        self._has_more = streams >= asked

    def ended(self, seconds: float) -> None:
        """A stream is settled, so many seconds after its claim."""
        self._leased -= 1
        if self._has_more and seconds < QUICK_SECONDS:
            self._limit = min(self._limit + 1, self._most)
        else:
            self._limit = max(self._limit - 1, self._least)
