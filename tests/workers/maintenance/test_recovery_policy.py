"""Recovery applies the policy that a job came with, and asks for nothing that the table would refuse."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.decide import decide_at
from tenure.lifecycle.operations import DeadLetter, GiveUp, Operation, Reconcile, Requeue, Stall, TimeOut
from tenure.lifecycle.records import Actor, Job, OnLost, OnTimeout, Origin, Policy, Role
from tenure.lifecycle.statuses import CLAIMED, QUEUED, READY, RETRY, RUNNING, STALLED, WAITING, Status
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.clock import START
from tenure.workers.maintenance.recovery import recovery_operations

RECOVERY = Actor(Role.RECOVERY, "mender")
TOKEN = UUID(int=7)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def held(status: Status, policy: Policy | None = None, **facts: Any) -> Job:
    """A job under a lease that runs until +60 s, whose heartbeats are missed from +40 s on."""
    return Job(
        origin=Origin(id=UUID(int=1), kind="k", payload="{}", policy=policy or Policy()),
        status=status,
        rev=3,
        created_at=START,
        updated_at=START,
        **{
            "attempt": 1,
            "due_at": START,
            "owner": "w",
            "token": TOKEN,
            "lease_expires_at": later(60),
            "heartbeat_deadline_at": later(40),
            "timeout_at": later(86_400),
            **facts,
        },
    )


def test_a_job_that_is_attended_to_is_left_alone() -> None:
    assert recovery_operations(held(RUNNING), later(39)) == ()
    assert recovery_operations(held(CLAIMED), later(39)) == ()


@pytest.mark.requirement("SM-06", "SM-07")
def test_missed_heartbeats_and_an_expired_lease_have_different_causes() -> None:
    assert recovery_operations(held(RUNNING), later(40)) == (Stall("heartbeats_missed"), Requeue())
    assert recovery_operations(held(RUNNING), later(60)) == (Stall("lease_expired"), Requeue())


@pytest.mark.requirement("EL-06")
def test_a_committed_job_is_finished_and_never_run_again() -> None:
    committed: dict[str, Any] = {"committed_at": START, "committed_result": "1"}
    assert recovery_operations(held(RUNNING, **committed), later(60)) == (Stall("lease_expired"), Reconcile())


@pytest.mark.requirement("SM-07")
@pytest.mark.parametrize(
    ("policy", "last"),
    [
        (Policy(on_lost="requeue"), Requeue),
        (Policy(on_lost="fail"), GiveUp),
        (Policy(on_lost="dead_letter"), DeadLetter),
        (Policy(max_attempts=1, on_exhausted="fail"), GiveUp),
        (Policy(max_attempts=1, on_exhausted="dead_letter"), DeadLetter),
    ],
)
def test_a_lost_job_is_handled_by_its_policy(policy: Policy, last: type[Operation]) -> None:
    stall, end = recovery_operations(held(RUNNING, policy), later(60))
    assert isinstance(stall, Stall)
    assert isinstance(end, last)


@pytest.mark.requirement("SM-11")
def test_a_dead_letter_distinguishes_a_loss_from_exhausted_retries() -> None:
    reasons: list[ReasonCode] = []
    for policy, failures, losses in (
        (Policy(on_lost="dead_letter"), 1, 0),
        (Policy(max_attempts=2, on_exhausted="dead_letter"), 1, 1),
        (Policy(max_attempts=2, on_exhausted="dead_letter"), 1, 0),
    ):
        job = held(RUNNING, policy, attempt=2, failures=failures, losses=losses)
        letter = recovery_operations(job, later(60))[1]
        assert isinstance(letter, DeadLetter)
        reasons.append(letter.reason_code)
    assert reasons == [
        ReasonCode.INFRASTRUCTURE_FAILURE,
        ReasonCode.INFRASTRUCTURE_FAILURE,
        ReasonCode.EXHAUSTED_RETRIES,
    ]


FREE: dict[str, Any] = {"owner": None, "token": None, "lease_expires_at": None, "heartbeat_deadline_at": None}


@pytest.mark.requirement("EH-03")
@pytest.mark.parametrize("on_timeout", ["retry", "fail", "dead_letter"])
@pytest.mark.parametrize("status", [QUEUED, RETRY, WAITING, STALLED])
def test_a_job_without_a_lease_that_is_due_for_too_long_ends(status: Status, on_timeout: OnTimeout) -> None:
    job = held(status, Policy(on_timeout=on_timeout), timeout_at=later(10), **FREE)
    assert recovery_operations(job, later(9.999)) == ()
    [operation] = recovery_operations(job, later(10))
    if on_timeout == "dead_letter":
        assert isinstance(operation, DeadLetter)
        assert (operation.reason_code, operation.stage) == (ReasonCode.TIMEOUT, Stage.FETCH)
    else:
        assert isinstance(operation, TimeOut)


@pytest.mark.requirement("EH-02", "EH-03")
@pytest.mark.parametrize(("on_timeout", "first"), [("retry", Stall), ("fail", TimeOut), ("dead_letter", DeadLetter)])
def test_a_leased_job_that_timed_out_is_handled_by_its_policy(on_timeout: OnTimeout, first: type[Operation]) -> None:
    policy = Policy(on_timeout=on_timeout, lease_seconds=600)
    claimed, running = (held(status, policy, timeout_at=later(10)) for status in (CLAIMED, RUNNING))
    assert isinstance(recovery_operations(claimed, later(10))[0], first)
    assert recovery_operations(running, later(19.999)) == (), "its owner has the time to end it"
    operations = recovery_operations(running, later(20))
    assert isinstance(operations[0], first)
    if on_timeout == "retry":
        assert operations == (Stall("timeout"), Requeue())


@pytest.mark.requirement("EH-03", "SM-09", "SM-11")
@pytest.mark.parametrize("on_lost", ["requeue", "fail", "dead_letter"])
def test_the_last_allowed_timeout_ends_the_job_by_on_exhausted(on_lost: OnLost) -> None:
    fails, buries = (Policy(max_attempts=1, on_exhausted=end, on_lost=on_lost) for end in ("fail", "dead_letter"))
    stall, end = recovery_operations(held(RUNNING, fails, timeout_at=later(10)), later(20))
    assert (stall, type(end)) == (Stall("timeout"), GiveUp)
    [letter] = recovery_operations(held(RUNNING, buries, timeout_at=later(10)), later(20))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason_code, letter.stage) == (ReasonCode.TIMEOUT, Stage.EXEC)


@pytest.mark.requirement("EH-03", "EL-06")
@pytest.mark.parametrize("on_timeout", ["retry", "fail", "dead_letter"])
def test_a_committed_job_that_hangs_is_reconciled(on_timeout: OnTimeout) -> None:
    committed: dict[str, Any] = {"committed_at": START, "committed_result": "1", "timeout_at": later(10)}
    job = held(RUNNING, Policy(on_timeout=on_timeout), **committed)
    assert recovery_operations(job, later(20)) == (Stall("timeout"), Reconcile())


@pytest.mark.requirement("SM-06", "SM-07")
def test_a_lost_owner_comes_before_a_passed_timeout() -> None:
    job = held(RUNNING, Policy(on_timeout="fail"), timeout_at=later(10))
    assert recovery_operations(job, later(60)) == (Stall("lease_expired"), Requeue())


def test_every_remedy_is_legal_for_every_job_that_needs_one() -> None:
    checked = 0
    for status, on_lost, on_timeout, on_exhausted, attempts, committed, seconds in itertools.product(
        (CLAIMED, RUNNING, STALLED, QUEUED, RETRY, WAITING),
        ("requeue", "fail", "dead_letter"),
        ("retry", "fail", "dead_letter"),
        ("fail", "dead_letter"),
        (1, 3),
        (None, START),
        (0, 20, 45, 100, 100_000),
    ):
        policy = Policy(
            on_lost=on_lost,  # type: ignore[arg-type]
            on_timeout=on_timeout,  # type: ignore[arg-type]
            on_exhausted=on_exhausted,  # type: ignore[arg-type]
            max_attempts=attempts,
            timeouts=Timeouts(queued_seconds=20, claimed_seconds=20, running_seconds=20),
        )
        unleased, never_ran = status in READY, status in (QUEUED, RETRY, WAITING)
        job = held(
            status,
            policy,
            timeout_at=None if status is STALLED else later(20),
            lost=status is STALLED,
            committed_at=None if never_ran else committed,
            committed_result=None if committed is None or never_ran else "1",
            **(FREE if unleased else {}),
        )
        operations = recovery_operations(job, later(seconds))
        if operations:
            decide_at(job, operations, RECOVERY, request_id="r", now=later(seconds), expected_rev=3)
            checked += 1
    assert checked > 250
