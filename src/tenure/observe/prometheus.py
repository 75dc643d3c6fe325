"""The metrics for Prometheus: a collector for a registry of the user's own, and the text of one scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tenure.observe.database_gauges import Level
from tenure.observe.metrics import METRICS, Metric, Shape
from tenure.observe.optional_packages import missing
from tenure.observe.snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as BaseCollector
except ModuleNotFoundError as absent:
    raise missing("metrics", "prometheus_client", "metrics") from absent

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collector(BaseCollector):
    """Shows what these sources have counted, summed, and the levels of the database if it is given a way to read them.

    REGISTRY.register(Collector(worker.metrics, app.metrics))
    """

    def __init__(self, *sources: Callable[[], Snapshot], levels: Callable[[], Iterable[Level]] = lambda: ()) -> None:
        self._sources, self._levels = sources, levels

    def describe(self) -> Iterator[Family]:
        """All names, so that registering asks no database."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        """Every metric of the catalogue, also one that has no series yet."""
        seen = sum((read() for read in self._sources), Snapshot())
        levels = list(self._levels())
        for metric in METRICS:
            family = _family(metric)
            _fill(family, metric, seen, levels)
            yield family


def text(collector: Collector) -> bytes:
    """One scrape, in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _family(metric: Metric) -> Family:
    match metric.shape:
        case Shape.COUNTER:
            return CounterMetricFamily(metric.name, metric.says, labels=metric.labels)
        case Shape.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.says, labels=metric.labels)
        case Shape.GAUGE:
            return GaugeMetricFamily(metric.name, metric.says, labels=metric.labels)


def _fill(family: Family, metric: Metric, seen: Snapshot, levels: Iterable[Level]) -> None:
    if isinstance(family, CounterMetricFamily):
        for count in seen.counters:
            if count.metric == metric.name:
                family.add_metric(count.labels, count.value)
    elif isinstance(family, HistogramMetricFamily):
        for one in seen.histograms:
            if one.metric == metric.name:
                family.add_metric(one.labels, one.cumulative, one.sum_seconds)
    elif isinstance(family, GaugeMetricFamily):
        for level in levels:
            if level.metric == metric.name:
                family.add_metric(level.labels, level.value)
