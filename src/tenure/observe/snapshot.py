"""The metrics of a process at one moment, as a value: it can be sent to another process, and added to others."""

from __future__ import annotations

import threading
from itertools import accumulate

import msgspec

from tenure.observe.metrics import BUCKETS_SECONDS

Labels = tuple[str, ...]


class Count(msgspec.Struct, frozen=True):
    """The value of one counter."""

    metric: str
    labels: Labels
    value: int


class Distribution(msgspec.Struct, frozen=True):
    """One histogram: how many fell into each bucket, the last of which has no upper end, and the sum of them all."""

    metric: str
    labels: Labels
    counts: tuple[int, ...]
    sum_seconds: float

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """How many were at most this long, by the upper ends of the buckets."""
        ends = [*(repr(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float | None:
        """At most this long took this share of them, read off the buckets; None where there were none.

        >>> Distribution("", (), (0, 4) + (0,) * 17, 0.0).quantile(0.5)
        0.00175
        """
        wanted, below = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            if count and below + count >= wanted:
                least = BUCKETS_SECONDS[place - 1] if place else 0.0
                # In the bucket without an upper end nothing is known but its lower one.
                most = BUCKETS_SECONDS[place] if place < len(BUCKETS_SECONDS) else least
                return least + (most - least) * max(0.0, wanted - below) / count
            below += count
        return None


class Snapshot(msgspec.Struct, frozen=True):
    """Counters and histograms. None of them ever falls while a process lives."""

    counters: tuple[Count, ...] = ()
    histograms: tuple[Distribution, ...] = ()

    def __add__(self, other: Snapshot) -> Snapshot:
        """What both have seen together."""
        counts: dict[tuple[str, Labels], int] = {}
        for count in (*self.counters, *other.counters):
            key = count.metric, count.labels
            counts[key] = counts.get(key, 0) + count.value
        found: dict[tuple[str, Labels], Distribution] = {}
        for one in (*self.histograms, *other.histograms):
            before = found.get((one.metric, one.labels))
            found[one.metric, one.labels] = one if before is None else _sum(before, one)
        return Snapshot(tuple(Count(*key, value) for key, value in counts.items()), tuple(found.values()))

    def packed(self) -> Packed:
        """The same for the way to another process, with each name said once."""
        words: dict[str, int] = {}

        def numbers(metric: str, labels: Labels) -> tuple[int, ...]:
            return tuple(words.setdefault(word, len(words)) for word in (metric, *labels))

        counters = tuple((numbers(one.metric, one.labels), one.value) for one in self.counters)
        histograms = tuple((numbers(one.metric, one.labels), one.counts, one.sum_seconds) for one in self.histograms)
        return Packed(tuple(words), counters, histograms)

    def value(self, metric: str, *labels: str) -> int:
        """A counter's value, summed over the labels that are not given."""
        return sum(
            one.value for one in self.counters if one.metric == metric and one.labels[: len(labels)] == tuple(labels)
        )

    def distribution(self, metric: str, *labels: str) -> Distribution | None:
        """The histogram with exactly these labels."""
        return next((one for one in self.histograms if (one.metric, one.labels) == (metric, labels)), None)


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot in few bytes: a name and its labels are numbers of words."""

    words: tuple[str, ...]
    counters: tuple[tuple[tuple[int, ...], int], ...]
    histograms: tuple[tuple[tuple[int, ...], tuple[int, ...], float], ...]

    def unpacked(self) -> Snapshot:
        def named(numbers: tuple[int, ...]) -> tuple[str, Labels]:
            metric, *labels = (self.words[number] for number in numbers)
            return metric, tuple(labels)

        return Snapshot(
            tuple(Count(*named(numbers), value) for numbers, value in self.counters),
            tuple(Distribution(*named(numbers), counts, seconds) for numbers, counts, seconds in self.histograms),
        )


def _sum(one: Distribution, other: Distribution) -> Distribution:
    counts = tuple(map(int.__add__, one.counts, other.counts))
    return Distribution(one.metric, one.labels, counts, one.sum_seconds + other.sum_seconds)


class Totals:
    """The metrics of processes that come and go, each in its place: what one has counted stays when it is gone."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, Snapshot]] = {}
        self._before = Snapshot()
        # Whoever reads in the middle of a change of hands would see the same counts twice, and then once again.
        self._door = threading.Lock()

    def heard(self, place: int, process: str, snapshot: Snapshot) -> None:
        """What the process in a place has counted so far. A new name there means that the one before has ended."""
        with self._door:
            name, last = self._last.get(place, (process, Snapshot()))
            if name != process:
                self._before += last
            self._last[place] = process, snapshot

    def snapshot(self) -> Snapshot:
        """All of them together. Safe to call from any thread."""
        with self._door:
            return sum((snapshot for _, snapshot in self._last.values()), self._before)
