"""Errors carry their facts as attributes, and their messages state the remedy."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenure import errors
from tenure.errors import (
    AlreadyCommitted,
    IllegalTransition,
    InvalidInput,
    JobNotFound,
    LeaseConflictError,
    LeaseLost,
    NotAuthorised,
    NotYet,
    Refused,
    RequestIdReused,
    RevisionConflict,
    StoreError,
    TenureError,
)
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.lifecycle.statuses import RUNNING
from tenure.testing.clock import START

JOB = Job(
    origin=Origin(id=UUID(int=1), kind="k", payload="{}", policy=Policy()),
    status=RUNNING,
    rev=3,
    attempt=1,
    created_at=START,
    updated_at=START,
)


@pytest.mark.requirement("LC-03")
def test_an_illegal_transition_names_job_status_operation_and_what_was_allowed() -> None:
    error = IllegalTransition(JOB, "start", allowed=["heartbeat", "complete"])
    for fact in (str(JOB.id), "running", "start", "heartbeat, complete"):
        assert fact in str(error)
    assert (error.status, error.operation, error.allowed) == ("running", "start", ("heartbeat", "complete"))
    assert error.current is JOB


@pytest.mark.requirement("LC-04")
def test_a_conflict_carries_the_current_record_and_both_revisions() -> None:
    error = RevisionConflict(JOB, "complete", expected_rev=2)
    assert (error.current, error.expected_rev) == (JOB, 2)
    assert "revision 3, not 2" in str(error)


def test_the_tree_matches_its_drawing() -> None:
    drawn = [line.strip("│├└─ ").split()[0] for line in (errors.__doc__ or "").splitlines() if "─" in line]
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TenureError)}
    assert set(drawn) == known - {"TenureError"}
    for refusal in (JobNotFound, NotAuthorised, LeaseLost, RevisionConflict, IllegalTransition, NotYet):
        assert issubclass(refusal, Refused)
    assert issubclass(AlreadyCommitted, IllegalTransition)
    assert issubclass(RequestIdReused, Refused)
    assert issubclass(InvalidInput, ValueError)
    assert not issubclass(InvalidInput, Refused)
    assert not issubclass(StoreError, Refused)


def test_a_refused_role_is_given_the_roles_that_have_authority() -> None:
    assert "only runner, gateway may" in str(
        NotAuthorised(JOB, "complete", role="client", allowed=["runner", "gateway"])
    )


def test_the_remedy_of_a_lost_lease_is_to_stop_the_work() -> None:
    assert "stop the work" in str(LeaseLost(JOB, "heartbeat"))


@pytest.mark.requirement("SM-18")
def test_a_lost_lease_and_a_lost_race_are_both_lease_conflicts() -> None:
    for conflict in (LeaseLost(JOB, "complete"), RevisionConflict(JOB, "complete", expected_rev=2)):
        assert isinstance(conflict, LeaseConflictError)
        assert conflict.current is JOB
    assert not issubclass(NotAuthorised, LeaseConflictError)
