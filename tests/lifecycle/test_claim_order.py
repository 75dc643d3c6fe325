"""In which order jobs are claimed, and which go together."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenure.lifecycle.claim_order import batch, claim_order
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.lifecycle.statuses import QUEUED
from tenure.testing.clock import START


def job(number: int, *, priority: int = 0, due_at: datetime | None = START, losses: int = 0) -> Job:
    origin = Origin(id=UUID(int=number), kind="k", payload="{}", policy=Policy(), priority=priority)
    return Job(origin=origin, status=QUEUED, rev=1, created_at=START, updated_at=START, due_at=due_at, losses=losses)


@pytest.mark.requirement("WC-02")
def test_priority_comes_first_then_time_since_due_then_age() -> None:
    late = START + timedelta(seconds=1)
    expected = [job(9, priority=2, due_at=late), job(4), job(5), job(1, due_at=late), job(2, priority=-1)]
    shuffled = expected[2:] + expected[:2]
    assert sorted(shuffled, key=claim_order) == expected


def test_a_job_that_is_never_due_comes_last_of_its_priority() -> None:
    assert claim_order(job(1, due_at=None)) > claim_order(job(2))


@given(st.lists(st.integers(0, 1), max_size=12), st.integers(1, 12))
def test_a_batch_is_the_beginning_of_the_queue_and_a_lost_job_is_in_it_alone(losses: list[int], limit: int) -> None:
    jobs = [job(number, losses=lost) for number, lost in enumerate(losses)]
    taken = batch(jobs, limit)
    assert taken == jobs[: len(taken)]
    assert len(taken) <= limit
    assert bool(taken) == bool(jobs)
    if any(one.losses for one in taken):
        assert len(taken) == 1
    elif len(taken) < min(limit, len(jobs)):
        assert jobs[len(taken)].losses
