"""The metrics of a process as a value, which can be sent to another process and added to others."""

from __future__ import annotations

import threading
from itertools import accumulate

import msgspec

from tenure.observe.metrics import BUCKETS_SECONDS

Labels = tuple[str, ...]


class CounterValue(msgspec.Struct, frozen=True):
    """The value of one counter."""

    metric: str
    labels: Labels
    value: int


class Histogram(msgspec.Struct, frozen=True):
    """One histogram: the count of each bucket, the last of which has no upper bound, and the sum."""

    metric: str
    labels: Labels
    counts: tuple[int, ...]
    sum_seconds: float

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """The cumulative counts by the upper bounds of the buckets."""
        bounds = [*(repr(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float | None:
        """The quantile, interpolated within its bucket; None for an empty histogram.

        >>> Histogram("", (), (0, 4) + (0,) * 17, 0.0).quantile(0.5)
        0.00175
        """
        wanted, below = share * sum(self.counts), 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                lower = BUCKETS_SECONDS[index - 1] if index else 0.0
                # Of the last bucket only the lower bound is known.
                upper = BUCKETS_SECONDS[index] if index < len(BUCKETS_SECONDS) else lower
                return lower + (upper - lower) * max(0.0, wanted - below) / count
            below += count
        return None


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """Counters and histograms. None of them decreases while its process lives."""

    counters: tuple[CounterValue, ...] = ()
    histograms: tuple[Histogram, ...] = ()

    def __add__(self, other: MetricsSnapshot) -> MetricsSnapshot:
        """The sum of both."""
        counts: dict[tuple[str, Labels], int] = {}
        for count in (*self.counters, *other.counters):
            key = count.metric, count.labels
            counts[key] = counts.get(key, 0) + count.value
        found: dict[tuple[str, Labels], Histogram] = {}
        for one in (*self.histograms, *other.histograms):
            before = found.get((one.metric, one.labels))
            found[one.metric, one.labels] = one if before is None else _sum(before, one)
        return MetricsSnapshot(tuple(CounterValue(*key, value) for key, value in counts.items()), tuple(found.values()))

    def pack(self) -> PackedMetrics:
        """A compact form for sending it to another process."""
        words: dict[str, int] = {}

        def numbers(metric: str, labels: Labels) -> tuple[int, ...]:
            return tuple(words.setdefault(word, len(words)) for word in (metric, *labels))

        counters = tuple((numbers(one.metric, one.labels), one.value) for one in self.counters)
        histograms = tuple((numbers(one.metric, one.labels), one.counts, one.sum_seconds) for one in self.histograms)
        return PackedMetrics(tuple(words), counters, histograms)

    def value(self, metric: str, *labels: str) -> int:
        """A counter's value, summed over the labels that are not given."""
        return sum(
            one.value for one in self.counters if one.metric == metric and one.labels[: len(labels)] == tuple(labels)
        )

    def histogram(self, metric: str, *labels: str) -> Histogram | None:
        """The histogram with exactly these labels."""
        return next((one for one in self.histograms if (one.metric, one.labels) == (metric, labels)), None)


class PackedMetrics(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot in few bytes: a metric and its labels are indexes into `words`."""

    words: tuple[str, ...]
    counters: tuple[tuple[tuple[int, ...], int], ...]
    histograms: tuple[tuple[tuple[int, ...], tuple[int, ...], float], ...]

    def unpack(self) -> MetricsSnapshot:
        def named(numbers: tuple[int, ...]) -> tuple[str, Labels]:
            metric, *labels = (self.words[number] for number in numbers)
            return metric, tuple(labels)

        return MetricsSnapshot(
            tuple(CounterValue(*named(numbers), value) for numbers, value in self.counters),
            tuple(Histogram(*named(numbers), counts, seconds) for numbers, counts, seconds in self.histograms),
        )


def _sum(one: Histogram, other: Histogram) -> Histogram:
    counts = tuple(map(int.__add__, one.counts, other.counts))
    return Histogram(one.metric, one.labels, counts, one.sum_seconds + other.sum_seconds)


class MetricsTotals:
    """The sum of the metrics of worker processes by slot. What a process counted stays when it is replaced."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, MetricsSnapshot]] = {}
        self._before = MetricsSnapshot()
        # Without it, a read during a replacement would count the old process twice.
        self._lock = threading.Lock()

    def record(self, slot: int, process: str, snapshot: MetricsSnapshot) -> None:
        """The counts of the process in a slot so far. A new process name means that the previous one has ended."""
        with self._lock:
            name, last = self._last.get(slot, (process, MetricsSnapshot()))
            if name != process:
                self._before += last
            self._last[slot] = process, snapshot

    def snapshot(self) -> MetricsSnapshot:
        """The sum over all processes. Safe to call from any thread."""
        with self._lock:
            return sum((snapshot for _, snapshot in self._last.values()), self._before)
