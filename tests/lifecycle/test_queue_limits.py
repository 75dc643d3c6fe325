"""Limits of a queue, as pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidInput
from tenure.lifecycle.claim_order import batch, candidate_order
from tenure.lifecycle.queue_limits import SLICES, Admission, Candidate, QueueLimits, Rate, RateUsage, round_robin
from tenure.seams import SYSTEM

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def candidate(key: str | None = None, *, priority: int = 0, age_seconds: float = 0.0, losses: int = 0) -> Candidate:
    due_at = NOON - timedelta(seconds=age_seconds)
    return Candidate(SYSTEM.random.job_id(), "mail", key, priority, due_at, losses)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@given(
    st.integers(1, 20),
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 8)), min_size=1, max_size=60),
)
def test_no_stretch_of_a_rates_time_sees_more_starts_than_allowed(
    most: int, seconds: float, asked: list[tuple[float, int]]
) -> None:
    rate, spent, now = Rate(most, seconds), RateUsage(), NOON
    starts: list[datetime] = []
    for pause, wanted in asked:
        now += timedelta(seconds=pause)
        granted = min(wanted, max(0, spent.left(rate, now)))
        spent = spent.after(granted, rate, now) if granted else spent
        starts += [now] * granted
    for begin in starts:
        within = [one for one in starts if begin <= one < begin + timedelta(seconds=seconds)]
        assert len(within) <= most


@given(st.integers(1, 20), st.floats(0.1, 100), st.floats(0, 1000))
def test_a_rate_is_whole_again_a_slice_after_its_time(most: int, seconds: float, begin: float) -> None:
    rate = Rate(most, seconds)
    spent = RateUsage().after(most, rate, after(begin))
    assert spent.left(rate, after(begin)) == 0
    later = after(begin + seconds * (1 + 1 / SLICES) + 0.001)
    assert spent.left(rate, later) == most
    assert spent.recent(rate, later).slices == ()
    lapses_at = spent.lapses_at(rate)
    assert lapses_at is not None
    assert spent.left(rate, lapses_at) == most
    assert lapses_at <= later


@given(st.floats(0.2, 100), st.floats(0, 1e6))
def test_a_clock_that_is_set_back_opens_no_rate_and_shuts_none_for_good(seconds: float, back: float) -> None:
    rate = Rate(3, seconds)
    spent = RateUsage().after(3, rate, after(0))
    assert spent.left(rate, after(-back)) == 0
    again = spent.recent(rate, after(-back))
    assert again.left(rate, after(-back + seconds * (1 + 2 / SLICES) + 0.001)) == 3


def test_nothing_is_kept_of_what_is_over() -> None:
    rate, spent = Rate(1000, 10), RateUsage()
    for second in range(1000):
        spent = spent.after(1, rate, after(second))
    assert len(spent.slices) <= SLICES + 1


def test_an_admission_counts_leased_and_admitted_jobs() -> None:
    admission = Admission(QueueLimits(concurrency_max=4, key_concurrency_max=2), NOON, leased={"a": 1, None: 1})
    assert [admission.admit(key) for key in ("a", "a", "b", None)] == [True, False, True, False]
    assert admission.room == 0


def test_an_admission_without_limits_admits_everything() -> None:
    admission = Admission(QueueLimits(), NOON, leased={})
    assert admission.room is None
    assert all(admission.admit("a") for _ in range(1000))


def test_a_limit_below_the_leased_count_admits_nothing() -> None:
    admission = Admission(QueueLimits(concurrency_max=2), NOON, leased={None: 5})
    assert (admission.room, admission.admit(None)) == (0, False)


def test_limits_per_key_do_not_apply_to_jobs_without_a_key() -> None:
    admission = Admission(QueueLimits(key_concurrency_max=1, key_rate=Rate(1, 60)), NOON, leased={None: 7})
    assert all(admission.admit(None) for _ in range(10))


def test_an_admission_returns_when_a_rate_admits_the_next_job() -> None:
    rate = Rate(1, 60)
    admission = Admission(QueueLimits(rate=rate), NOON, leased={}, usage=RateUsage().after(1, rate, NOON))
    assert not admission.admit("a")
    assert admission.retry_at is not None
    assert after(60) <= admission.retry_at <= after(66)
    shut_by_limit = Admission(QueueLimits(concurrency_max=1), NOON, leased={"a": 1})
    assert not shut_by_limit.admit("a")
    assert shut_by_limit.retry_at is None


def test_what_was_let_through_and_not_started_is_not_spent() -> None:
    admission = Admission(QueueLimits(rate=Rate(5, 60), key_rate=Rate(5, 60)), NOON, leased={})
    started, left_behind = candidate("a"), candidate("b")
    assert admission.admit("a")
    assert admission.admit("b")
    assert admission.usage_after([started], NOON) == RateUsage().after(1, Rate(5, 60), NOON)
    assert admission.key_usage_after([started], NOON) == {"a": RateUsage().after(1, Rate(5, 60), NOON)}
    assert admission.usage_after([], NOON) is None
    assert left_behind.key == "b"


def test_fairness_rotates_over_keys_in_order_and_jobs_without_a_key_are_last() -> None:
    jobs = [candidate(key) for key in ("a", "a", "a", "b", None, None, "c")]
    assert [one.key for one in round_robin(jobs, ["c", "a", "b"])] == ["c", "a", "b", None, "a", None, "a"]


def test_blocked_jobs_are_skipped_and_a_lost_job_is_still_claimed_alone() -> None:
    jobs = [candidate("full"), candidate("a"), candidate("a", losses=1), candidate("b")]
    admission = Admission(QueueLimits(key_concurrency_max=5), NOON, leased={"full": 5})
    assert [one.key for one in batch(jobs, 10, admits=lambda one: admission.admit(one.key))] == ["a"]
    lost_first = [candidate("a", losses=1), candidate("b")]
    assert batch(lost_first, 10) == lost_first[:1]


def test_candidates_go_by_priority_then_time_since_due_then_age() -> None:
    old, young, urgent = candidate(age_seconds=9), candidate(age_seconds=1), candidate(priority=1)
    assert sorted([young, old, urgent], key=candidate_order) == [urgent, old, young]


@pytest.mark.parametrize(
    ("rules", "expected_text"),
    [
        ({"concurrency_max": 0}, "pause it instead"),
        ({"key_concurrency_max": -1}, "key_concurrency_max"),
        ({"concurrency_max": True}, "concurrency_max"),
        ({"concurrency_max": 2.5}, "concurrency_max"),
        ({"rate": 5}, "must be a Rate"),
        ({"key_rate": "5/s"}, "must be a Rate"),
        ({"fair": 1}, "fair"),
    ],
)
def test_invalid_limits_are_refused(rules: dict[str, object], expected_text: str) -> None:
    with pytest.raises(InvalidInput, match=expected_text):
        QueueLimits(**rules)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "seconds"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1, float("nan")), (1.5, 1), (1, 1e9)]
)
def test_a_rate_that_makes_no_sense_is_refused(count: float, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Rate(count, seconds)  # type: ignore[arg-type]
