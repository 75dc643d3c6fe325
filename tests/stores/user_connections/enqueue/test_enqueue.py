"""Enqueuing inside the caller's own transaction, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import InvalidInput, RequestIdReused
from tenure.lifecycle.records import Job
from tenure.stores import JobFilter
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.user_connections import Lent

Look = Callable[[Any], Any]
Send = JobFunction[[str], str]
Jobs = Callable[[], list[Job]]
Count = Callable[[], int]


@pytest.fixture
def send(database: Database, own_name: str) -> Send:
    app = tenure.App(database.url, name=own_name)

    @app.job(kind=own_name, queue="mail", max_attempts=7, lease_seconds=45)
    def send(to: str) -> str:
        return to

    return send


@pytest.fixture
def jobs(look: Look, own_name: str) -> Jobs:
    """This test's jobs, as somebody else sees them."""

    async def found(store: Any) -> list[Job]:
        page = await store.find(JobFilter(kinds=(own_name,)))
        return list(page.jobs)

    return lambda: look(found)


@pytest.fixture
def claimed(look: Look, own_name: str) -> Jobs:
    """What somebody else could run of this test's jobs."""
    return lambda: look(lambda store: Driver(store).claim(queues=("mail",), kinds=(own_name,), limit=10))


@pytest.fixture
def traces(look: Look, own_name: str) -> Callable[[], list[str]]:
    """Everything that this test's app has written into the log."""

    async def found(store: Any) -> list[str]:
        events = (await store.tail(limit=100_000)).events
        return [event.type.value for event in events if event.actor == f"client:{own_name}"]

    return lambda: look(found)


def test_a_commit_makes_the_job_visible_and_runnable_together_with_the_callers_own_rows(
    lent: Lent,
    send: Send,
    jobs: Jobs,
    claimed: Jobs,
    traces: Callable[[], list[str]],
    notes: Count,
    note: str,
) -> None:
    lent.execute(note)
    handle = lent.enqueue(send, "ada")
    assert handle.created
    assert (jobs(), traces(), notes()) == ([], [], 0)
    lent.commit()
    [job] = jobs()
    assert (job, notes()) == (handle.job, 1)
    assert (job.origin.queue, job.origin.payload, job.policy.max_attempts) == ("mail", '{"to":"ada"}', 7)
    [taken] = claimed()
    assert (taken.id, taken.status) == (handle.id, "running")


def test_a_rollback_leaves_nothing_of_it(
    lent: Lent,
    send: Send,
    jobs: Jobs,
    claimed: Jobs,
    traces: Callable[[], list[str]],
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    lent.enqueue(send.options(dedupe_key="k", request_id=own_name), "ada")
    lent.enqueue(send.options(dedupe_key="k"), "bob")
    lent.execute(note)
    lent.rollback()
    assert (jobs(), traces(), notes()) == ([], [], 0)
    assert claimed() == []


def test_the_first_statement_of_a_transaction_may_be_the_enqueue(
    lent: Lent, send: Send, jobs: Jobs, notes: Count, note: str
) -> None:
    handle = lent.enqueue(send, "ada")
    lent.execute(note)
    lent.commit()
    assert ([job.id for job in jobs()], notes()) == ([handle.id], 1)


def test_options_travel_with_the_job(lent: Lent, send: Send, jobs: Jobs) -> None:
    options = send.options(
        queue="other", priority=9, delay_seconds=60, dedupe_key="k'%s\\", correlation_id="c", trace="00-a-b-01",
        submitted_by="ada ∀ \U0001f600", tags={"tenant": "x:y"}, partition_key="p",
    )  # fmt: skip
    handle = lent.enqueue(options, "%(ada)s :ada $1 ?")
    lent.commit()
    [job] = jobs()
    assert job == handle.job
    assert (job.origin.queue, job.origin.priority, job.origin.dedupe_key) == ("other", 9, "k'%s\\")
    assert (job.origin.submitted_by, job.origin.tags) == ("ada ∀ \U0001f600", {"tenant": "x:y"})
    assert job.origin.payload == '{"to":"%(ada)s :ada $1 ?"}'
    assert job.due_at is not None
    assert (job.due_at - job.created_at).total_seconds() == 60


def test_a_duplicate_leads_to_the_job_that_is_there(
    lent: Lent, send: Send, jobs: Jobs, own_name: str, look: Look
) -> None:
    keyed = send.options(dedupe_key="ada", tags={"a": "b"})
    first = look(lambda store: Driver(store).add(own_name, queue="mail", dedupe_key="ada", tags={"a": "b"}))
    second, third = lent.enqueue(keyed, "ada"), lent.enqueue(send, "bob")
    assert (second.created, second.job) == (False, first)
    assert third.created
    again = lent.enqueue(keyed, "eve")
    assert (again.created, again.id) == (False, first.id)
    lent.commit()
    assert {job.id for job in jobs()} == {first.id, third.id}


def test_a_reused_request_id_is_refused_and_the_transaction_goes_on(
    lent: Lent,
    send: Send,
    jobs: Jobs,
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    once = send.options(request_id=f"{own_name}-order-7")
    lent.execute(note)
    first = lent.enqueue(once, "ada")
    again = lent.enqueue(once, "ada")
    assert (again.created, again.id) == (False, first.id)
    with pytest.raises(RequestIdReused, match="order-7"):
        lent.enqueue(once, "bob")
    other = lent.enqueue(send, "eve")
    lent.execute(note)
    lent.commit()
    assert ({job.id for job in jobs()}, notes()) == ({first.id, other.id}, 2)


def test_nobody_else_may_write_while_the_transaction_goes_on(
    lent: Lent, send: Send, jobs: Jobs, database: Database
) -> None:
    """The gate is open only around tenure's own writes: the caller's SQL is refused before and after."""
    lent.enqueue(send, "ada")
    policy = (
        "insert into tenure_policies (id, body) values (1, '{}')"
        if database.is_sqlite
        else "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{}', 1, 1)"
    )
    with pytest.raises(Exception, match=r"tenure: .*only the store (writes|adds)") as refusal:
        lent.execute(policy)
    assert not isinstance(refusal.value, tenure.TenureError)
    lent.rollback()
    assert jobs() == []


def test_a_refused_payload_is_counted_and_touches_nothing(
    lent: Lent,
    send: Send,
    jobs: Jobs,
    notes: Count,
    note: str,
    own_name: str,
) -> None:
    lent.execute(note)
    with pytest.raises(InvalidInput, match="`to`"):
        lent.enqueue(send, 7)
    lent.commit()
    assert (jobs(), notes()) == ([], 1)
    assert send._app.rejections == {own_name: 1}
