"""A fork goes on from the recorded steps of another run, and executes none of them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure.errors import IllegalTransition
from tenure.lifecycle.forks import FORK_KEY
from tenure.lifecycle.json_text import load
from tenure.lifecycle.statuses import FAILED, HALTED, SUCCEEDED, WAITING
from tenure.lifecycle.verify import content_problems
from tenure.stores.contract.steps import all_steps
from tenure.workflow.golden import replay_golden_file
from tenure.workflow.golden_file import golden_file
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


@pytest.fixture
def executed() -> list[str]:
    return []


def declare(app: tenure.App, executed: list[str], *, broken: list[bool]) -> Any:
    """A workflow whose third step fails while it is broken."""

    def search(topic: str, at: str) -> list[str]:
        executed.append("search")
        return [topic, at]

    def read(pages: list[str], token: str) -> int:
        executed.append("read")
        return len(pages)

    def write(count: int) -> str:
        executed.append("write")
        if broken and broken[0]:
            raise ValueError("no ink")
        return f"{count} pages"

    @app.workflow(backoff=AT_ONCE, on_exhausted="fail", max_attempts=1)
    async def research(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic, run.now().isoformat())
        count = await run.step(read, pages, str(run.uuid()))
        await run.sleep(0.001)
        return await run.step(write, count)

    return research


async def is_explained(app: tenure.App, *handles: tenure.Handle[Any]) -> bool:
    """Whether `verify` finds no problem with these jobs."""
    store = await app.store()
    ids = [handle.id for handle in handles]
    jobs, events, content = await store.read(ids), await store.history(ids), await store.content(ids)
    return all(content_problems(jobs[id_], events[id_], content[id_]) == [] for id_ in ids)


@pytest.mark.requirement("WF-17", "WC-13")
async def test_a_failed_run_goes_on_from_the_step_that_failed(app: tenure.App, executed: list[str]) -> None:
    broken = [True]
    research = declare(app, executed, broken=broken)
    async with app, working(app):
        handle = await research.enqueue("cats")
        assert (await handle.wait(60)).status is FAILED
        broken[0] = False
        executed.clear()
        fork = await app.fork(handle.id)
        assert await fork.result(timeout_seconds=60) == "2 pages"
        assert executed == ["write"]
        provenance, old = await fork.provenance(), await handle.provenance()
        assert await is_explained(app, handle, fork)
        steps = await all_steps(await app.store(), fork.id)
        job = await fork.refresh()
    assert provenance.inputs.redrive_of == handle.id
    assert (old.continued_by, provenance.continued_by) == ((fork.id,), ())
    assert (old.fork, provenance.fork and provenance.fork.from_step) == (None, "3")
    [first] = [call for call in provenance.tool_calls if call.key == FORK_KEY]
    assert load(first.result or "")["forked_from"] == str(handle.id)
    assert load(first.result or "")["from_step"] == "3"
    assert await replay_golden_file(golden_file(job, steps), app.kinds, app.seams) == []


@pytest.mark.requirement("WF-17")
async def test_a_fork_of_a_thousand_steps_at_step_900_executes_a_hundred(app: tenure.App) -> None:
    executed: list[int] = []

    async def work(number: int) -> int:
        executed.append(number)
        return number

    @app.workflow
    async def long(run: tenure.Run) -> int:
        return sum(await run.map(work, range(900), concurrency=100)) + sum(
            await run.map(work, range(900, 1000), concurrency=100)
        )

    async with app, working(app):
        handle = await long.enqueue()
        expected = await handle.result(timeout_seconds=120)
        steps = await all_steps(await app.store(), handle.id)
        assert len(steps) == 1000
        executed.clear()
        fork = await app.fork(handle.id, from_step=steps[900].key)
        assert await fork.result(timeout_seconds=120) == expected
        assert await is_explained(app, fork)
    assert len(executed) == 100
    assert min(executed) == 900


@pytest.mark.requirement("WF-17")
async def test_a_replaced_result_is_used_and_later_steps_are_executed(app: tenure.App, executed: list[str]) -> None:
    research = declare(app, executed, broken=[])
    async with app, working(app):
        handle = await research.enqueue("cats")
        assert await handle.result(timeout_seconds=60) == "2 pages"
        executed.clear()
        fork = await app.fork(handle.id, replace={"read": 7})
        assert await fork.result(timeout_seconds=60) == "7 pages"
        assert executed == ["write"]
        again = await app.fork(fork.id, from_step="read")
        assert await again.result(timeout_seconds=60) == "2 pages"
        assert executed == ["write", "read", "write"]
        assert await is_explained(app, fork, again)


@pytest.mark.requirement("WF-17")
async def test_a_parked_run_goes_on_as_a_fork_with_new_code(app: tenure.App) -> None:
    executed: list[str] = []

    def one() -> str:
        executed.append("one")
        return "1"

    def two() -> str:
        executed.append("two")
        return "2"

    names = ["first"]

    @app.workflow
    async def changed(run: tenure.Run) -> str:
        if names == ["first"]:
            await run.step(one)
            await run.step(two)
            return str(await run.wait_for("go"))
        await run.step(one)
        return "new"

    async with app, working(app):
        handle = await changed.enqueue()
        await eventually(lambda: _waits_for(handle, "signal"))
        names[0] = "second"
        await app.signal(handle.id, "go", "on")
        await eventually(lambda: _waits_for(handle, "code"))
        fork = await app.fork(handle.id, from_step="two")
        assert await fork.result(timeout_seconds=60) == "new"
        assert (await handle.refresh()).status is WAITING
        await app.cancel(handle.id)
    assert executed == ["one", "two"]


async def _waits_for(handle: tenure.Handle[Any], what: str) -> bool:
    job = await handle.refresh()
    return job.status is WAITING and job.waiting_for == what


async def test_received_signals_and_results_of_children_are_reused(app: tenure.App) -> None:
    spawned: list[str] = []
    fails = [True]

    @app.job
    def child(word: str) -> str:
        spawned.append(word)
        return word.upper()

    def last() -> None:
        if fails[0]:
            raise ValueError

    @app.workflow(on_exhausted="fail")
    async def parent(run: tenure.Run) -> str:
        word = await run.wait_for("word", str)
        text = await (await run.spawn(child, word)).result()
        await run.step(last)
        return text

    async with app, working(app):
        handle = await parent.enqueue()
        await app.signal(handle.id, "word", "a")
        assert (await handle.wait(60)).status is FAILED
        fails[0] = False
        fork = await app.fork(handle.id)
        assert await fork.result(timeout_seconds=60) == "A"
        assert await is_explained(app, handle, fork)
        fork = await app.fork(handle.id, from_step="child child")
        assert await fork.result(timeout_seconds=60) == "A"
    assert spawned == ["a"]


@pytest.mark.requirement("WC-06", "WF-19")
async def test_a_fork_of_a_continued_run_has_a_budget_of_its_own(app: tenure.App) -> None:
    async def pay(part: int) -> int:
        tenure.current_step().spend(cost=0.4)
        return part

    @app.workflow(budget=tenure.Budget(cost=1.0))
    async def spends(run: tenure.Run, part: int) -> int:
        await run.using(spend_max={"cost": 0.4}).step(pay, part)
        if part < 3:
            await run.continue_as(spends, part + 1)
        return part

    async with app, working(app):
        handle = await spends.enqueue(1)
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        [last] = [job for job in (await app.find(tenure.JobFilter())).jobs if job.status is HALTED]
        fork = await app.fork(last.id, budget=tenure.Budget(cost=2))
        assert await fork.result(timeout_seconds=60) == 3
        [line] = await (await app.store()).budget(fork.id)
    assert (line.limit, line.spent) == (2_000_000, 400_000)


async def test_undone_steps_are_executed_again(app: tenure.App) -> None:
    executed: list[str] = []
    fails = [True]

    def book() -> str:
        executed.append("book")
        return "seat"

    def release(seat: str) -> None:
        executed.append("release")

    def pay() -> None:
        if fails[0]:
            raise ValueError

    @app.workflow(on_exhausted="fail")
    async def travel(run: tenure.Run) -> str:
        seat = await run.using(compensate=release).step(book)
        await run.step(pay)
        return seat

    async with app, working(app):
        handle = await travel.enqueue()
        assert (await handle.wait(60)).status is FAILED
        fails[0] = False
        with pytest.raises(tenure.InvalidInput, match=r"step 'book' \(0\) was undone when the run ended; fork from it"):
            await app.fork(handle.id, from_step="pay")
        fork = await app.fork(handle.id)
        assert await fork.result(timeout_seconds=60) == "seat"
    assert executed == ["book", "release", "book"]


async def test_what_cannot_be_forked_is_refused_and_nothing_is_stored(app: tenure.App, executed: list[str]) -> None:
    research = declare(app, executed, broken=[])
    async with app:
        handle = await research.enqueue("cats")
        with pytest.raises(IllegalTransition, match="it is live and goes on by itself"):
            await app.fork(handle.id)
        async with working(app):
            await handle.result(timeout_seconds=60)
        with pytest.raises(IllegalTransition, match="it has succeeded, so that a fork would execute nothing"):
            await app.fork(handle.id)
        for options, problem in refused_options():
            with pytest.raises(tenure.TenureError, match=problem):
                await app.fork(handle.id, **options)
        assert len((await app.find(tenure.JobFilter())).jobs) == 1
        assert handle.job.status is SUCCEEDED or (await handle.refresh()).status is SUCCEEDED


def refused_options() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"from_step": "fly"}, "from_step: the run has recorded no step 'fly'"
    yield {"replace": {"fly": 1}}, "replace: the run has recorded no step 'fly'"
    yield {"replace": {"sleep": 1}}, "'sleep' is a sleep; only steps and waits have results to replace"
    yield {"replace": {"read": object()}}, "result of step read cannot be encoded"


async def test_a_repeated_request_forks_once(app: tenure.App, executed: list[str]) -> None:
    research = declare(app, executed, broken=[])
    async with app:
        handle = await research.enqueue("cats")
        async with working(app):
            await handle.result(timeout_seconds=60)
        first = await app.fork(handle.id, from_step="write", request_id="again")
        second = await app.fork(handle.id, from_step="write", request_id="again")
        assert (second.id, second.created) == (first.id, False)
        assert await is_explained(app, first)
