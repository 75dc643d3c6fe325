"""Limits of a queue: concurrency limits, rate limits, and fairness between partitions.

A concurrency limit counts leased jobs; it keeps no counter of its own that a crash could leave wrong. A rate limit
counts starts in slices of its period. A slice is dropped only when all of it lies outside the period, so that no
period of that length has more starts than allowed.
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
"""Slices per period: the resolution at which starts expire."""
COUNT_MAX = 1_000_000
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
        check_integer(self.count, "rate.count", least=1, most=COUNT_MAX)
        check_seconds(self.seconds, "rate.seconds", least=RATE_SECONDS_LEAST, most=RATE_SECONDS_MOST)
        msgspec.structs.force_setattr(self, "seconds", float(self.seconds))

    @property
    def slice_us(self) -> int:
        return max(1, round(self.seconds * 1_000_000 / SLICES))


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one queue; the default is none.

    A job's key is its `partition_key`. Limits per key do not apply to jobs without one.
    """

    concurrency_max: int | None = None
    """How many of its jobs may be leased at once, by all workers together."""
    key_concurrency_max: int | None = None
    """The same per key."""
    rate: Rate | None = None
    key_rate: Rate | None = None
    fair: bool = False
    """Keys are served round robin; within a key jobs keep the claim order."""

    def __post_init__(self) -> None:
        for name in ("concurrency_max", "key_concurrency_max"):
            if (most := getattr(self, name)) is not None:
                if most == 0:
                    raise InvalidInput(name, "is 0, which would stop the queue; pause it instead")
                check_integer(most, name, least=1, most=COUNT_MAX)
        for name in ("rate", "key_rate"):
            if (rate := getattr(self, name)) is not None and not isinstance(rate, Rate):
                raise InvalidInput(name, f"must be a Rate, such as Rate(100, 60), not {rate!r}")
        if not isinstance(self.fair, bool):
            raise InvalidInput("fair", f"must be true or false, not {self.fair!r}")

    @property
    def by_key(self) -> bool:
        """Whether a job can overtake jobs of other keys."""
        return self.fair or self.key_concurrency_max is not None or self.key_rate is not None

    @property
    def counts_leased(self) -> bool:
        return self.concurrency_max is not None or self.key_concurrency_max is not None


NO_LIMITS = QueueLimits()


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """The fields of a due job that the choice between them needs."""

    id: UUID
    queue: str
    key: str | None
    priority: int
    due_at: datetime
    losses: int


class RateUsage(msgspec.Struct, frozen=True, gc=False):
    """Recent starts under one rate: (first microsecond of the slice, starts), ascending."""

    slices: tuple[tuple[int, int], ...] = ()

    def recent(self, rate: Rate, now: datetime) -> RateUsage:
        """The starts that count at `now`. Slices ahead of the clock count as the current one."""
        at = _micros(now)
        horizon = at - (SLICES + 1) * rate.slice_us
        counts: Counter[int] = Counter()
        for began, count in self.slices:
            if began > horizon:
                counts[min(began, _slice(rate, at))] += count
        return RateUsage(tuple(sorted(counts.items())))

    def left(self, rate: Rate, now: datetime) -> int:
        """How many jobs may start at `now`."""
        return rate.count - sum(count for _, count in self.recent(rate, now).slices)

    def after(self, starts: int, rate: Rate, now: datetime) -> RateUsage:
        """The usage after this many more starts at `now`."""
        counts = Counter(dict(self.recent(rate, now).slices))
        counts[_slice(rate, _micros(now))] += starts
        return RateUsage(tuple(sorted(counts.items())))

    def lapses_at(self, rate: Rate) -> datetime | None:
        """When the oldest slice expires."""
        return _datetime(self.slices[0][0] + (SLICES + 1) * rate.slice_us) if self.slices else None

    def over_at(self, rate: Rate) -> datetime | None:
        """When the newest slice expires."""
        return _datetime(self.slices[-1][0] + (SLICES + 1) * rate.slice_us) if self.slices else None


NO_RATE_USAGE = RateUsage()


class Admission:
    """Admits jobs of one queue, one after the other, up to its limits."""

    def __init__(
        self,
        limits: QueueLimits,
        now: datetime,
        *,
        leased: Mapping[str | None, int],
        usage: RateUsage = NO_RATE_USAGE,
        usage_by_key: Mapping[str, RateUsage] | None = None,
    ) -> None:
        self.limits, self._now = limits, now
        self._leased = Counter(leased)
        self._usage, self._usage_by_key = usage, usage_by_key or {}
        self._leased_total = self._leased.total()
        self._admitted: Counter[str | None] = Counter()
        self._left_by_key: dict[str | None, int] = {}
        self.retry_at: datetime | None = None
        """When an exhausted rate admits the next job."""

    @property
    def room(self) -> int | None:
        """How many more jobs the limits of the whole queue admit; None for any number."""
        begun = self._admitted.total()
        rooms = []
        if self.limits.concurrency_max is not None:
            rooms.append(self.limits.concurrency_max - self._leased_total - begun)
        if self.limits.rate is not None:
            rooms.append(self._left(None, self.limits.rate, self._usage) - begun)
        return max(0, min(rooms)) if rooms else None

    def admits(self, key: str | None) -> bool:
        """Whether a job of this key can be admitted."""
        return self.room != 0 and self.admits_key(key)

    def admits_key(self, key: str | None) -> bool:
        """The same by the limits per key alone."""
        if key is None:
            return True
        most, rate = self.limits.key_concurrency_max, self.limits.key_rate
        if most is not None and self._leased[key] + self._admitted[key] >= most:
            return False
        return rate is None or self._left(key, rate, self._usage_by_key.get(key, NO_RATE_USAGE)) > self._admitted[key]

    def _left(self, key: str | None, rate: Rate, usage: RateUsage) -> int:
        """How many starts a rate had left at construction; the key None stands for the queue's own rate."""
        left = self._left_by_key.get(key)
        if left is None:
            left = self._left_by_key[key] = usage.left(rate, self._now)
            lapses_at = usage.recent(rate, self._now).lapses_at(rate)
            if left <= 0 and lapses_at is not None:
                self.retry_at = lapses_at if self.retry_at is None else min(self.retry_at, lapses_at)
        return left

    def admit(self, key: str | None) -> bool:
        """Admit a job of this key, if the limits allow it."""
        if not self.admits(key):
            return False
        self._admitted[key] += 1
        return True

    def could_admit(self, many: int, keys: Iterable[str | None]) -> bool:
        """Whether `many` of the jobs with these keys, in this order, could be admitted. Admits none."""
        probe = Admission(
            self.limits, self._now, leased=self._leased, usage=self._usage, usage_by_key=self._usage_by_key
        )
        admitted = (key for key in keys if probe.admit(key))
        return sum(1 for _ in islice(admitted, many)) == many

    def add_key_usage(self, usage_by_key: Mapping[str, RateUsage]) -> None:
        """Add the usage of further keys."""
        self._usage_by_key = {**self._usage_by_key, **usage_by_key}

    def usage_after(self, started: Iterable[Candidate], at: datetime) -> RateUsage | None:
        """The queue's usage after these starts; None where no rate is set or nothing started."""
        starts = sum(1 for _ in started)
        rate = self.limits.rate
        return self._usage.after(starts, rate, at) if rate is not None and starts else None

    def key_usage_after(self, started: Iterable[Candidate], at: datetime) -> dict[str, RateUsage]:
        """The usage of each key after these starts."""
        rate = self.limits.key_rate
        starts = Counter(one.key for one in started if one.key is not None)
        if rate is None:
            return {}
        usage = self._usage_by_key
        return {key: usage.get(key, NO_RATE_USAGE).after(count, rate, at) for key, count in starts.items()}


def round_robin(candidates: Iterable[Candidate], keys: Sequence[str]) -> Iterator[Candidate]:
    """One candidate of each key, then a second of each, and so on, keys in the given order. Candidates without a key
    form one more key, the last."""
    waiting: dict[str | None, list[Candidate]] = {key: [] for key in (*keys, None)}
    for one in candidates:
        waiting[one.key].append(one)
    for round_ in zip_longest(*waiting.values()):
        yield from (one for one in round_ if one is not None)


def _slice(rate: Rate, at_us: int) -> int:
    return at_us - at_us % rate.slice_us


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _datetime(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND
