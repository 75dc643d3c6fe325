"""Watermarks: where in the ready index a claim resumes.

Index entries of claimed jobs stay until a vacuum removes them, and longer while an old snapshot prevents that; every
claim would read them again, and so it would jobs of kinds that it does not have. Once a claim has read many entries
for the jobs that it won, the next claims resume where it ended, less a short time in which a late transaction may
commit. Jobs that appear further below wait for the next full scan, which is made once it takes a small share of the
time. While claims read little more than they win, every claim is a full scan and the order is exact.

This module keeps watermarks in memory. It reads no job, and losing it costs a full scan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf
from typing import Any, Protocol
from uuid import UUID

import msgspec

ENTRIES_MIN = 2000
ENTRIES_PER_JOB = 10
"""A scan is long when it read this many index entries, plus these for each job that it won."""
PAGES_MIN = 50
PAGES_PER_LANE = 10
PAGES_PER_JOB = 0.1
"""Or this many pages, plus these for each lane and each job. Entries known to be dead are not counted, but the pages
that they are on are."""
FULL_SCAN_EVERY = 50
"""The next full scan is made after this many times the time that the last one took."""
LATE_SECONDS = 0.2
"""How late a transaction may commit so that its jobs are still above the watermarks."""
NEAR_SECONDS = 0.02
LATE_EVERY_SECONDS = 0.05
"""Most transactions are not so late: a claim goes back by LATE_SECONDS once in this time, else by NEAR_SECONDS. Every
claim reads again what was claimed since its watermark."""
LANE_RETRY_SECONDS = 1.0
"""How long no claim reads one lane alone after such a claim was declined."""
PRIORITY_BELOW, PRIORITY_ABOVE = -32_769, 32_768
NO_ID = UUID(int=0)
BOTTOM = datetime(1, 1, 1, tzinfo=UTC), NO_ID
CLAIMERS_MAX = 1000

Position = tuple[datetime, UUID]
"""A position in a lane: a due time, and a job's id."""
LaneName = tuple[str, int]
"""A queue and a priority."""


class Row(Protocol):
    """A claimed job's row, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


class Scan(msgspec.Struct, frozen=True):
    """The statistics of one claim."""

    entries: int
    """Entries of the ready index that it read."""
    pages: int
    """Pages of the ready index that it read."""
    read_until: datetime
    """The due time up to which its lanes were read, where it won nothing."""
    lanes: Sequence[LaneName]

    def is_long(self, *, queues: int, jobs: int) -> bool:
        lanes = queues + (0 if jobs else len(self.lanes))
        return (
            self.entries >= ENTRIES_MIN + ENTRIES_PER_JOB * jobs
            or self.pages >= PAGES_MIN + PAGES_PER_LANE * lanes + PAGES_PER_JOB * jobs
        )


class Watermarks:
    """The watermarks of one process. A claimer is known by its queues and kinds."""

    def __init__(self) -> None:
        self._claimers: dict[tuple[tuple[str, ...], tuple[str, ...]], Claimer] = {}

    def limited_queues(self) -> set[str]:
        """The queues in which the last claims met limits."""
        return {queue for claimer in self._claimers.values() for queue in claimer.limited_queues}

    def of(self, queues: tuple[str, ...], kinds: tuple[str, ...]) -> Claimer:
        key = queues, kinds
        if (known := self._claimers.get(key)) is not None:
            return known
        if len(self._claimers) >= CLAIMERS_MAX:
            self._claimers.clear()
        self._claimers[key] = Claimer(queues)
        return self._claimers[key]


class Claimer:
    """The lanes of one claimer, and how far each was read."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(dict.fromkeys(queues))
        self._lanes: dict[LaneName, Lane] = {}
        self._full_scan_at_seconds = 0.0
        self._only_priority: int | None = None
        self._lane_retry_at_seconds = 0.0
        self.limited_queues: frozenset[str] = frozenset()
        """Those of the queues that had limits at the last claim."""

    def lane(self, now_seconds: float) -> dict[str, Any] | None:
        """The parameters of `claim_lane`: the only lane that the last claim found. None where all lanes are read."""
        if self._only_priority is None or len(self._queues) > 1 or now_seconds < self._lane_retry_at_seconds:
            return None
        self._reset_if_due(now_seconds)
        known = self._lanes.get((self._queues[0], self._only_priority))
        if known is None and self._lanes:
            return None
        due_at, job_id = BOTTOM if known is None else known.watermark(now_seconds)
        return {
            "queue": self._queues[0],
            "priority": self._only_priority,
            "watermark_due_at": due_at,
            "watermark_id": job_id,
        }

    def lane_declined(self, now_seconds: float) -> None:
        """The claim from the lane alone was declined: `claim` must read all lanes."""
        self._lane_retry_at_seconds = now_seconds + LANE_RETRY_SECONDS

    def lanes(self, now_seconds: float) -> dict[str, Any]:
        """The parameters of `claim`: the known lanes with their watermarks, and the gaps between them."""
        self._reset_if_due(now_seconds)
        gaps = [gap for queue in self._queues for gap in self._gaps(queue)]
        watermarks = [lane.watermark(now_seconds) for lane in self._lanes.values()]
        return lane_parameters(gaps, self._lanes, watermarks)

    def _reset_if_due(self, now_seconds: float) -> None:
        if now_seconds >= self._full_scan_at_seconds:
            self._lanes.clear()

    def _gaps(self, queue: str) -> list[tuple[str, int, int]]:
        """The ranges of priorities in which the queue may have other lanes."""
        bounds = [PRIORITY_BELOW, *sorted(priority for of, priority in self._lanes if of == queue), PRIORITY_ABOVE]
        return [(queue, low, high) for low, high in pairwise(bounds) if high - low > 1]

    def learn(self, rows: Sequence[Row], scan: Scan, *, began_seconds: float, now_seconds: float) -> None:
        """Set the watermarks by what a claim won. A claim that won nothing has read all of its lanes to their ends."""
        if rows:
            priorities = {row["priority"] for row in rows}
            self._only_priority = priorities.pop() if len(priorities) == 1 else None
        if not self._lanes:
            if not scan.is_long(queues=len(self._queues), jobs=len(rows)):
                return
            self._full_scan_at_seconds = now_seconds + FULL_SCAN_EVERY * (now_seconds - began_seconds)
        last: dict[LaneName, Position] = {}
        for row in rows:
            lane, position = (row["queue"], row["priority"]), (row["due_at"], row["id"])
            last[lane] = max(position, last.get(lane, position))
        if not rows:
            last = dict.fromkeys(scan.lanes, (scan.read_until, NO_ID))
        for lane, position in last.items():
            self._lanes.setdefault(lane, Lane(position)).read_to(position, now_seconds)


class Lane:
    """How far one lane was read, and when."""

    def __init__(self, position: Position) -> None:
        below = position[0] - timedelta(seconds=LATE_SECONDS), NO_ID
        self._read: deque[tuple[float, Position]] = deque([(-inf, below)])
        self._late_at_seconds = -inf

    def read_to(self, position: Position, now_seconds: float) -> None:
        self._read.append((now_seconds, max(position, self._read[-1][1])))

    def watermark(self, now_seconds: float) -> Position:
        """How far it had been read NEAR_SECONDS ago; once in LATE_EVERY_SECONDS, LATE_SECONDS ago."""
        while len(self._read) > 1 and self._read[1][0] <= now_seconds - LATE_SECONDS:
            self._read.popleft()
        if now_seconds >= self._late_at_seconds:
            self._late_at_seconds = now_seconds + LATE_EVERY_SECONDS
            return self._read[0][1]
        near = (position for at, position in reversed(self._read) if at <= now_seconds - NEAR_SECONDS)
        return next(near, self._read[0][1])


def lane_parameters(
    gaps: Sequence[tuple[str, int, int]] = (), lanes: Iterable[LaneName] = (), watermarks: Sequence[Position] = ()
) -> dict[str, Any]:
    """The arrays by which `claim` finds its lanes; all of them empty where jobs were chosen before."""
    names = list(lanes)
    return {
        "gap_queues": [queue for queue, _, _ in gaps],
        "gap_lows": [low for _, low, _ in gaps],
        "gap_highs": [high for _, _, high in gaps],
        "lane_queues": [queue for queue, _ in names],
        "lane_priorities": [priority for _, priority in names],
        "lane_dues": [due_at for due_at, _ in watermarks],
        "lane_ids": [job_id for _, job_id in watermarks],
    }
