"""The counters of one thread: what they count, how they are bounded, and that they add up over processes."""

from __future__ import annotations

import socket
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import ceil
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.lifecycle.json_text import NAME_LENGTH_MAX
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.lifecycle.statuses import RUNNING
from tenure.observe.meter import LOST, Meter, rejections
from tenure.observe.metrics import BUCKETS_SECONDS, KINDS_MAX, OTHER
from tenure.observe.snapshot import CounterValue, Histogram, MetricsSnapshot, MetricsTotals, PackedMetrics
from tenure.seams import SYSTEM
from tenure.workers.supervisor.channel import ControlChannel, WorkerReport, receive_reports

AT = datetime(2030, 1, 1, tzinfo=UTC)


def job(kind: str = "mail", *, waited_seconds: float = 0.0) -> Job:
    return Job(
        origin=Origin(id=UUID(int=1), kind=kind, payload="{}", policy=Policy()),
        status=RUNNING,
        rev=3,
        created_at=AT,
        updated_at=AT,
        started_at=AT,
        due_at=AT - timedelta(seconds=waited_seconds),
    )


def test_every_series_of_a_kind_is_there_before_anything_is_counted() -> None:
    seen = Meter(["mail"]).snapshot()
    assert {(one.metric, one.labels) for one in seen.counters} >= {
        ("tenure_claims_total", ("mail",)),
        ("tenure_claim_conflicts_total", ("mail", "taken")),
        ("tenure_lease_expiries_total", ("mail", "heartbeats_missed")),
        ("tenure_attempts_total", ("mail", "lost")),
    }
    assert {one.value for one in seen.counters} == {0}
    assert {one.labels for one in seen.histograms} == {("mail",)}


@pytest.mark.requirement("SM-15")
def test_a_wait_is_from_when_a_job_was_due_until_it_was_claimed() -> None:
    meter = Meter(["mail"])
    meter.claimed([job(waited_seconds=seconds) for seconds in (0.02, 0.02, 4.0)])
    waits = meter.snapshot().histogram("tenure_queue_wait_seconds", "mail")
    assert waits is not None
    assert sum(waits.counts) == 3
    assert waits.sum_seconds == pytest.approx(4.04)
    assert waits.quantile(0.5) == pytest.approx(0.02125)
    assert 2.5 < (waits.quantile(0.95) or 0) <= 5.0
    assert meter.snapshot().value("tenure_claims_total", "mail") == 3


def test_a_clock_that_went_back_counts_as_no_wait() -> None:
    meter = Meter(["mail"])
    meter.claimed([job(waited_seconds=-5.0)])
    waits = meter.snapshot().histogram("tenure_queue_wait_seconds", "mail")
    assert waits is not None
    assert (waits.counts[0], waits.sum_seconds) == (1, 0.0)


@pytest.mark.parametrize(
    ("outcome", "also"),
    [
        ("succeeded", None),
        ("retry", "tenure_retries_total"),
        ("failed", "tenure_failures_total"),
        ("dead_lettered", "tenure_dead_letters_total"),
        ("cancelled", None),
        ("halted", None),
        (LOST, None),
    ],
)
def test_an_attempts_end_is_counted_once_and_under_its_own_name_where_it_has_one(
    outcome: str, also: str | None
) -> None:
    meter = Meter(["mail"])
    meter.ended("mail", outcome)
    counted = {(one.metric, one.labels): one.value for one in meter.snapshot().counters if one.value}
    expected = {("tenure_attempts_total", ("mail", outcome)): 1}
    assert counted == (expected if also is None else expected | {(also, ("mail",)): 1})


def test_what_is_handed_back_is_not_called_stalled() -> None:
    meter = Meter(["mail"])
    meter.ended("mail", "stalled")
    assert meter.snapshot().value("tenure_attempts_total", "mail", "released") == 1


def test_there_are_never_more_kinds_than_the_limit_and_all_processes_agree_on_them() -> None:
    kinds = [f"kind-{number:04}" for number in range(KINDS_MAX + 50)]
    one, other = Meter(kinds), Meter(reversed(kinds))
    for meter, order in ((one, kinds), (other, reversed(kinds))):
        for kind in order:
            meter.claimed([job(kind)])
            meter.ran(kind, 0.5)
    assert one.snapshot() == other.snapshot()
    labels = {count.labels[0] for count in one.snapshot().counters}
    assert len(labels) == KINDS_MAX + 1
    assert one.snapshot().value("tenure_claims_total", OTHER) == 50


def test_a_kind_that_the_program_does_not_have_is_counted_as_other() -> None:
    meter = Meter(["mail"])
    meter.expired(job("another-apps"), "lease_expired")
    assert meter.snapshot().value("tenure_lease_expiries_total", OTHER, "lease_expired") == 1


@pytest.mark.requirement("SM-15", "EH-05")
def test_arbitrary_names_get_no_label() -> None:
    refused = Counter({"mail": 2} | {f"made-up-{number}": 1 for number in range(1000)})
    assert {(one.labels, one.value) for one in rejections(refused, ["mail", "other-kind"]).counters} == {
        (("mail",), 2),
        (("other-kind",), 0),
        ((OTHER,), 1000),
    }


SECONDS = st.floats(min_value=0, max_value=10_000, allow_nan=False)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(min_value=0, max_value=1))
def test_a_quantile_lies_in_the_bucket_of_its_value(values: list[float], share: float) -> None:
    meter = Meter(["mail"])
    for value in values:
        meter.ran("mail", value)
    found = meter.snapshot().histogram("tenure_run_seconds", "mail")
    assert found is not None
    estimate = found.quantile(share)
    assert estimate is not None
    exact = sorted(values)[max(0, ceil(share * len(values)) - 1)]
    least = max((end for end in BUCKETS_SECONDS if end < exact), default=0.0)
    most = min((end for end in BUCKETS_SECONDS if end >= exact), default=least)
    assert least <= estimate <= most


def test_a_quantile_of_nothing_is_none() -> None:
    assert Histogram("", (), (0,) * (len(BUCKETS_SECONDS) + 1), 0.0).quantile(0.5) is None


def counted(value: int) -> MetricsSnapshot:
    return MetricsSnapshot((CounterValue("tenure_claims_total", ("mail",), value),))


def test_snapshots_survive_the_way_to_another_process() -> None:
    meter = Meter(["mail"])
    meter.claimed([job()])
    meter.ran("mail", 3.0)
    seen = meter.snapshot()
    assert msgspec.json.decode(msgspec.json.encode(seen.pack()), type=PackedMetrics).unpack() == seen
    assert (seen + seen).value("tenure_claims_total") == 2
    both = (seen + seen).histogram("tenure_run_seconds", "mail")
    assert both is not None
    assert (sum(both.counts), both.sum_seconds) == (2, 6.0)


async def test_the_largest_report_fits_the_control_channel() -> None:
    """One that does not fit would be cut off again and again, and its process be taken for one that is never up."""
    names = [f"{number:03}{'x' * (NAME_LENGTH_MAX - 3)}" for number in range(KINDS_MAX)]
    meter = Meter(names)
    seen = meter.snapshot()
    full = MetricsSnapshot(
        tuple(CounterValue(one.metric, one.labels, 10**12) for one in seen.counters),
        tuple(Histogram(one.metric, one.labels, (10**12,) * 19, 1e12 / 7) for one in seen.histograms),
    )
    ours, theirs = socket.socketpair()
    with ours:
        line = ControlChannel(theirs.detach(), SYSTEM)
        report = WorkerReport(worker="w", pid=1, running=0, counts={}, uptime_seconds=0.0, metrics=full.pack())
        line.send(report)
        ours.settimeout(0)
        line._socket.close()
        assert [received async for received in receive_reports(ours)] == [report]


LIVES = st.lists(
    st.tuples(st.integers(min_value=1, max_value=3), st.booleans(), st.integers(min_value=0, max_value=5)), max_size=40
)


@given(LIVES)
def test_the_total_never_goes_back_and_forgets_nothing_however_processes_come_and_go(
    lives: list[tuple[int, bool, int]],
) -> None:
    totals, born, values, ended = MetricsTotals(), Counter[int](), Counter[int](), 0
    last = 0
    for place, anew, more in lives:
        if anew:
            born[place] += 1
            ended += values.pop(place, 0)
        values[place] += more
        totals.record(place, f"worker-{place}-{born[place]}", counted(values[place]))
        now = totals.snapshot().value("tenure_claims_total")
        assert now >= last
        assert now == ended + sum(values.values())
        last = now
