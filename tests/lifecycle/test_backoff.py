"""How long to wait before the next try."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenure.errors import InvalidInput
from tenure.lifecycle.backoff import Backoff, retry_delay_ms
from tenure.lifecycle.records import Policy

JOB = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.mark.requirement("SM-08")
def test_the_defaults_are_half_a_second_doubling_up_to_four_hours() -> None:
    assert (Backoff().base_seconds, Backoff().factor, Backoff().max_seconds) == (0.5, 2.0, 14_400.0)


@pytest.mark.requirement("SM-08", "SM-09")
def test_the_attempts_of_the_default_policy_take_about_twenty_hours() -> None:
    policy = Policy()
    longest = [min(14_400.0, 0.5 * 2**n) for n in range(policy.max_attempts - 1)]
    assert (policy.max_attempts, policy.on_exhausted, sum(longest)) == (20, "dead_letter", 73_983.5)
    delays = [retry_delay_ms(policy.backoff, job_id=JOB, attempt=n, failures=n) for n in range(1, policy.max_attempts)]
    assert all(most / 2 <= delay / 1000 <= most for delay, most in zip(delays, longest, strict=True))


@pytest.mark.requirement("WC-11")
def test_the_delay_is_the_same_on_every_machine() -> None:
    # Written down once: a change of these would make recorded retries unexplainable.
    delays = [retry_delay_ms(Backoff(), job_id=JOB, attempt=n, failures=n) for n in range(1, 6)]
    assert delays == [435, 963, 1410, 2909, 7249]


@pytest.mark.requirement("SM-08")
@given(job_id=st.uuids(), attempt=st.integers(1, 10**6), failures=st.integers(1, 30_000))
def test_a_delay_lies_between_half_of_the_exponential_value_and_all_of_it(
    job_id: UUID, attempt: int, failures: int
) -> None:
    backoff = Backoff(base_seconds=0.5, factor=2, max_seconds=60)
    whole_ms = min(60_000, 500 * 2 ** min(failures - 1, 20))
    delay_ms = retry_delay_ms(backoff, job_id=job_id, attempt=attempt, failures=failures)
    assert whole_ms // 2 <= delay_ms <= whole_ms


@pytest.mark.requirement("SM-08")
def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    jobs = [UUID(int=number) for number in range(200)]
    delays = {retry_delay_ms(Backoff(max_seconds=60), job_id=job, attempt=8, failures=8) for job in jobs}
    assert len(delays) > 150
    assert max(delays) - min(delays) > 20_000


def test_another_attempt_at_the_same_job_waits_another_time() -> None:
    delays = {retry_delay_ms(Backoff(), job_id=JOB, attempt=attempt, failures=9) for attempt in range(20)}
    assert len(delays) > 15


def test_no_delay_is_allowed() -> None:
    assert retry_delay_ms(Backoff(base_seconds=0), job_id=JOB, attempt=1, failures=1) == 0


@pytest.mark.parametrize("facts", [{"base_seconds": -1}, {"factor": 0.5}, {"max_seconds": float("nan")}])
def test_a_backoff_that_makes_no_sense_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Backoff(**facts)
