"""A run that goes on as another one: in one transaction, with all that belongs to the chain."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.lifecycle.continuations import continued_as
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CANCELLED, SUCCEEDED, WAITING
from tenure.lifecycle.verify import content_problems, problems_of
from tenure.workflow import engine
from tenure.workflow.continuation import RunContinuation
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


async def chain_of(app: tenure.App, first_id: UUID) -> list[Job]:
    """The runs of a chain, from the first to the last."""
    store = await app.store()
    jobs = [(await store.read([first_id]))[first_id]]
    while (next_id := continued_as(jobs[-1])) is not None:
        jobs.append((await store.read([next_id]))[next_id])
    return jobs


async def has_status(handle: tenure.Handle[Any], status: Any) -> bool:
    return (await handle.refresh()).status is status


@pytest.mark.requirement("WC-08")
async def test_a_run_goes_on_with_an_empty_record_and_its_attributes(app: tenure.App) -> None:
    executed: list[int] = []

    async def work(number: int) -> int:
        executed.append(number)
        return number + 1

    @app.workflow(backoff=AT_ONCE)
    async def count(run: tenure.Run, number: int) -> str:
        number = await run.step(work, number)
        if number == 1:
            await run.state({"begun": True})
        if run.attempt == 1:
            raise ValueError("again")
        if number < 3:
            await run.continue_as(count, number)
        return f"counted to {number}"

    async with app, working(app):
        options: dict[str, Any] = {
            "priority": 3,
            "tags": {"tenant": "x"},
            "correlation_id": "case 7",
            "dedupe_key": "counter",
        }
        handle = await count.options(**options).enqueue(0)
        assert await handle.result(timeout_seconds=60) == "counted to 3"
        jobs = await chain_of(app, handle.id)
        store = await app.store()
        steps = [[step.name for step in await store.steps(job.id)] for job in jobs]
        state = await (await app.get(jobs[-1].id)).state()
        problems = [
            problem
            for job in jobs
            for events in ((await store.history([job.id]))[job.id],)
            for problem in (
                *problems_of(job, events),
                *content_problems(job, events, (await store.content([job.id]))[job.id]),
            )
        ]
    assert executed == [0, 1, 2]
    assert [job.origin.payload for job in jobs] == ['{"number":0}', '{"number":1}', '{"number":2}']
    assert [job.status for job in jobs] == [SUCCEEDED] * 3
    assert {(job.origin.priority, job.correlation_id, job.origin.dedupe_key) for job in jobs} == {
        (3, "case 7", "count:counter")
    }
    assert [job.origin.tags for job in jobs] == [{"tenant": "x"}] * 3
    assert steps == [["work", "state"], ["continue", "state", "work"], ["continue", "state", "work"]]
    assert state == {"begun": True}
    assert problems == []


@pytest.mark.requirement("WF-11")
async def test_unread_signals_go_along_in_order_and_none_is_lost_or_doubled(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepared = RunContinuation.prepare, 0

    @app.workflow()
    async def listen(run: tenure.Run, part: int) -> list[str]:
        if part == 1:
            await run.wait_for("word")
            await run.continue_as(listen, 2)
        return [await run.wait_for("word", str), await run.wait_for("word", str), await run.wait_for("word", str)]

    async with app:
        handle = await listen.enqueue(1)

        async def prepare_and_send(continuation: RunContinuation) -> None:
            nonlocal prepared
            await prepare(continuation)
            prepared += 1
            if prepared == 1:
                await handle.signal("word", "fourth")

        monkeypatch.setattr(RunContinuation, "prepare", prepare_and_send)
        for word in ("first", "second", "third"):
            await handle.signal("word", word)
        async with working(app):
            assert await handle.result(timeout_seconds=60) == ["second", "third", "fourth"]
        assert prepared == 2
        last_id = str((await chain_of(app, handle.id))[-1].id)
        with pytest.raises(tenure.TenureError, match=f"continued as run {last_id}"):
            await handle.signal("word", "late")
        with pytest.raises(tenure.TenureError, match=f"continued as run {last_id}"):
            await handle.cancel()


@pytest.mark.requirement("WF-10")
async def test_a_request_to_cancel_that_meets_the_end_of_a_run_reaches_the_next_one(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = RunContinuation.prepare

    @app.workflow()
    async def endless(run: tenure.Run, number: int) -> None:
        await run.continue_as(endless, number + 1)

    async with app:
        handle = await endless.enqueue(1)

        async def prepare_and_cancel(continuation: RunContinuation) -> None:
            await prepare(continuation)
            await handle.cancel(reason="enough")

        monkeypatch.setattr(RunContinuation, "prepare", prepare_and_cancel)
        async with working(app):
            with pytest.raises(tenure.JobCancelled, match="enough"):
                await handle.result(timeout_seconds=60)
        assert [job.status for job in await chain_of(app, handle.id)] == [SUCCEEDED, CANCELLED]


async def test_the_dedupe_key_stays_with_the_live_run(app: tenure.App) -> None:
    @app.workflow()
    async def once(run: tenure.Run, part: int) -> int:
        if part == 1:
            await run.continue_as(once, 2)
        await run.wait_for("end")
        return part

    async with app, working(app):
        handle = await once.options(dedupe_key="only").enqueue(1)
        await eventually(lambda: has_status(handle, SUCCEEDED))
        again = await once.options(dedupe_key="only").enqueue(1)
        assert (again.created, again.id) == (False, continued_as(handle.job))
        await again.signal("end")
        assert await handle.result(timeout_seconds=60) == 2


@pytest.mark.requirement("WF-15")
async def test_live_children_belong_to_the_last_run_of_the_chain(app: tenure.App) -> None:
    @app.workflow()
    async def patient(run: tenure.Run) -> None:
        await run.wait_for("never")

    @app.workflow()
    async def parent(run: tenure.Run, part: int) -> int:
        if part == 1:
            await run.spawn(patient)
            await run.continue_as(parent, 2)
        await run.wait_for("end")
        return part

    async with app, working(app):
        handle = await parent.enqueue(1)
        await eventually(lambda: has_status(handle, SUCCEEDED))
        [child_job] = (await app.find(tenure.JobFilter(kinds=("patient",)))).jobs
        child = await app.get(child_job.id)
        last = await app.get((await chain_of(app, handle.id))[-1].id)
        await eventually(lambda: has_status(last, WAITING))
        assert (await child.refresh()).live
        assert not child.job.cancel_requested
        await last.signal("end")
        assert await handle.result(timeout_seconds=60) == 2
        await eventually(lambda: has_status(child, CANCELLED))


@pytest.mark.requirement("WF-15", "WF-06")
async def test_a_parent_awaits_the_last_run_of_its_child_and_cancels_it(app: tenure.App) -> None:
    @app.workflow()
    async def child(run: tenure.Run, part: int, *, ends: bool) -> int:
        if part < 3:
            await run.continue_as(child, part + 1, ends=ends)
        if not ends:
            await run.wait_for("never")
        return part

    @app.workflow()
    async def parent(run: tenure.Run) -> int:
        ended, endless = await run.spawn(child, 1, ends=True), await run.spawn(child, 1, ends=False)
        assert endless.id != ended.id
        return await ended.result()

    async with app, working(app):
        handle = await parent.enqueue()
        assert await handle.result(timeout_seconds=60) == 3
        jobs = (await app.find(tenure.JobFilter(kinds=("child",)))).jobs
        endless = [job.id for job in jobs if '"ends":false' in job.origin.payload and job.origin.payload.find("1") > 0]

        async def is_cancelled() -> bool:
            chains = [await chain_of(app, job_id) for job_id in endless]
            return any(chain[-1].status is CANCELLED for chain in chains)

        await eventually(is_cancelled)


@pytest.mark.requirement("WC-06")
async def test_the_budget_is_that_of_the_chain(app: tenure.App) -> None:
    async def pay(number: int) -> int:
        tenure.current_step().spend(cost=0.4)
        return number

    @app.workflow(budget=tenure.Budget(cost=1.0))
    async def spends(run: tenure.Run, part: int) -> None:
        await run.step(pay, part)
        await run.continue_as(spends, part + 1)

    async with app, working(app):
        handle = await spends.enqueue(1)
        with pytest.raises(tenure.JobHalted, match="cost"):
            await handle.result(timeout_seconds=60)
        assert len(await chain_of(app, handle.id)) == 3


@pytest.mark.parametrize("how", ["in a branch", "another workflow", "after the commit"])
async def test_what_cannot_continue_is_refused(app: tenure.App, how: str) -> None:
    @app.workflow()
    async def other(run: tenure.Run) -> None:
        return None

    async def branch(run: tenure.Run) -> None:
        await run.continue_as(refused)

    @app.workflow(max_attempts=1)
    async def refused(run: tenure.Run) -> None:
        if how == "in a branch":
            await run.gather(branch(run), run.sleep(0))
        if how == "another workflow":
            await run.continue_as(other)
        async with run.commit():
            pass
        with pytest.raises(tenure.InvalidInput, match="too late"):
            await run.continue_as(refused)

    problems = {"in a branch": "own function", "another workflow": "takes the workflow itself"}
    async with app, working(app):
        handle = await refused.enqueue()
        if how in problems:
            with pytest.raises(tenure.JobFailed, match=problems[how]):
                await handle.result(timeout_seconds=60)
        else:
            await handle.result(timeout_seconds=60)
        assert len(await chain_of(app, handle.id)) == 1


async def test_a_run_that_records_too_many_steps_is_shown_the_way_out(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STEPS_MAX", 3)

    def work(number: int) -> int:
        return number

    @app.workflow(max_attempts=1)
    async def long(run: tenure.Run) -> None:
        for number in range(5):
            await run.step(work, number)

    async with app, working(app):
        handle = await long.enqueue()
        with pytest.raises(tenure.JobFailed, match=r"run\.continue_as"):
            await handle.result(timeout_seconds=60)
        assert len(await (await app.store()).steps(handle.id)) == 3


async def test_the_harness_runs_a_chain() -> None:
    app = tenure.App("sqlite:///unused.db")

    @app.workflow
    async def daily(run: tenure.Run, day: int) -> int:
        await run.sleep(days=1)
        if day < 30:
            await run.continue_as(daily, day + 1)
        return day

    async with app.testing() as harness:
        handle = await daily.enqueue(1)
        await harness.run_all()
        assert await asyncio.wait_for(handle.result(), 60) == 30
