"""How many streams of one endpoint a processor leases ahead of its deliveries."""

from __future__ import annotations

QUICK_SECONDS = 1.0
"""A stream that is settled so soon after its claim was not leased for nothing: more may be leased ahead."""
AHEAD_LEAST = 2
AHEAD_MOST = 25
STREAMS_MAX = 5000


class EndpointSlots:
    """Leases streams ahead of the deliveries, so that one claim and one settlement serve many short streams.

    The more streams end quickly, the more are leased ahead. Where streams take long, others are left to other
    processors.
    """

    def __init__(self, concurrency: int) -> None:
        self._least = min(AHEAD_LEAST * concurrency, STREAMS_MAX)
        self._most = min(AHEAD_MOST * concurrency, STREAMS_MAX)
        self._limit = self._least
        self._leased = 0
        self._has_more = False

    @property
    def free(self) -> int:
        """How many streams to claim; 0 while few would be: a claim costs much the same for one as for many."""
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
