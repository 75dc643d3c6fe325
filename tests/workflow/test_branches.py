"""Parallel work: its record does not depend on timing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tenure
from tenure.lifecycle.statuses import FAILED
from tests.support.in_process_worker import working

AT_ONCE = tenure.Backoff(base_seconds=0.001, max_seconds=0.001)


class Crash(Exception):
    """Raised by a workflow's function, so that its run is retried from the beginning."""


async def steps_of(app: tenure.App, handle: tenure.Handle[Any]) -> dict[str, str | None]:
    return {step.key: step.result for step in await (await app.store()).steps(handle.id)}


def shuffled(seed: int) -> Any:
    """A step that takes a random number of iterations of the event loop."""
    generator = random.Random(seed)

    async def work(number: int) -> int:
        for _ in range(generator.randrange(5)):
            await asyncio.sleep(0)
        return number

    return work


@pytest.mark.requirement("WF-02", "WC-11")
@pytest.mark.parametrize("seed", range(3))
async def test_places_in_a_run_do_not_depend_on_the_timing_of_branches(app: tenure.App, seed: int) -> None:
    work = shuffled(seed)

    async def branch(run: tenure.Run, number: int) -> int:
        first: int = await run.step(work, number)
        others: tuple[int, int] = await run.gather(run.step(work, first + 1), run.step(work, first + 2))
        return sum(others)

    @app.workflow(backoff=AT_ONCE)
    async def fan(run: tenure.Run) -> list[int]:
        plain = await asyncio.gather(*(run.step(work, n) for n in range(3)))
        nested = await run.gather(branch(run, 10), branch(run, 20))
        mapped = await run.map(work, [7, 8, 9], concurrency=2)
        if run.attempt == 1:
            raise Crash
        return [*plain, *nested, *mapped]

    async with app, working(app):
        handle = await fan.enqueue()
        assert await handle.result(timeout_seconds=60) == [0, 1, 2, 23, 43, 7, 8, 9]
        assert await steps_of(app, handle) == {
            "0": "0",
            "1": "1",
            "2": "2",
            "3.0/0": "10",
            "3.0/1": "11",
            "3.0/2": "12",
            "3.1/0": "20",
            "3.1/1": "21",
            "3.1/2": "22",
            "4/0": "7",
            "4/1": "8",
            "4/2": "9",
        }


@pytest.mark.requirement("WF-02")
async def test_a_call_from_a_foreign_task_needs_a_key(app: tenure.App) -> None:
    def work(number: int) -> int:
        return number

    @app.workflow(max_attempts=1, on_exhausted="fail")
    async def racy(run: tenure.Run) -> None:
        async def foreign() -> int:
            return await run.step(work, 1)

        async with asyncio.TaskGroup() as group:
            group.create_task(foreign())

    @app.workflow()
    async def keyed(run: tenure.Run) -> int:
        async def foreign(number: int) -> int:
            return await run.using(key=f"part {number}").step(work, number)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(foreign(n)) for n in range(3)]
        return sum(task.result() for task in tasks)

    async with app, working(app):
        job = await (await racy.enqueue()).wait(60)
        assert job.status is FAILED
        assert "run.using(key=...)" in (job.error or "")
        handle = await keyed.enqueue()
        assert await handle.result(timeout_seconds=60) == 3
        assert set(await steps_of(app, handle)) == {"part 0", "part 1", "part 2"}


@pytest.mark.requirement("WF-03")
async def test_which_branch_was_first_is_recorded(app: tenure.App) -> None:
    slow = asyncio.Event()
    cancelled: list[str] = []

    async def quick() -> str:
        return "quick"

    async def hangs() -> str:
        try:
            await slow.wait()
        except asyncio.CancelledError:
            cancelled.append("hangs")
            raise
        return "slow"

    @app.workflow(backoff=AT_ONCE)
    async def race(run: tenure.Run) -> tuple[int, str]:
        done = await run.first(run.step(hangs), run.step(quick))
        if run.attempt == 1:
            slow.set()  # From now on both would be quick.
            raise Crash
        return done.index, done.value

    async with app, working(app):
        handle = await race.enqueue()
        assert await handle.result(timeout_seconds=60) == (1, "quick")
        assert (await steps_of(app, handle))["2"] == '{"first":1}'
    assert cancelled == ["hangs"]


@pytest.mark.requirement("WF-03")
async def test_the_order_of_completion_is_recorded(app: tenure.App) -> None:
    orders: list[list[int]] = []
    two_received = asyncio.Event()

    async def part(number: int) -> int:
        if number == 0:
            await two_received.wait()
        return number

    @app.workflow(backoff=AT_ONCE)
    async def stream(run: tenure.Run) -> int:
        order: list[int] = []
        done: AsyncIterator[tenure.First[int]] = run.as_completed(*(run.step(part, n) for n in range(3)))
        async for one in done:
            order.append(one.index)
            assert one.value == one.index
            if len(order) == 2:
                two_received.set()
        orders.append(order)
        if run.attempt == 1:
            raise Crash
        return len(order)

    async with app, working(app):
        assert await (await stream.enqueue()).result(timeout_seconds=60) == 3
    assert orders[0] == orders[1]
    assert orders[0][-1] == 0


@pytest.mark.requirement("WF-04")
async def test_all_branches_end_and_the_first_error_in_order_is_raised(app: tenure.App) -> None:
    executed: list[str] = []
    second_failed = asyncio.Event()

    async def late() -> None:
        await second_failed.wait()
        executed.append("late")
        raise ValueError("late")

    async def early() -> None:
        second_failed.set()
        executed.append("early")
        raise KeyError("early")

    async def fine() -> None:
        executed.append("fine")

    @app.workflow(on_exhausted="fail")
    async def fan(run: tenure.Run) -> str:
        try:
            await run.gather(run.step(late), run.step(early), run.step(fine))
        except tenure.StepFailed as error:
            return error.error_message
        return "none"

    async with app, working(app):
        handle = await fan.enqueue()
        assert await handle.result(timeout_seconds=60) == "late"
        assert set(await steps_of(app, handle)) == {"0", "1", "2"}
    assert sorted(executed) == ["early", "fine", "late"]


@pytest.mark.requirement("WF-04")
async def test_the_errors_of_all_branches_are_raised_as_a_group_if_asked(app: tenure.App) -> None:
    executed: list[int] = []

    async def fails(number: int) -> int:
        executed.append(number)
        if number % 2:
            raise ValueError(f"no {number}")
        return number

    @app.workflow(max_attempts=3)
    async def gathers(run: tenure.Run, *, catches: bool) -> list[str]:
        calls = [run.step(fails, number) for number in range(4)]
        try:
            await run.gather(*calls, errors="all")
        except ExceptionGroup as group:
            if not catches:
                raise
            return [str(error) for error in group.exceptions]
        return []

    async with app, working(app):
        caught, uncaught = await gathers.enqueue(catches=True), await gathers.enqueue(catches=False)
        assert [text.rpartition(" ")[2] for text in await caught.result(timeout_seconds=60)] == ["1", "3"]
        with pytest.raises(tenure.JobFailed, match="2 of 4 branches failed"):
            await uncaught.result(timeout_seconds=60)
        # All of them are recorded: another attempt would find them again.
        assert (await uncaught.refresh()).attempt == 1
    assert sorted(executed) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.requirement("WF-04")
async def test_with_fail_fast_the_first_error_in_time_cancels_the_others(app: tenure.App) -> None:
    cancelled: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("hangs")

    async def fails() -> None:
        raise KeyError("early")

    @app.workflow(backoff=AT_ONCE)
    async def fan(run: tenure.Run) -> str:
        message = "none"
        try:
            await run.gather(run.step(hangs), run.step(fails), fail_fast=True)
        except tenure.StepFailed as error:
            message = error.error_type
        if run.attempt == 1:
            raise Crash
        return message

    async with app, working(app):
        handle = await fan.enqueue()
        assert await handle.result(timeout_seconds=60) == "KeyError"
        assert (await steps_of(app, handle))["2"] == '{"failed":1}'
    assert cancelled == ["hangs"]


@pytest.mark.requirement("WF-09", "WC-08", "WC-11")
async def test_random_values_and_times_are_the_same_in_every_attempt(app: tenure.App) -> None:
    seen: list[list[Any]] = []

    def work(number: int) -> int:
        return number

    async def branch(run: tenure.Run) -> list[Any]:
        await run.step(work, 1)
        return [run.uuid(), run.now(), run.random.random()]

    @app.workflow(backoff=AT_ONCE)
    async def dice(run: tenure.Run) -> None:
        values: list[Any] = [run.now(), run.uuid(), run.random.random(), run.random.random()]
        await run.gather(run.step(work, 0), run.step(work, 1))
        values += [run.now(), run.uuid()]
        values += await run.gather(branch(run), branch(run))
        values.append(run.now())
        seen.append(values)
        if run.attempt < 3:
            raise Crash

    async with app, working(app):
        handle = await dice.enqueue()
        await handle.result(timeout_seconds=60)
        created_at = (await handle.refresh()).created_at
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] == created_at
    assert seen[0][1] != seen[0][5]
    assert seen[0][6] != seen[0][7], "branches draw from generators of their own"


@pytest.mark.requirement("WF-09")
async def test_a_new_draw_changes_nothing_after_the_next_step(app: tenure.App) -> None:
    after: list[float] = []

    def work() -> int:
        return 1

    @app.workflow(backoff=AT_ONCE)
    async def dice(run: tenure.Run) -> None:
        if run.attempt == 2:
            run.random.random()
        await run.step(work)
        after.append(run.random.random())
        if run.attempt == 1:
            raise Crash

    async with app, working(app):
        await (await dice.enqueue()).result(timeout_seconds=60)
    assert after[0] == after[1]


@pytest.mark.requirement("WF-20")
async def test_context_variables_are_per_branch(app: tenure.App) -> None:
    from contextvars import ContextVar

    tenant: ContextVar[str] = ContextVar("tenant", default="none")

    async def work() -> str:
        await asyncio.sleep(0)
        return tenant.get()

    async def branch(run: tenure.Run, name: str) -> str:
        tenant.set(name)
        return await run.step(work)

    @app.workflow()
    async def fan(run: tenure.Run) -> list[str]:
        found = await run.gather(branch(run, "a"), branch(run, "b"))
        return [*found, tenant.get()]

    async with app, working(app):
        assert await (await fan.enqueue()).result(timeout_seconds=60) == ["a", "b", "none"]


@pytest.mark.requirement("WF-20")
async def test_the_engine_refers_to_every_task_that_it_starts(app: tenure.App) -> None:
    import gc

    async def work(number: int) -> int:
        # Nothing but the loop's weak reference would keep a waiting task otherwise.
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.02, waiter.set_result, None)
        if number == 29:
            # All others wait by now. A collection for each of them would block the loop for a minute on a busy machine.
            gc.collect()
        await waiter
        return number

    @app.workflow()
    async def fan(run: tenure.Run) -> int:
        return sum(await run.map(work, range(30), concurrency=30))

    async with app, working(app):
        assert await (await fan.enqueue()).result(timeout_seconds=60) == 435
