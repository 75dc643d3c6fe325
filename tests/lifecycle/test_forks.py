"""The steps that a fork begins with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.forks import FORK_KEY, forked_steps
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, HALTED, Status
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.testing.clock import START

NEW_ID = UUID(int=8)


def ended(status: Status) -> Job:
    job = enqueued_job(Origin(id=UUID(int=7), kind="pay", payload="{}", policy=Policy()), at=START, due_at=None)
    return msgspec.structs.replace(job, status=status)


def record(number: int, key: str | None = None, **facts: Any) -> StepRecord:
    at = START + timedelta(seconds=number)
    given: dict[str, Any] = {"name": f"step{number}", "kind": StepKind.STEP, "result": "1", **facts}
    return StepRecord(
        job_id=UUID(int=7),
        key=key or str(number),
        number=number,
        attempt=2,
        started_at=at,
        finished_at=at,
        content_digest="",
        digest="0",
        **given,
    )


def forked(
    steps: list[StepRecord],
    *,
    status: Status = HALTED,
    from_step: str | None = None,
    replace: dict[str, str] | None = None,
) -> list[StepRecord]:
    copies = forked_steps(
        ended(status), steps, NEW_ID, from_step=from_step, replace=replace or {}, succeeded_children=()
    )
    assert copies[0].key == FORK_KEY
    assert {copy.job_id for copy in copies} == {NEW_ID}
    return copies[1:]


def keys(copies: list[StepRecord]) -> list[str]:
    return [copy.key for copy in copies]


@pytest.mark.requirement("WF-17")
def test_the_step_to_fork_from_and_later_ones_are_executed_again() -> None:
    steps = [record(number) for number in range(1, 6)]
    assert keys(forked(steps)) == ["1", "2", "3", "4", "5"]
    assert keys(forked(steps, from_step="3")) == ["1", "2"]
    assert keys(forked(steps, from_step="step4")) == ["1", "2", "3"]
    assert [(copy.key, copy.result) for copy in forked(steps, replace={"2": "7"})] == [("1", "1"), ("2", "7")]


@pytest.mark.requirement("WF-19")
def test_copies_have_spent_nothing_and_belong_to_the_first_attempt() -> None:
    [copy] = forked([record(1, spend='{"cost":1}', signal_rev=4)])
    assert (copy.spend, copy.signal_rev, copy.attempt) == (None, None, 1)


@pytest.mark.requirement("WF-17")
@pytest.mark.parametrize(("status", "kept"), [(HALTED, 3), (FAILED, 1), (DEAD_LETTERED, 1)])
def test_only_a_failed_run_goes_on_from_the_step_that_failed(status: Status, kept: int) -> None:
    """A run that was halted has passed its failed step, which continues on errors."""
    steps = [record(1), record(2, status="failed", result=None, error="{}"), record(3)]
    assert len(forked(steps, status=status)) == kept


@pytest.mark.requirement("WF-17")
def test_undone_steps_are_executed_again() -> None:
    undo = record(4, "2.undo", kind=StepKind.UNDO)
    steps = [record(1), record(2), record(3), undo]
    assert keys(forked(steps, status=FAILED)) == ["1"]
    with pytest.raises(InvalidInput, match=r"step 'step2' \(2\) was undone when the run ended"):
        forked(steps, status=FAILED, from_step="3")


@pytest.mark.requirement("WF-17")
def test_a_step_that_is_executed_again_has_all_its_attempts_again() -> None:
    retry = record(2, "5.retry.1", kind=StepKind.SLEEP, name="ask")
    failed = record(3, "5", name="ask", status="failed", result=None, error="{}")
    assert keys(forked([record(1), retry, failed], status=FAILED)) == ["1"]
    assert keys(forked([record(1), retry, failed], status=FAILED, from_step="ask")) == ["1"]
    assert keys(forked([record(1), retry])) == ["1", "5.retry.1"], "it was halted between two attempts"
