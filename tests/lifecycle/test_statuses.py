"""How statuses group and rank."""

from __future__ import annotations

import pytest

from tenure.lifecycle.statuses import LEASED, LIVE, READY, TERMINAL, CoarseState, Status, coarse_state, rank


@pytest.mark.requirement("LC-01")
def test_there_are_eleven_statuses_six_of_them_live() -> None:
    assert {status.value for status in LIVE} == {"queued", "claimed", "running", "waiting", "retry", "stalled"}
    assert {status.value for status in TERMINAL} == {"succeeded", "failed", "cancelled", "halted", "dead_lettered"}
    assert set(Status) == LIVE | TERMINAL
    assert LIVE == LEASED | READY
    assert not LEASED & READY


@pytest.mark.requirement("EL-02")
@pytest.mark.parametrize("status", Status)
def test_each_status_has_its_coarse_state(status: Status) -> None:
    expected = {
        "queued": "PENDING",
        "claimed": "RUNNING",
        "running": "RUNNING",
        "waiting": "PENDING",
        "retry": "PENDING",
        "stalled": "PENDING",
        "succeeded": "SUCCEEDED",
        "failed": "FAILED",
        "cancelled": "FAILED",
        "halted": "FAILED",
        "dead_lettered": "FAILED",
    }
    assert coarse_state(status) is CoarseState(expected[status.value])


@pytest.mark.requirement("SM-03")
def test_ranks_rise_within_an_attempt() -> None:
    assert rank(Status.QUEUED) == 0
    assert rank(Status.CLAIMED) == 1
    assert rank(Status.RUNNING) == 2
    assert {rank(status) for status in (Status.WAITING, Status.RETRY, Status.STALLED)} == {3}
    assert {rank(status) for status in TERMINAL} == {3}
    assert {rank(status, requeued=True) for status in (Status.QUEUED, *TERMINAL)} == {4}
