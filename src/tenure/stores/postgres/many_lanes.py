"""Which few of many lanes a claim asks, so that its cost does not grow with the queues that a claimer serves.

Of each lane a bound is known: a place before which it has nothing to claim. A claim asks the lanes with the first
bounds, and takes nothing that comes behind the bound of a lane that it does not ask; so the order over all lanes stays
exact. What it sees of the lanes that it asks are their next bounds. Lanes that have nothing due are left alone until
what they have becomes due, until a hint names their queue, or until their queue has its turn: with each claim so many
are looked through that all of them together take a small share of the time. Where that would be a far walk, it is made
at once and seldom; and all queues are looked through when somebody comes by without an occasion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import cycle, islice
from math import inf
from typing import Any
from uuid import UUID

from tenure.stores.postgres import lanes
from tenure.stores.postgres.lanes import HIGHEST, LOWEST, NO_ID, Lane, Place, Row, gaps, went_far

QUEUES_FEW = 32
"""So many queues are all asked in every claim."""
ASKED_A_JOB = 2
ASKED_LEAST = 8
"""How many lanes are asked for each wanted job, and at least. Of those from which the last claim took, only that place
is known, so that as many again are needed."""
STRETCH_MAX = 64.0
RELAXED = 0.9
"""By how much that is multiplied at most, where others take from the same lanes and more of what is known is old; and
how that comes down again."""
NEWS_MAX = 64
"""How many queues that got work are looked through in one claim. The others wait for the next ones."""
NO_CEILING = LOWEST, (datetime(1, 1, 1, tzinfo=UTC), NO_ID)

Gap = tuple[str, int, int]


class KnownLane:
    """One lane of many."""

    __slots__ = ("asked", "bound", "priority", "queue", "read")

    def __init__(self, queue: str, priority: int, read: Lane) -> None:
        self.queue, self.priority, self.read = queue, priority, read
        self.bound: Place | None = None
        """It has nothing to claim before this place; None where it had nothing at all."""
        self.asked = 0
        """The number of the claim that asked it last."""

    def floor(self, now_seconds: float) -> Place:
        """From where to read on in it."""
        floor = self.read.floor(now_seconds)
        return floor if self.bound is None else min(floor, self.bound)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one claim asks."""

    number: int
    lanes: Sequence[KnownLane]
    gaps: Sequence[Gap]
    ceiling: tuple[int, Place] = NO_CEILING
    """The bound of the first lane that is not asked."""
    news: Sequence[str] = ()
    """The queues of which hints have come."""
    anew: Set[str] = frozenset()
    """The queues that are looked through from the bottom, whatever is known of them."""
    full: bool = False
    """These are all queues."""
    everything: bool = False
    """Every queue is asked, though not always from the bottom."""
    occasioned: bool = False
    """It comes upon a hint, or upon a claim that got something."""

    @property
    def leaves_some_out(self) -> bool:
        """Whether lanes that may have something due are not asked."""
        return self.ceiling is not NO_CEILING

    @property
    def suffices(self) -> bool:
        """Whether it may be said that there is nothing if this finds nothing. Who comes because there was something
        need not look everywhere each time: the last pass over all queues was not long ago, and whoever comes without
        an occasion makes one."""
        return self.everything or (self.occasioned and not self.leaves_some_out)

    def parameters(self, now_seconds: float) -> dict[str, Any]:
        floors = [lane.floor(now_seconds) for lane in self.lanes]
        priority, (due_at, job_id) = self.ceiling
        return {
            "gap_queues": [queue for queue, _, _ in self.gaps],
            "gap_lows": [low for _, low, _ in self.gaps],
            "gap_highs": [high for _, _, high in self.gaps],
            "lane_queues": [lane.queue for lane in self.lanes],
            "lane_priorities": [lane.priority for lane in self.lanes],
            "lane_dues": [due_at for due_at, _ in floors],
            "lane_ids": [job_id for _, job_id in floors],
            "ceiling_priority": priority,
            "ceiling_due": due_at,
            "ceiling_id": job_id,
        }


def many_lanes(queues: Sequence[str]) -> ManyLanes | None:
    """For claimers of many queues."""
    return ManyLanes(queues) if len(queues) > QUEUES_FEW else None


class ManyLanes:
    """The lanes of one claimer in the order of their bounds."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queue_lines = "\n".join(queues)
        """The names of all queues, which have no line breaks: as a list they would be encoded one by one for each
        claim."""
        self._lanes: dict[str, dict[int, KnownLane]] = {queue: {} for queue in queues}
        self._awake: list[tuple[int, datetime, UUID, str]] = []
        """Lanes that may have something due, first bounds first. Entries whose lanes have another bound by now are
        passed over."""
        self._asleep: list[tuple[datetime, UUID, str, int]] = []
        """Lanes by the moment at which they will have something due."""
        self._news: dict[str, None] = {}
        self._asks = 0
        self._unsure = True
        self._turns = cycle(queues)
        self._owed = 0.0
        """How many queues should have had their turn by now."""
        self._owed_at_seconds = 0.0
        self._pass_seconds = 0.0
        self._far = False
        self._got_some = False
        self._stretch = 1.0
        self._moment = datetime(1, 1, 1, tzinfo=UTC), 0.0
        """A moment of the database's clock, and of ours."""

    def hear(self, queues: Iterable[str] | None) -> None:
        """These queues got work; None says that any of them may have."""
        if queues is None:
            self._unsure = True
        else:
            self._news.update((queue, None) for queue in queues if queue in self._lanes)

    def reach(self, limit: int) -> int:
        """How many lanes a claim of so many jobs asks at first."""
        return int(max(ASKED_LEAST, ASKED_A_JOB * limit) * self._stretch)

    def ask(self, reach: int, *, everything: bool, now_seconds: float) -> Ask:
        """What to ask next: so many lanes, or everything."""
        self._asks += 1
        self._owe(now_seconds)
        if self._unsure or self._owed >= len(self._lanes):
            return self._ask_from_the_bottom()
        if everything or not (self._awake or self._asleep or self._news):
            return self._ask_everything()
        news = list(islice(self._news, NEWS_MAX))
        for queue in news:
            del self._news[queue]
        looked_through = dict.fromkeys([*news, *self._whose_turn_it_is()])
        between = [gap for queue in looked_through for gap in self._look_again(queue, now_seconds)]
        anew: Set[str] = frozenset() if self._far else looked_through.keys()
        first, ceiling = self._first(reach, now_seconds, without=anew)
        if not (first or news):
            return self._ask_everything()
        self._mark(first)
        return Ask(self._asks, first, between, ceiling, news, anew, occasioned=self._got_some or bool(news))

    def _owe(self, now_seconds: float) -> None:
        """All queues have their turn within so many times the time that a pass over them took."""
        period = lanes.PASS_EVERY * self._pass_seconds
        passed, self._owed_at_seconds = now_seconds - self._owed_at_seconds, now_seconds
        self._owed += len(self._lanes) * (passed / period if period else 1.0)

    def _whose_turn_it_is(self) -> list[str]:
        if self._far or self._owed < 1:
            return []
        count = int(self._owed)
        self._owed -= count
        return list(islice(self._turns, count))

    def _ask_from_the_bottom(self) -> Ask:
        news, self._news = list(self._news), {}
        # Nobody else need make this pass while it is under way.
        self._unsure, self._owed = False, -inf
        everywhere = [(queue, LOWEST, HIGHEST) for queue in self._lanes]
        return Ask(self._asks, (), everywhere, news=news, anew=self._lanes.keys(), full=True, everything=True)

    def _ask_everything(self) -> Ask:
        """From the bottom, or, where that is far, from where each lane was read to, and between the lanes that are
        known."""
        if not self._far:
            return self._ask_from_the_bottom()
        news, self._news = list(self._news), {}
        known = [lane for of in self._lanes.values() for lane in of.values()]
        between = [gap for queue, of in self._lanes.items() for gap in gaps(queue, of)]
        self._mark(known)
        return Ask(self._asks, known, between, news=news, everything=True)

    def _look_again(self, queue: str, now_seconds: float) -> list[Gap]:
        """Where to look in a queue that got work: all of it, or, where that is far, from where it was read to."""
        if not self._far:
            return [(queue, LOWEST, HIGHEST)]
        for lane in self._lanes[queue].values():
            self._bind(lane, lane.floor(now_seconds))
        return gaps(queue, self._lanes[queue])

    def _first(self, count: int, now_seconds: float, *, without: Set[str]) -> tuple[list[KnownLane], tuple[int, Place]]:
        """The first so many lanes of other queues, and the bound of the next one."""
        self._wake(now_seconds)
        first: dict[tuple[str, int], KnownLane] = {}
        others: dict[tuple[str, int], KnownLane] = {}
        ceiling = NO_CEILING
        while self._awake and ceiling is NO_CEILING:
            priority, due_at, job_id, queue = heappop(self._awake)
            name, lane = (queue, -priority), self._lanes[queue].get(-priority)
            if lane is None or lane.bound != (due_at, job_id) or name in first or name in others:
                continue
            if queue in without:
                others[name] = lane
            elif len(first) < count:
                first[name] = lane
            else:
                ceiling = lane.priority, lane.bound
                others[name] = lane
        # They stay in the order until it is known what they have: another claim may come in the meantime.
        for lane in (*first.values(), *others.values()):
            self._awaken(lane)
        return [*first.values()], ceiling

    def _wake(self, now_seconds: float) -> None:
        at, seconds = self._moment
        now = at + timedelta(seconds=now_seconds - seconds)
        while self._asleep and self._asleep[0][0] <= now:
            due_at, job_id, queue, priority = heappop(self._asleep)
            lane = self._lanes[queue].get(priority)
            if lane is not None and lane.bound == (due_at, job_id):
                self._awaken(lane)

    def _mark(self, asked: Iterable[KnownLane]) -> None:
        for lane in asked:
            lane.asked = self._asks

    def take_back(self, ask: Ask) -> None:
        """Nobody has answered: what made it look is still to be looked at."""
        self._unsure = self._unsure or ask.full
        self.hear(ask.news)

    def learn(self, ask: Ask, answers: Sequence[Row], *, limit: int, began_seconds: float, now_seconds: float) -> None:
        """Take in what a claim got, and what it has seen of the lanes."""
        answer, rows = answers[0], [row for row in answers if row["id"] is not None]
        self._moment, self._got_some = (answer["at"], began_seconds), bool(rows)
        if ask.full:
            self._pass_seconds, self._owed, self._owed_at_seconds = now_seconds - began_seconds, 0.0, now_seconds
        if ask.anew:
            # Of every lane that was asked the first job was read, if there was one.
            asked = len(ask.gaps) + len(answer["head_queues"])
            far = went_far(answer, lanes=asked, jobs=len(rows) + asked)
            self._far = far if ask.full else self._far or far
        if ask.leaves_some_out:
            short = len(rows) < limit
            self._stretch = min(2 * self._stretch, STRETCH_MAX) if short else max(RELAXED * self._stretch, 1.0)
        self._forget(ask)
        taken = {row["id"] for row in rows}
        furthest: dict[tuple[str, int], Place] = {}
        for row in rows:
            lane, place = (row["queue"], row["priority"]), (row["due_at"], row["id"])
            furthest[lane] = max(place, furthest.get(lane, place))
        columns = ("head_queues", "head_priorities", "head_dues", "head_ids")
        for queue, priority, due_at, job_id in zip(*[answer[column] for column in columns], strict=True):
            head = None if job_id is None else (due_at, job_id)
            # A first job that was not taken, because others came first or somebody had it locked, is still the first.
            bound = furthest.get((queue, priority), head) if job_id in taken else head
            self._see(ask, (queue, priority), bound, now_seconds)

    def _forget(self, ask: Ask) -> None:
        """The lanes of queues that were looked through, but for those that others have asked since."""
        for queue in ask.anew:
            known = self._lanes[queue]
            self._lanes[queue] = {priority: lane for priority, lane in known.items() if lane.asked > ask.number}
        if ask.full:
            self._awake.clear()
            self._asleep.clear()
            for of in self._lanes.values():
                for lane in of.values():
                    self._put(lane)

    def _see(self, ask: Ask, name: tuple[str, int], bound: Place | None, now_seconds: float) -> None:
        """A lane has nothing before this place. Who asked last knows best."""
        queue, priority = name
        at = self._moment[0], NO_ID
        read_to = at if bound is None else min(bound, at)
        lane = self._lanes[queue].get(priority)
        if lane is None:
            lane = self._lanes[queue][priority] = KnownLane(queue, priority, Lane(read_to))
        elif lane.asked > ask.number:
            return
        lane.asked = ask.number
        lane.read.read_to(read_to, now_seconds)
        if lane.bound != bound:
            self._bind(lane, bound)

    def _bind(self, lane: KnownLane, bound: Place | None) -> None:
        lane.bound = bound
        self._put(lane)

    def _put(self, lane: KnownLane) -> None:
        """To those that may have something due, or to those that will."""
        if lane.bound is None:
            return
        if lane.bound[0] <= self._moment[0]:
            self._awaken(lane)
        else:
            heappush(self._asleep, (*lane.bound, lane.queue, lane.priority))

    def _awaken(self, lane: KnownLane) -> None:
        assert lane.bound is not None, "a lane without a bound has no place in the order"
        heappush(self._awake, (-lane.priority, *lane.bound, lane.queue))
