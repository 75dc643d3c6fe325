"""The commit mark in the user's transaction, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import AlreadyCommitted, InvalidInput, LeaseLost, RevisionConflict
from tenure.lifecycle.operations import Commit, Complete, Heartbeat, RequestCancel
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import SYSTEM
from tenure.stores.contract import Applied, Failure, Outcome, Repeated, Request, Store
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import CLIENT, Driver
from tests.support.databases import Database
from tests.support.user_connections import CONNECTION_KINDS, ConnectionUser

Look = Callable[[Any], Any]
Count = Callable[[], int]
ENDED_BY_TENURE = [
    name for name in CONNECTION_KINDS if "block" not in name and "django" not in name and not name.startswith("asyncpg")
]
"""The others are in a block that only their library can end; `test_modes.py` uses them outside of it."""
RESULT = '{"paid":"ß%s:x"}'


@pytest.fixture
def transaction(user: ConnectionUser, database: Database) -> UserTransaction:
    return UserTransaction(user.connection, database.url)


def mark(user: ConnectionUser, transaction: UserTransaction, request: Request) -> Outcome:
    return user.run(transaction, transaction.apply(request))


def commit_of(job: Job, *, token: UUID | None = None, **facts: Any) -> Request:
    actor = Actor(Role.RUNNER, "worker-1", token or job.token)
    return Request(job=job, operations=(Commit(RESULT),), actor=actor, **{"request_id": "mark-1", **facts})


@pytest.fixture
def job(look: Look, own_name: str) -> Job:
    """A running job, with the token of its lease."""
    running: Job = look(lambda store: Driver(store).running(kind=own_name))
    return running


def job_and_events(job: Job) -> Callable[[Store], Any]:
    return lambda store: Driver(store).seen(job.id)


@pytest.mark.requirement("EL-04")
def test_a_mark_takes_effect_with_the_users_commit(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, notes: Count, note: str
) -> None:
    user.execute(note)
    outcome = mark(user, transaction, commit_of(job, fresh=True))
    assert isinstance(outcome, Applied)
    before, _ = look(job_and_events(job))
    assert (before.committed, notes()) == (False, 0)
    user.commit()
    after, events = look(job_and_events(job))
    assert (after.committed, after.committed_result, after.rev, notes()) == (True, RESULT, job.rev + 1, 1)
    assert (events[-1].type, events[-1].commits, events[-1].actor) == ("committed", True, "runner:worker-1")
    assert outcome.job.token == job.token
    completed = look(lambda store: Driver(store).apply(outcome.job, Complete(RESULT)))
    assert completed.result == RESULT


@pytest.mark.requirement("EL-04")
def test_a_mark_that_is_rolled_back_leaves_the_job_uncommitted(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, notes: Count, note: str
) -> None:
    user.execute(note)
    assert isinstance(mark(user, transaction, commit_of(job)), Applied)
    user.rollback()
    after, events = look(job_and_events(job))
    assert (after.committed, after.rev, len(events), notes()) == (False, job.rev, job.rev, 0)
    again = look(lambda store: Driver(store).apply(job, Commit(RESULT)))
    assert again.committed


def test_a_former_owner_is_refused_and_can_still_roll_back(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, notes: Count, note: str
) -> None:
    seen = look(job_and_events(job))
    user.execute(note)
    outcome = mark(user, transaction, commit_of(job, token=SYSTEM.random.token(), fresh=True))
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LeaseLost)
    assert outcome.error.current is not None
    assert outcome.error.current.token is None
    user.rollback()
    assert (look(job_and_events(job)), notes()) == (seen, 0)


def test_a_conflict_under_the_same_token_is_decided_anew_in_the_same_transaction(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, notes: Count, note: str
) -> None:
    look(lambda store: Driver(store).apply(job.id, RequestCancel(), actor=CLIENT))
    user.execute(note)
    outcome = mark(user, transaction, commit_of(job, fresh=True))
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RevisionConflict)
    current = outcome.error.current
    assert current is not None
    assert (current.rev, current.cancel_requested, current.token) == (job.rev + 1, True, job.token)
    assert isinstance(mark(user, transaction, commit_of(current, fresh=True)), Applied)
    user.commit()
    after, _ = look(job_and_events(job))
    assert (after.committed, after.cancel_requested, notes()) == (True, True, 1)


@pytest.mark.requirement("EL-03")
def test_a_second_commit_is_refused_and_the_same_one_is_repeated(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, note: str
) -> None:
    user.execute(note)
    first = mark(user, transaction, commit_of(job))
    assert isinstance(first, Applied)
    assert isinstance(mark(user, transaction, commit_of(job)), Repeated)
    second = mark(user, transaction, commit_of(first.job, request_id="mark-2"))
    assert isinstance(second, Failure)
    assert isinstance(second.error, AlreadyCommitted)
    user.commit()
    _, events = look(job_and_events(job))
    assert [event.type.value for event in events] == ["enqueued", "claimed", "started", "committed"]


def test_operations_other_than_one_commit_are_refused(
    user: ConnectionUser, transaction: UserTransaction, job: Job
) -> None:
    asked = commit_of(job)
    for operations in ((Heartbeat(),), (Commit("1"), Complete("1")), (Complete("1"),)):
        other = Request(job=job, operations=operations, actor=asked.actor, request_id="other")
        with pytest.raises(InvalidInput, match=r"commit|heartbeat"):
            mark(user, transaction, other)


@pytest.mark.parametrize("kind", ENDED_BY_TENURE, indirect=True)
def test_tenure_begins_and_ends_a_transaction_when_it_is_asked_to(
    user: ConnectionUser, transaction: UserTransaction, job: Job, look: Look, notes: Count, note: str
) -> None:
    for end, committed in ((transaction.connection.rollback, False), (transaction.connection.commit, True)):
        user.run(transaction, transaction.begin())
        user.execute(note)
        assert isinstance(mark(user, transaction, commit_of(job)), Applied)
        user.run(transaction, end())
        after, _ = look(job_and_events(job))
        assert (after.committed, notes()) == (committed, int(committed))
