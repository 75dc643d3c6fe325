"""What a queue's own rules let through: limits on what runs at once and on what starts in a time, and turns for keys.

A permit is a job that is held: what runs is counted, never noted down, so that no crash can lose a permit or keep one.
Starts are counted in slices of the rate's time, and a slice is forgotten only when all of it is out of that time: no
stretch of that length ever sees more starts than allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_integer, check_seconds

SLICES = 10
"""A rate's time is divided into so many slices: the resolution at which starts are forgotten."""
COUNT_MOST = 1_000_000
RATE_SECONDS_LEAST, RATE_SECONDS_MOST = 0.1, 31 * 86_400.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in any `seconds`.

    >>> Rate(100, 60)
    Rate(count=100, seconds=60.0)
    """

    count: int
    seconds: float

    def __post_init__(self) -> None:
        check_integer(self.count, "rate.count", least=1, most=COUNT_MOST)
        check_seconds(self.seconds, "rate.seconds", least=RATE_SECONDS_LEAST, most=RATE_SECONDS_MOST)
        msgspec.structs.force_setattr(self, "seconds", float(self.seconds))

    @property
    def slice_us(self) -> int:
        return max(1, round(self.seconds * 1_000_000 / SLICES))


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue allows. Without a rule there is no limit, and jobs go by priority and age.

    A job's key is its `partition_key`; rules for keys do not concern jobs that have none.
    """

    concurrency_max: int | None = None
    """How many of its jobs may be held at once, by all workers together."""
    key_concurrency_max: int | None = None
    """The same for the jobs of each key."""
    rate: Rate | None = None
    key_rate: Rate | None = None
    fair: bool = False
    """Keys take turns; within a key jobs go by priority and age."""

    def __post_init__(self) -> None:
        for name in ("concurrency_max", "key_concurrency_max"):
            if (most := getattr(self, name)) is not None:
                if most == 0:
                    raise InvalidInput(name, "is 0, which would stop the queue for good; pause it instead")
                check_integer(most, name, least=1, most=COUNT_MOST)
        for name in ("rate", "key_rate"):
            if (rate := getattr(self, name)) is not None and not isinstance(rate, Rate):
                raise InvalidInput(name, f"must be a Rate, such as Rate(100, 60), not {rate!r}")
        if not isinstance(self.fair, bool):
            raise InvalidInput("fair", f"must be true or false, not {self.fair!r}")

    @property
    def by_key(self) -> bool:
        """Whether some jobs may have to wait while others behind them go."""
        return self.fair or self.key_concurrency_max is not None or self.key_rate is not None

    @property
    def counts_held(self) -> bool:
        return self.concurrency_max is not None or self.key_concurrency_max is not None


NO_LIMITS = QueueLimits()


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A job that is due, as far as choosing among them needs it."""

    id: UUID
    queue: str
    key: str | None
    priority: int
    due_at: datetime
    losses: int


class RateUsage(msgspec.Struct, frozen=True, gc=False):
    """The starts of late under one rate: how many began in each slice, named by its first microsecond."""

    slices: tuple[tuple[int, int], ...] = ()

    def recent(self, rate: Rate, now: datetime) -> RateUsage:
        """What still counts now. Slices ahead of the clock, since it was set back, count as the current one."""
        moment = _micros(now)
        horizon = moment - (SLICES + 1) * rate.slice_us
        counts: Counter[int] = Counter()
        for began, count in self.slices:
            if began > horizon:
                counts[min(began, _slice(rate, moment))] += count
        return RateUsage(tuple(sorted(counts.items())))

    def left(self, rate: Rate, now: datetime) -> int:
        """How many may start now."""
        return rate.count - sum(count for _, count in self.recent(rate, now).slices)

    def after(self, starts: int, rate: Rate, now: datetime) -> RateUsage:
        """What is spent once so many have started now."""
        counts = Counter(dict(self.recent(rate, now).slices))
        counts[_slice(rate, _micros(now))] += starts
        return RateUsage(tuple(sorted(counts.items())))

    def lapses_at(self, rate: Rate) -> datetime | None:
        """When the first of these starts is forgotten."""
        return _moment(self.slices[0][0] + (SLICES + 1) * rate.slice_us) if self.slices else None

    def over_at(self, rate: Rate) -> datetime | None:
        """When all of them are."""
        return _moment(self.slices[-1][0] + (SLICES + 1) * rate.slice_us) if self.slices else None


NO_RATE_USAGE = RateUsage()


class Admission:
    """Lets jobs of one queue through, one after the other, as far as its rules go."""

    def __init__(
        self,
        rules: QueueLimits,
        now: datetime,
        *,
        held: Mapping[str | None, int],
        spent: RateUsage = NO_RATE_USAGE,
        spent_by_key: Mapping[str, RateUsage] | None = None,
    ) -> None:
        self.rules, self._now = rules, now
        self._held = Counter(held)
        self._spent, self._spent_by_key = spent, spent_by_key or {}
        self._held_in_all = self._held.total()
        self._begun: Counter[str | None] = Counter()
        self._lefts: dict[str | None, int] = {}
        self.again_at: datetime | None = None
        """When a rate that has nothing left will let the next one through."""

    @property
    def room(self) -> int | None:
        """How many the queue as a whole has room for; None for any number."""
        begun = self._begun.total()
        rooms = []
        if self.rules.concurrency_max is not None:
            rooms.append(self.rules.concurrency_max - self._held_in_all - begun)
        if self.rules.rate is not None:
            rooms.append(self._left(None, self.rules.rate, self._spent) - begun)
        return max(0, min(rooms)) if rooms else None

    def admits(self, key: str | None) -> bool:
        """Whether a job of this key may go now."""
        return self.room != 0 and self.admits_key(key)

    def admits_key(self, key: str | None) -> bool:
        """The same as far as its key alone is concerned."""
        if key is None:
            return True
        most, rate = self.rules.key_concurrency_max, self.rules.key_rate
        if most is not None and self._held[key] + self._begun[key] >= most:
            return False
        return rate is None or self._left(key, rate, self._spent_by_key.get(key, NO_RATE_USAGE)) > self._begun[key]

    def _left(self, key: str | None, rate: Rate, spent: RateUsage) -> int:
        """How many a rate allowed when the gate was made; None is the key of the queue's own."""
        left = self._lefts.get(key)
        if left is None:
            left = self._lefts[key] = spent.left(rate, self._now)
            lapses_at = spent.recent(rate, self._now).lapses_at(rate)
            if left <= 0 and lapses_at is not None:
                self.again_at = lapses_at if self.again_at is None else min(self.again_at, lapses_at)
        return left

    def let_through(self, key: str | None) -> bool:
        """Take a permit for a job of this key, if there is one."""
        if not self.admits(key):
            return False
        self._begun[key] += 1
        return True

    def has_room_for(self, many: int, keys: Iterable[str | None]) -> bool:
        """Whether so many of the jobs with these keys, in this order, could go now. No permit is taken."""
        twin = Admission(self.rules, self._now, held=self._held, spent=self._spent, spent_by_key=self._spent_by_key)
        admitted = (key for key in keys if twin.let_through(key))
        return sum(1 for _ in islice(admitted, many)) == many

    def learn(self, spent_by_key: Mapping[str, RateUsage]) -> None:
        """What more keys have spent."""
        self._spent_by_key = {**self._spent_by_key, **spent_by_key}

    def spending(self, started: Iterable[Candidate], at: datetime) -> RateUsage | None:
        """What the queue has spent once these have started at that moment; None where nothing is counted."""
        starts = sum(1 for _ in started)
        rate = self.rules.rate
        return self._spent.after(starts, rate, at) if rate is not None and starts else None

    def spending_by_key(self, started: Iterable[Candidate], at: datetime) -> dict[str, RateUsage]:
        """The same for their keys."""
        rate = self.rules.key_rate
        starts = Counter(one.key for one in started if one.key is not None)
        if rate is None:
            return {}
        spent = self._spent_by_key
        return {key: spent.get(key, NO_RATE_USAGE).after(count, rate, at) for key, count in starts.items()}


def round_robin(candidates: Iterable[Candidate], keys: Sequence[str]) -> Iterator[Candidate]:
    """One of each key, then a second of each, and so on, the keys in the order given; jobs without a key are one
    tenant more, the last."""
    waiting: dict[str | None, list[Candidate]] = {key: [] for key in (*keys, None)}
    for one in candidates:
        waiting[one.key].append(one)
    for turn in zip_longest(*waiting.values()):
        yield from (one for one in turn if one is not None)


def _slice(rate: Rate, moment_us: int) -> int:
    return moment_us - moment_us % rate.slice_us


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
