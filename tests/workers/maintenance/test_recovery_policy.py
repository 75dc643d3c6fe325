"""Recovery applies the policy that a job came with, and asks for nothing that the table would refuse."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.lifecycle.dead_letter import ReasonCode
from tenure.lifecycle.decide import decide_at
from tenure.lifecycle.operations import DeadLetter, GiveUp, Operation, Reconcile, Requeue, Stall, TimeOut
from tenure.lifecycle.records import Actor, Job, Origin, Policy, Role, Timeouts
from tenure.lifecycle.statuses import CLAIMED, QUEUED, RUNNING, STALLED, Status
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
def test_missed_heartbeats_and_an_expired_lease_are_told_apart() -> None:
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
        (Policy(max_attempts=1), GiveUp),
        (Policy(max_attempts=1, on_exhausted="dead_letter"), DeadLetter),
    ],
)
def test_what_becomes_of_a_lost_job_is_what_its_policy_says(policy: Policy, last: type[Operation]) -> None:
    stall, end = recovery_operations(held(RUNNING, policy), later(60))
    assert isinstance(stall, Stall)
    assert isinstance(end, last)


@pytest.mark.requirement("SM-11")
def test_a_dead_letter_says_whether_it_was_the_loss_or_the_last_of_many() -> None:
    lost = recovery_operations(held(RUNNING, Policy(on_lost="dead_letter")), later(60))[1]
    spent = recovery_operations(held(RUNNING, Policy(max_attempts=1, on_exhausted="dead_letter")), later(60))[1]
    assert isinstance(lost, DeadLetter)
    assert isinstance(spent, DeadLetter)
    assert lost.reason_code is ReasonCode.INFRASTRUCTURE_FAILURE
    assert spent.reason_code is ReasonCode.EXHAUSTED_RETRIES


@pytest.mark.requirement("EH-03")
@pytest.mark.parametrize("status", [QUEUED, CLAIMED, RUNNING])
def test_a_job_that_stays_too_long_in_a_status_times_out(status: Status) -> None:
    free: dict[str, Any] = {"owner": None, "token": None, "lease_expires_at": None, "heartbeat_deadline_at": None}
    job = held(status, timeout_at=later(10), **(free if status is QUEUED else {}))
    assert recovery_operations(job, later(9)) == ()
    [operation] = recovery_operations(job, later(10))
    assert isinstance(operation, TimeOut)


def test_every_remedy_is_legal_for_every_job_that_needs_one() -> None:
    checked = 0
    for status, on_lost, on_exhausted, attempts, committed, seconds in itertools.product(
        (CLAIMED, RUNNING, STALLED, QUEUED),
        ("requeue", "fail", "dead_letter"),
        ("fail", "dead_letter"),
        (1, 3),
        (None, START),
        (0, 20, 45, 100, 100_000),
    ):
        policy = Policy(
            on_lost=on_lost,  # type: ignore[arg-type]
            on_exhausted=on_exhausted,  # type: ignore[arg-type]
            max_attempts=attempts,
            timeouts=Timeouts(queued_seconds=20, claimed_seconds=20, running_seconds=20),
        )
        free: dict[str, Any] = {"owner": None, "token": None, "lease_expires_at": None, "heartbeat_deadline_at": None}
        job = held(
            status,
            policy,
            timeout_at=None if status is STALLED else later(20),
            lost=status is STALLED,
            committed_at=None if status is QUEUED else committed,
            committed_result=None if committed is None or status is QUEUED else "1",
            **(free if status in (STALLED, QUEUED) else {}),
        )
        operations = recovery_operations(job, later(seconds))
        if operations:
            decide_at(job, operations, RECOVERY, request_id="r", now=later(seconds), expected_rev=3)
            checked += 1
    assert checked > 250
