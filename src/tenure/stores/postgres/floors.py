"""Where in the ready index a claimer reads on.

An old snapshot, anybody's, keeps PostgreSQL from removing the index entries of jobs that were claimed long ago, and
every claim would walk over all of them again; so it does over jobs of kinds that it does not have. Once a claim has
walked far for what it got, the next ones begin where it ended. What appears below that place in the meantime, such as
the job of a transaction that commits late, waits for the next full pass, and such a pass is made as soon as it takes no
more than a tenth of the time. As long as claims find what they look for, every one of them is a full pass, and the
order is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Protocol
from uuid import UUID

from tenure.stores.contract import ClaimRequest

WALKED_LEAST = 2000
WALKED_A_JOB = 10
"""A claim has walked far when it read this many entries, and this many for each job that it got."""
PASS_EVERY = 10
"""A full pass is made again after this many times the time that the last one took."""
LOWEST, HIGHEST = -32_769, 32_768
CLAIMERS_MAX = 100


class Row(Protocol):
    """A claimed job by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


class Floors:
    """What one process has learnt about its claimers' lanes. A claimer is known by its queues and kinds."""

    def __init__(self) -> None:
        self._claimers: dict[tuple[tuple[str, ...], tuple[str, ...]], Claimer] = {}

    def ruled(self) -> set[str]:
        """The queues in which these claimers met rules."""
        return {queue for claimer in self._claimers.values() for queue in claimer.ruled}

    def of(self, request: ClaimRequest) -> Claimer:
        key = request.queues, request.kinds
        if key not in self._claimers and len(self._claimers) >= CLAIMERS_MAX:
            self._claimers.clear()
        return self._claimers.setdefault(key, Claimer(request.queues))


class Claimer:
    """The lanes of one claimer, and how far each was read."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(dict.fromkeys(queues))
        self._lanes: dict[tuple[str, int], tuple[datetime, UUID]] = {}
        self._full_at_seconds = 0.0
        self.ruled: frozenset[str] = frozenset()
        """Those of the queues that had rules when it was last looked."""

    def parameters(self, now_seconds: float) -> dict[str, Any]:
        """The lanes that are known with their floors, and the gaps between them in which others may be."""
        if now_seconds >= self._full_at_seconds:
            self._lanes.clear()
        gaps = [gap for queue in self._queues for gap in self._gaps(queue)]
        return {
            "gap_queues": [queue for queue, _, _ in gaps],
            "gap_lows": [low for _, low, _ in gaps],
            "gap_highs": [high for _, _, high in gaps],
            "lane_queues": [queue for queue, _ in self._lanes],
            "lane_priorities": [priority for _, priority in self._lanes],
            "lane_dues": [due_at for due_at, _ in self._lanes.values()],
            "lane_ids": [job_id for _, job_id in self._lanes.values()],
        }

    def _gaps(self, queue: str) -> list[tuple[str, int, int]]:
        known = sorted(priority for of, priority in self._lanes if of == queue)
        bounds = [LOWEST, *known, HIGHEST]
        return [(queue, low, high) for low, high in pairwise(bounds) if high - low > 1]

    def learn(self, rows: Sequence[Row], *, walked: int, began_seconds: float, now_seconds: float) -> None:
        """Take in what a claim got, and how far it had to walk for it."""
        full = not self._lanes
        if full and walked < WALKED_LEAST + WALKED_A_JOB * len(rows):
            return
        if full:
            self._full_at_seconds = now_seconds + PASS_EVERY * (now_seconds - began_seconds)
        for row in rows:
            lane, place = (row["queue"], row["priority"]), (row["due_at"], row["id"])
            self._lanes[lane] = max(place, self._lanes.get(lane, place))
