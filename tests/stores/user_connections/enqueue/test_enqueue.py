"""Enqueue in the user's transaction, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import DedupeKeyConflict, InvalidInput, RequestIdReused
from tenure.lifecycle.records import Job
from tenure.stores import JobFilter
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.user_connections import ConnectionUser

Look = Callable[[Any], Any]
Send = JobFunction[[str], str]
Jobs = Callable[[], list[Job]]
Count = Callable[[], int]


@pytest.fixture
def send(database: Database, own_name: str) -> Send:
    app = tenure.App(database.url, name=own_name)

    @app.job(kind=own_name, queue="mail", max_attempts=7, on_exhausted="fail", lease_seconds=45)
    def send(to: str) -> str:
        return to

    return send


@pytest.fixture
def jobs(look: Look, own_name: str) -> Jobs:
    """The jobs of this test that another store reads."""

    async def found(store: Any) -> list[Job]:
        page = await store.find(JobFilter(kinds=(own_name,)))
        return list(page.jobs)

    return lambda: look(found)


@pytest.fixture
def claimed(look: Look, own_name: str) -> Jobs:
    """Claim the jobs of this test."""
    return lambda: look(lambda store: Driver(store).claim(queues=("mail",), kinds=(own_name,), limit=10))


@pytest.fixture
def traces(look: Look, own_name: str) -> Callable[[], list[str]]:
    """The types of all events that the app of this test has written."""

    async def found(store: Any) -> list[str]:
        events = (await store.tail(limit=100_000)).events
        return [event.type.value for event in events if event.actor == f"client:{own_name}"]

    return lambda: look(found)


def test_a_commit_makes_the_job_visible_and_runnable_together_with_the_users_rows(
    user: ConnectionUser,
    send: Send,
    jobs: Jobs,
    claimed: Jobs,
    traces: Callable[[], list[str]],
    notes: Count,
    note: str,
) -> None:
    user.execute(note)
    handle = user.enqueue(send, "ada")
    assert handle.created
    assert (jobs(), traces(), notes()) == ([], [], 0)
    user.commit()
    [job] = jobs()
    assert (job, notes()) == (handle.job, 1)
    assert (job.origin.queue, job.origin.payload, job.policy.max_attempts) == ("mail", '{"to":"ada"}', 7)
    [taken] = claimed()
    assert (taken.id, taken.status) == (handle.id, "running")


def test_a_rollback_leaves_no_job_and_no_event(
    user: ConnectionUser,
    send: Send,
    jobs: Jobs,
    claimed: Jobs,
    traces: Callable[[], list[str]],
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    user.enqueue(send.options(dedupe_key="k", request_id=own_name), "ada")
    user.enqueue(send.options(dedupe_key="k"), "bob")
    user.execute(note)
    user.rollback()
    assert (jobs(), traces(), notes()) == ([], [], 0)
    assert claimed() == []


def test_the_first_statement_of_a_transaction_may_be_the_enqueue(
    user: ConnectionUser, send: Send, jobs: Jobs, notes: Count, note: str
) -> None:
    handle = user.enqueue(send, "ada")
    user.execute(note)
    user.commit()
    assert ([job.id for job in jobs()], notes()) == ([handle.id], 1)


def test_options_are_written_with_the_job(user: ConnectionUser, send: Send, jobs: Jobs, own_name: str) -> None:
    options = send.options(
        queue="other", priority=9, delay_seconds=60, dedupe_key="k'%s\\", correlation_id="c", trace="00-a-b-01",
        submitted_by="ada ∀ \U0001f600", tags={"tenant": "x:y"}, partition_key="p",
    )  # fmt: skip
    handle = user.enqueue(options, "%(ada)s :ada $1 ?")
    user.commit()
    [job] = jobs()
    assert job == handle.job
    assert (job.origin.queue, job.origin.priority, job.origin.dedupe_key) == ("other", 9, f"{own_name}:k'%s\\")
    assert (job.origin.submitted_by, job.origin.tags) == ("ada ∀ \U0001f600", {"tenant": "x:y"})
    assert job.origin.payload == '{"to":"%(ada)s :ada $1 ?"}'
    assert job.due_at is not None
    assert (job.due_at - job.created_at).total_seconds() == 60


def test_a_duplicate_returns_the_existing_job(
    user: ConnectionUser, send: Send, jobs: Jobs, own_name: str, look: Look
) -> None:
    keyed = send.options(dedupe_key="ada", tags={"a": "b"})
    key = f"{own_name}:ada"
    first = look(lambda store: Driver(store).add(own_name, queue="mail", dedupe_key=key, tags={"a": "b"}))
    second, third = user.enqueue(keyed, "ada"), user.enqueue(send, "bob")
    assert (second.created, second.job) == (False, first)
    assert third.created
    again = user.enqueue(keyed, "eve")
    assert (again.created, again.id) == (False, first.id)
    user.commit()
    assert {job.id for job in jobs()} == {first.id, third.id}


def test_a_reused_request_id_is_refused_and_the_transaction_continues(
    user: ConnectionUser,
    send: Send,
    jobs: Jobs,
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    once = send.options(request_id=f"{own_name}-order-7")
    user.execute(note)
    first = user.enqueue(once, "ada")
    again = user.enqueue(once, "ada")
    assert (again.created, again.id) == (False, first.id)
    with pytest.raises(RequestIdReused, match="order-7"):
        user.enqueue(once, "bob")
    other = user.enqueue(send, "eve")
    user.execute(note)
    user.commit()
    assert ({job.id for job in jobs()}, notes()) == ({first.id, other.id}, 2)


def test_the_users_own_statements_cannot_write_tenures_tables(
    user: ConnectionUser, send: Send, jobs: Jobs, database: Database
) -> None:
    """The guards of the schema admit only the store's own writes, also in the same transaction."""
    user.enqueue(send, "ada")
    policy = (
        "insert into tenure_policies (id, body) values (1, '{}')"
        if database.is_sqlite
        else "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{}', 1, 1)"
    )
    with pytest.raises(Exception, match=r"tenure: .*only the store (writes|adds)") as refusal:
        user.execute(policy)
    assert not isinstance(refusal.value, tenure.TenureError)
    user.rollback()
    assert jobs() == []


def test_a_refused_payload_is_counted_and_leaves_the_transaction_usable(
    user: ConnectionUser,
    send: Send,
    jobs: Jobs,
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    user.execute(note)
    with pytest.raises(InvalidInput, match="`to`"):
        user.enqueue(send, 7)
    user.commit()
    assert (jobs(), notes()) == ([], 1)
    assert send._app.rejections == {own_name: 1}


@pytest.mark.requirement("LC-11")
def test_a_dedupe_key_of_another_kind_is_a_conflict_and_the_transaction_continues(
    user: ConnectionUser, send: Send, jobs: Jobs, notes: Count, note: str, own_name: str
) -> None:
    @send.app.job(kind=f"{own_name}-other")
    def other_kind(text: str) -> str:
        return text

    key = f"{own_name}-7"
    user.execute(note)
    first = user.enqueue(send.options(dedupe_key=key, scope="global"), "ada")
    with pytest.raises(DedupeKeyConflict) as conflict:
        user.enqueue(other_kind.options(dedupe_key=key, scope="global"), "bob")
    assert (conflict.value.job_id, conflict.value.kind) == (first.id, first.job.kind)
    own = user.enqueue(send.options(dedupe_key=key), "eve")
    user.commit()
    assert ({job.id for job in jobs()}, notes()) == ({first.id, own.id}, 1)
