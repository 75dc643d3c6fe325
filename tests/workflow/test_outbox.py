"""Messages and jobs that a run writes with a step: once, in the transaction of the step's record."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.lifecycle.content import is_of_step
from tenure.lifecycle.records import Job
from tenure.lifecycle.verify import content_problems
from tenure.stores.contract.outbox import MessageFilter, StoredMessage
from tests.support.in_process_worker import working

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


class Crash(Exception):
    """Raised by a workflow's function, so that its run is retried from the beginning."""


async def messages_of(app: tenure.App) -> list[StoredMessage]:
    return await (await app.store()).outbox.messages(MessageFilter())


async def problems_of(app: tenure.App, job: Job) -> list[Any]:
    store = await app.store()
    events, content = (await store.history([job.id]))[job.id], (await store.content([job.id]))[job.id]
    return list(content_problems(job, events, content))


@pytest.mark.requirement("WC-07", "SM-16")
async def test_a_message_of_a_run_is_written_once_with_its_step(app: tenure.App) -> None:
    @app.workflow(backoff=AT_ONCE)
    async def ship(run: tenure.Run, order: str) -> str:
        sent = await run.outbox("order.shipped", {"order": order}, aggregate=order, headers={"tenant": "x"})
        if run.attempt == 1:
            raise Crash
        await run.outbox("order.shipped", {"order": order}, aggregate=order)
        return str(sent)

    async with app, working(app):
        handle = await ship.options(correlation_id="case 7").enqueue("7")
        sent = await handle.result(timeout_seconds=60)
        first, second = await messages_of(app)
        problems = await problems_of(app, await handle.refresh())
    assert (str(first.id), first.topic, first.body, first.aggregate) == (sent, "order.shipped", '{"order":"7"}', "7")
    assert (first.job_id, first.correlation_id, first.headers) == (handle.id, "case 7", '{"tenant":"x"}')
    assert second.id != first.id
    assert is_of_step(first.id)
    assert is_of_step(second.id)
    assert problems == []


@pytest.mark.requirement("WC-07", "EL-04")
async def test_messages_and_jobs_of_a_transactional_step_are_written_with_it_or_not_at_all(app: tenure.App) -> None:
    @app.job
    async def notify(order: str) -> str:
        return order

    async def book(tx: tenure.StepTransaction, order: str, *, fails: bool) -> None:
        tx.outbox("booked", order)
        tx.outbox("booked.again", order)
        tx.enqueue(notify.request(order))
        if fails:
            raise ValueError("no")

    @app.workflow(backoff=AT_ONCE)
    async def order(run: tenure.Run) -> None:
        with pytest.raises(tenure.StepFailed, match="ValueError: no"):
            await run.transaction(book, "lost", fails=True)
        await run.transaction(book, "kept", fails=False)
        if run.attempt == 1:
            raise Crash

    async with app, working(app):
        handle = await order.enqueue()
        await handle.result(timeout_seconds=60)
        messages = await messages_of(app)
        jobs = await app.find(tenure.JobFilter(kinds=("notify",)))
    assert sorted((one.topic, one.body) for one in messages) == [("booked", '"kept"'), ("booked.again", '"kept"')]
    assert [job.origin.payload for job in jobs.jobs] == ['{"order":"kept"}']


@pytest.mark.requirement("WC-07")
async def test_a_run_that_has_messages_of_steps_and_of_its_commit_is_verified(app: tenure.App) -> None:
    @app.workflow()
    async def ship(run: tenure.Run) -> int:
        await run.outbox("begun", 1)
        async with run.commit(result=7) as tx:
            tx.outbox("ended", 2)
        return 7

    async with app, working(app):
        handle = await ship.enqueue()
        assert await handle.result(timeout_seconds=60) == 7
        assert [one.topic for one in await messages_of(app)] == ["begun", "ended"]
        assert await problems_of(app, await handle.refresh()) == []


async def test_a_topic_that_cannot_be_stored_is_refused_at_the_call(app: tenure.App) -> None:
    @app.workflow(max_attempts=1)
    async def ship(run: tenure.Run) -> None:
        await run.outbox("", 1)

    async with app, working(app):
        handle = await ship.enqueue()
        with pytest.raises(tenure.JobFailed, match="topic"):
            await handle.result(timeout_seconds=60)
