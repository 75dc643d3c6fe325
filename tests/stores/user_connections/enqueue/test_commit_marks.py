"""The mark of a commit inside the caller's own transaction, on every kind of connection."""

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
from tenure.stores.user_connections import Caller, caller_for
from tenure.testing.driver import CLIENT, Driver
from tests.support.databases import Database
from tests.support.user_connections import LENDERS, Lent

Look = Callable[[Any], Any]
Count = Callable[[], int]
ENDED_BY_ANYBODY = [
    name for name in LENDERS if "block" not in name and "django" not in name and not name.startswith("asyncpg")
]
"""The others are in a block that only its owner may leave; `test_within_modes` has them outside of it."""
RESULT = '{"paid":"ß%s:x"}'


@pytest.fixture
def caller(lent: Lent, database: Database) -> Caller:
    return caller_for(lent.connection, database.url)


def mark(lent: Lent, caller: Caller, request: Request) -> Outcome:
    return lent.runner.run(_performed(caller, request)) if caller.is_async else caller.apply_sync(request)


async def _performed(caller: Caller, request: Request) -> Outcome:
    return await caller.apply(request)


def commit_of(job: Job, *, token: UUID | None = None, **facts: Any) -> Request:
    actor = Actor(Role.RUNNER, "worker-1", token or job.token)
    return Request(job=job, operations=(Commit(RESULT),), actor=actor, **{"request_id": "mark-1", **facts})


@pytest.fixture
def job(look: Look, own_name: str) -> Job:
    """A job that somebody runs, with their token."""
    running: Job = look(lambda store: Driver(store).running(kind=own_name))
    return running


def as_it_stands(job: Job) -> Callable[[Store], Any]:
    return lambda store: Driver(store).seen(job.id)


@pytest.mark.requirement("EL-04")
def test_a_mark_takes_effect_with_the_callers_commit(
    lent: Lent, caller: Caller, job: Job, look: Look, notes: Count, note: str
) -> None:
    lent.execute(note)
    outcome = mark(lent, caller, commit_of(job, fresh=True))
    assert isinstance(outcome, Applied)
    before, _ = look(as_it_stands(job))
    assert (before.committed, notes()) == (False, 0)
    lent.commit()
    after, events = look(as_it_stands(job))
    assert (after.committed, after.committed_result, after.rev, notes()) == (True, RESULT, job.rev + 1, 1)
    assert (events[-1].type, events[-1].commits, events[-1].actor) == ("committed", True, "runner:worker-1")
    assert outcome.job.token == job.token
    completed = look(lambda store: Driver(store).apply(outcome.job, Complete(RESULT)))
    assert completed.result == RESULT


@pytest.mark.requirement("EL-04")
def test_a_mark_that_is_rolled_back_leaves_the_job_uncommitted(
    lent: Lent, caller: Caller, job: Job, look: Look, notes: Count, note: str
) -> None:
    lent.execute(note)
    assert isinstance(mark(lent, caller, commit_of(job)), Applied)
    lent.rollback()
    after, events = look(as_it_stands(job))
    assert (after.committed, after.rev, len(events), notes()) == (False, job.rev, job.rev, 0)
    again = look(lambda store: Driver(store).apply(job, Commit(RESULT)))
    assert again.committed


def test_a_former_owner_is_refused_and_can_still_roll_back(
    lent: Lent, caller: Caller, job: Job, look: Look, notes: Count, note: str
) -> None:
    seen = look(as_it_stands(job))
    lent.execute(note)
    outcome = mark(lent, caller, commit_of(job, token=SYSTEM.random.token(), fresh=True))
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LeaseLost)
    assert outcome.error.current is not None
    assert outcome.error.current.token is None
    lent.rollback()
    assert (look(as_it_stands(job)), notes()) == (seen, 0)


def test_a_conflict_under_the_same_token_is_decided_anew_in_the_same_transaction(
    lent: Lent, caller: Caller, job: Job, look: Look, notes: Count, note: str
) -> None:
    look(lambda store: Driver(store).apply(job.id, RequestCancel(), actor=CLIENT))
    lent.execute(note)
    outcome = mark(lent, caller, commit_of(job, fresh=True))
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, RevisionConflict)
    current = outcome.error.current
    assert current is not None
    assert (current.rev, current.cancel_requested, current.token) == (job.rev + 1, True, job.token)
    assert isinstance(mark(lent, caller, commit_of(current, fresh=True)), Applied)
    lent.commit()
    after, _ = look(as_it_stands(job))
    assert (after.committed, after.cancel_requested, notes()) == (True, True, 1)


@pytest.mark.requirement("EL-03")
def test_a_second_commit_is_refused_and_the_same_one_is_known(
    lent: Lent, caller: Caller, job: Job, look: Look, note: str
) -> None:
    lent.execute(note)
    first = mark(lent, caller, commit_of(job))
    assert isinstance(first, Applied)
    assert isinstance(mark(lent, caller, commit_of(job)), Repeated)
    second = mark(lent, caller, commit_of(first.job, request_id="mark-2"))
    assert isinstance(second, Failure)
    assert isinstance(second.error, AlreadyCommitted)
    lent.commit()
    _, events = look(as_it_stands(job))
    assert [event.type.value for event in events] == ["enqueued", "claimed", "started", "committed"]


def test_only_a_commit_may_be_asked_for(lent: Lent, caller: Caller, job: Job) -> None:
    asked = commit_of(job)
    for operations in ((Heartbeat(),), (Commit("1"), Complete("1")), (Complete("1"),)):
        other = Request(job=job, operations=operations, actor=asked.actor, request_id="other")
        with pytest.raises(InvalidInput, match=r"commit|heartbeat"):
            mark(lent, caller, other)


@pytest.mark.parametrize("kind", ENDED_BY_ANYBODY, indirect=True)
def test_tenure_begins_and_ends_a_transaction_when_it_is_asked_to(
    lent: Lent, caller: Caller, job: Job, look: Look, notes: Count, note: str
) -> None:
    for end, committed in ((caller.rollback, False), (caller.commit, True)):
        if caller.is_async:
            lent.wait(caller.begin())
            lent.execute(note)
            assert isinstance(mark(lent, caller, commit_of(job)), Applied)
            lent.wait(end())
        else:
            caller.begin_sync()
            lent.execute(note)
            assert isinstance(mark(lent, caller, commit_of(job)), Applied)
            caller.commit_sync() if committed else caller.rollback_sync()
        after, _ = look(as_it_stands(job))
        assert (after.committed, notes()) == (committed, int(committed))
