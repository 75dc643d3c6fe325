"""Where in the ready index a claimer reads on.

The index entries of jobs that were claimed stay until a vacuum comes by, and longer where an old snapshot, anybody's,
keeps it from removing them: every claim would walk over all of them again; so it does over jobs of kinds that it does
not have. Once a claim has walked far for what it got, the next ones begin where it ended, or rather where claims had
come to a moment before: a transaction that commits a little late has its jobs a little below. What appears further
down in the meantime waits for the next full pass, made as soon as it takes no more than a small share of the time. As
long as claims find what they look for, every one of them is a full pass, and the order is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from tenure.stores.contract import ClaimRequest
from tenure.stores.postgres import lanes
from tenure.stores.postgres.lanes import NO_ID, Lane, Place, Row, gaps, went_far
from tenure.stores.postgres.many_lanes import many_lanes

PLAIN_AGAIN_SECONDS = 1.0
"""How long a lane is not asked alone after that was in vain."""
BOTTOM = datetime(1, 1, 1, tzinfo=UTC), NO_ID
CLAIMERS_MAX = 100


class Watermarks:
    """What one process has learnt about its claimers' lanes. A claimer is known by its queues and kinds."""

    def __init__(self) -> None:
        self._claimers: dict[tuple[tuple[str, ...], tuple[str, ...]], Claimer] = {}

    def ruled(self) -> set[str]:
        """The queues in which these claimers met rules."""
        return {queue for claimer in self._claimers.values() for queue in claimer.ruled}

    def hear(self, queues: Iterable[str] | None) -> None:
        """These queues got work; None says that any of them may have."""
        for claimer in self._claimers.values():
            if claimer.many is not None:
                claimer.many.hear(queues)

    def of(self, request: ClaimRequest) -> Claimer:
        key = request.queues, request.kinds
        if (known := self._claimers.get(key)) is not None:
            return known
        if len(self._claimers) >= CLAIMERS_MAX:
            self._claimers.clear()
        self._claimers[key] = Claimer(request.queues)
        return self._claimers[key]


class Claimer:
    """The lanes of one claimer, and how far each was read."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(dict.fromkeys(queues))
        self.many = many_lanes(self._queues)
        """What is known where the queues are many, and not all of them are asked in every claim."""
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._full_at_seconds = 0.0
        self._lane: int | None = None
        self._plain_at_seconds = 0.0
        self.ruled: frozenset[str] = frozenset()
        """Those of the queues that had rules when it was last looked."""

    def lane(self, now_seconds: float) -> dict[str, Any] | None:
        """The only lane that was found lately and where to read on in it, where it is worth asking that one alone."""
        if self._lane is None or len(self._queues) > 1 or now_seconds < self._plain_at_seconds:
            return None
        self._begin_anew_in_time(now_seconds)
        known = self._lanes.get((self._queues[0], self._lane))
        if known is None and self._lanes:
            return None
        due_at, job_id = BOTTOM if known is None else known.floor(now_seconds)
        return {"queue": self._queues[0], "priority": self._lane, "floor_due": due_at, "floor_id": job_id}

    def _begin_anew_in_time(self, now_seconds: float) -> None:
        if now_seconds >= self._full_at_seconds:
            self._lanes.clear()

    def was_intricate(self, now_seconds: float) -> None:
        """Asking a lane alone was in vain: do not try for a while."""
        self._plain_at_seconds = now_seconds + PLAIN_AGAIN_SECONDS

    def parameters(self, now_seconds: float) -> dict[str, Any]:
        """The lanes that are known with their floors, and the gaps between them in which others may be."""
        self._begin_anew_in_time(now_seconds)
        between = [gap for queue in self._queues for gap in self._gaps(queue)]
        floors = [lane.floor(now_seconds) for lane in self._lanes.values()]
        return {
            "gap_queues": [queue for queue, _, _ in between],
            "gap_lows": [low for _, low, _ in between],
            "gap_highs": [high for _, _, high in between],
            "lane_queues": [queue for queue, _ in self._lanes],
            "lane_priorities": [priority for _, priority in self._lanes],
            "lane_dues": [due_at for due_at, _ in floors],
            "lane_ids": [job_id for _, job_id in floors],
        }

    def _gaps(self, queue: str) -> list[tuple[str, int, int]]:
        return gaps(queue, [priority for of, priority in self._lanes if of == queue])

    def learn(self, answers: Sequence[Row], *, began_seconds: float, now_seconds: float) -> None:
        """Take in what a claim got, and how far it had to walk for it. One that got nothing has read all lanes to their
        ends."""
        rows = [row for row in answers if row["id"] is not None]
        if rows:
            found = {row["priority"] for row in rows}
            self._lane = found.pop() if len(found) == 1 else None
        full = not self._lanes
        if full and not self._went_far(answers[0], len(rows)):
            return
        if full:
            self._full_at_seconds = now_seconds + lanes.PASS_EVERY * (now_seconds - began_seconds)
        furthest: dict[tuple[str, int], Place] = {}
        for row in rows:
            lane, place = (row["queue"], row["priority"]), (row["due_at"], row["id"])
            furthest[lane] = max(place, furthest.get(lane, place))
        for lane, place in furthest.items():
            self._read(lane, place, now_seconds)
        if not rows:
            for lane in zip(answers[0]["lane_queues"], answers[0]["lane_priorities"], strict=True):
                self._read(lane, (answers[0]["looked_at"], NO_ID), now_seconds)

    def _went_far(self, answer: Row, jobs: int) -> bool:
        return went_far(answer, lanes=len(self._queues) + len(answer["lane_queues"] or ()), jobs=jobs)

    def _read(self, lane: tuple[str, int], place: Place, now_seconds: float) -> None:
        self._lanes.setdefault(lane, Lane(place)).read_to(place, now_seconds)
