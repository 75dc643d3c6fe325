"""The text that Prometheus scrapes has every metric of the catalogue, and nothing else."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tenure.observe import metrics
from tenure.observe.database_gauges import GaugeValue
from tenure.observe.meter import Meter
from tenure.observe.metrics import BUCKETS_SECONDS, METRICS, MetricType
from tenure.observe.prometheus import Collector, text
from tenure.observe.snapshot import MetricsSnapshot
from tools.generated import ROOT


def metered() -> MetricsSnapshot:
    meter = Meter(["mail"])
    meter.ended("mail", "succeeded")
    for seconds in (0.0005, 0.2, 0.2, 1e6):
        meter.ran("mail", seconds)
    return meter.snapshot()


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(body.decode())
        for one in family.samples
    }


@pytest.mark.requirement("SM-15")
def test_a_scrape_can_be_parsed_and_has_all_metrics_with_their_types() -> None:
    families = list(text_string_to_metric_families(text(Collector(metered)).decode()))
    assert {(one.name, one.type) for one in families} == {
        (metric.name.removesuffix("_total"), str(metric.type)) for metric in METRICS
    }
    assert all(one.documentation for one in families)


def test_a_histogram_is_cumulative_and_its_last_bucket_is_its_count() -> None:
    seen = samples(text(Collector(metered)))
    kind = ("kind", "mail")
    buckets = [seen["tenure_run_seconds_bucket", (kind, ("le", end))] for end in (*map(repr, BUCKETS_SECONDS), "+Inf")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 3, 4)
    assert seen["tenure_run_seconds_count", (kind,)] == 4


def test_several_sources_are_shown_as_their_sum_beside_the_levels() -> None:
    level = GaugeValue(metrics.JOBS.name, ("default", "queued"), 7)
    seen = samples(text(Collector(metered, metered, gauges=lambda: [level])))
    assert seen["tenure_attempts_total", (("kind", "mail"), ("outcome", "succeeded"))] == 2
    assert seen["tenure_jobs", (("queue", "default"), ("status", "queued"))] == 7


def test_what_a_kind_is_called_cannot_break_the_text() -> None:
    meter = Meter(['we"ird\\kind\n'])
    seen = samples(text(Collector(meter.snapshot)))
    assert seen["tenure_claims_total", (("kind", 'we"ird\\kind\n'),)] == 0


def test_registering_reads_neither_counters_nor_the_database() -> None:
    def never() -> MetricsSnapshot:
        raise AssertionError("no request has come yet")

    def never_levels() -> list[GaugeValue]:
        raise AssertionError("no request has come yet")

    registry = CollectorRegistry()
    registry.register(Collector(never, gauges=never_levels))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector(never))


def test_names_follow_the_rules_of_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"tenure_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert metric.type is not MetricType.HISTOGRAM or metric.name.endswith("_seconds")
        assert set(metric.labels) <= {"kind", "queue", "status", "outcome", "reason", "cause", "outbox_endpoint"}
    assert list(BUCKETS_SECONDS) == sorted(set(BUCKETS_SECONDS))


def test_the_page_lists_exactly_these_metrics_with_their_labels_and_what_they_count() -> None:
    page = (ROOT / "docs" / "guides" / "observability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(tenure_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    written = {
        (name, shape, tuple(re.findall(r"`(\w+)`", labels)), expected_text)
        for name, shape, labels, expected_text in rows
    }
    assert written == {(one.name, str(one.type), one.labels, one.help) for one in METRICS}
    assert ", ".join(f"{bound:g}" for bound in BUCKETS_SECONDS) in " ".join(page.split())
