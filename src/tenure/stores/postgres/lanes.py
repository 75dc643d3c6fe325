"""A lane is one queue's jobs of one priority, in the order of their due times: how far it was read, and what is a long
way to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from math import inf
from typing import Any, Protocol
from uuid import UUID

WALKED_LEAST = 2000
WALKED_A_JOB = 10
"""A claim has walked far when it read this many entries, and this many for each job that it got."""
TURNED_LEAST = 50
TURNED_A_LANE = 10
TURNED_A_JOB = 0.1
"""Or this many pages, and these for each lane and each job: entries that are known to be dead are passed over without
being counted, but the pages that they are on are not."""
PASS_EVERY = 50
"""A full pass is made again after this many times the time that the last one took."""
LATE_SECONDS = 0.2
"""How late a transaction may commit so that its jobs are still found above the floors."""
NEAR_SECONDS = 0.02
LATE_EVERY_SECONDS = 0.05
"""Most transactions are not so late: only after every so many seconds a claim goes back that far, and else as far as
claims had come such a short time ago. What was claimed since is walked over again by every one of them."""
LOWEST, HIGHEST = -32_769, 32_768
NO_ID = UUID(int=0)

Place = tuple[datetime, UUID]
"""A place in a lane: a due time, and a job."""


class Row(Protocol):
    """One row of a claim's answer, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


class Lane:
    """How far one lane was read, and when."""

    def __init__(self, place: Place) -> None:
        below = place[0] - timedelta(seconds=LATE_SECONDS), NO_ID
        self._read: deque[tuple[float, Place]] = deque([(-inf, below)])
        self._late_at_seconds = -inf

    def read_to(self, place: Place, now_seconds: float) -> None:
        self._read.append((now_seconds, max(place, self._read[-1][1])))

    def floor(self, now_seconds: float) -> Place:
        """How far it had been read a moment ago; a longer one, now and then."""
        while len(self._read) > 1 and self._read[1][0] <= now_seconds - LATE_SECONDS:
            self._read.popleft()
        if now_seconds >= self._late_at_seconds:
            self._late_at_seconds = now_seconds + LATE_EVERY_SECONDS
            return self._read[0][1]
        near = (place for at, place in reversed(self._read) if at <= now_seconds - NEAR_SECONDS)
        return next(near, self._read[0][1])


def gaps(queue: str, priorities: Iterable[int]) -> list[tuple[str, int, int]]:
    """The ranges of priorities between these, in which the queue may have other lanes."""
    bounds = [LOWEST, *sorted(priorities), HIGHEST]
    return [(queue, low, high) for low, high in pairwise(bounds) if high - low > 1]


def went_far(answer: Row, *, lanes: int, jobs: int) -> bool:
    """Whether a claim that looked for so many lanes walked far for the jobs that it got."""
    return bool(
        (answer["walked"] or 0) >= WALKED_LEAST + WALKED_A_JOB * jobs
        or (answer["turned"] or 0) >= TURNED_LEAST + TURNED_A_LANE * lanes + TURNED_A_JOB * jobs
    )
