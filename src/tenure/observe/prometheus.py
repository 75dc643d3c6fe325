"""The metrics for Prometheus: a collector for the user's registry, and the text of one scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tenure.observe.database_gauges import GaugeValue
from tenure.observe.metrics import METRICS, Metric, MetricType
from tenure.observe.optional_packages import missing
from tenure.observe.snapshot import MetricsSnapshot

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
    """Exports the sum of these sources, and the gauges.

    REGISTRY.register(Collector(worker.metrics, app.metrics))
    """

    def __init__(
        self, *sources: Callable[[], MetricsSnapshot], gauges: Callable[[], Iterable[GaugeValue]] = lambda: ()
    ) -> None:
        self._sources, self._gauges = sources, gauges

    def describe(self) -> Iterator[Family]:
        """All metrics without values, so that registering reads no database."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        """Every metric, including those without a series."""
        snapshot = sum((read() for read in self._sources), MetricsSnapshot())
        gauges = list(self._gauges())
        for metric in METRICS:
            family = _family(metric)
            _fill(family, metric, snapshot, gauges)
            yield family


def text(collector: Collector) -> bytes:
    """One scrape, in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _family(metric: Metric) -> Family:
    match metric.type:
        case MetricType.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricType.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricType.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _fill(family: Family, metric: Metric, snapshot: MetricsSnapshot, gauges: Iterable[GaugeValue]) -> None:
    if isinstance(family, CounterMetricFamily):
        for counter in snapshot.counters:
            if counter.metric == metric.name:
                family.add_metric(counter.labels, counter.value)
    elif isinstance(family, HistogramMetricFamily):
        for histogram in snapshot.histograms:
            if histogram.metric == metric.name:
                family.add_metric(histogram.labels, histogram.cumulative, histogram.sum_seconds)
    elif isinstance(family, GaugeMetricFamily):
        for gauge in gauges:
            if gauge.metric == metric.name:
                family.add_metric(gauge.labels, gauge.value)
