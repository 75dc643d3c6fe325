"""Coroutines that never suspend share a task; one that suspends keeps its task, and nothing is carried to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from tenure.jobs.context import current_context
from tenure.seams import SYSTEM
from tenure.workers.execution.task_sharing import RUNS_MAX, SharedTasks

NOTE: ContextVar[str] = ContextVar("note")
Body = Callable[["One"], Awaitable[None]]


class One:
    """A coroutine that notes in which task it ran, and then runs its body."""

    def __init__(self, body: Body | None = None) -> None:
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self._body = body

    async def __call__(self, task: asyncio.Task[None]) -> None:
        assert asyncio.current_task() is task
        self.task = task
        try:
            if self._body is not None:
                await self._body(self)
        except asyncio.CancelledError:
            pass
        finally:
            self.ended.set()


async def run(*ones: One) -> list[asyncio.Task[None]]:
    """The tasks that they ran in."""
    sharing: SharedTasks[Any] = SharedTasks(lambda run, task: run(task), SYSTEM.spawn)
    for one in ones:
        sharing.add(one)
    async with asyncio.timeout(10):
        for one in ones:
            await one.ended.wait()
    return [one.task for one in ones if one.task is not None]


async def test_those_that_never_suspend_share_a_task_in_their_order() -> None:
    order: list[int] = []

    def noting(number: int) -> One:
        async def note(_one: One) -> None:
            order.append(number)

        return One(note)

    tasks = await run(*(noting(number) for number in range(RUNS_MAX)))
    assert (order, len(set(tasks))) == (list(range(RUNS_MAX)), 1)


async def test_the_event_loop_runs_other_callbacks_among_many() -> None:
    passed: list[int] = []
    ran: list[One] = []

    async def note(one: One) -> None:
        ran.append(one)

    ones = [One(note) for _ in range(3 * RUNS_MAX)]
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(lambda: passed.append(len(ran))))
    await run(*ones)
    assert len(ran) == 3 * RUNS_MAX
    assert passed[0] <= RUNS_MAX


async def test_one_that_suspends_keeps_its_task_and_delays_no_other() -> None:
    go_on = asyncio.Event()

    async def wait(_one: One) -> None:
        await go_on.wait()

    waiting = [One(wait) for _ in range(50)]
    last = One()
    sharing: SharedTasks[Any] = SharedTasks(lambda run, task: run(task), SYSTEM.spawn)
    for one in (*waiting, last):
        sharing.add(one)
    async with asyncio.timeout(10):
        await last.ended.wait()
        assert not any(one.ended.is_set() for one in waiting)
        assert len({one.task for one in waiting}) == len(waiting), "each has a task of its own"
        go_on.set()
        for one in waiting:
            await one.ended.wait()


async def test_a_task_in_which_a_coroutine_was_suspended_is_not_used_again() -> None:
    async def yield_once(_one: One) -> None:
        await asyncio.sleep(0)

    first = One(yield_once)
    tasks = await run(first, *(One() for _ in range(5)))
    assert tasks[0] not in tasks[1:]


async def test_no_coroutine_sees_the_context_variables_of_another() -> None:
    seen: list[str | None] = []

    async def leave(_one: One) -> None:
        seen.append(NOTE.get(None))
        NOTE.set("mine")

    tasks = await run(*(One(leave) for _ in range(4)))
    assert (seen, len(set(tasks))) == ([None] * 4, 4)


async def test_no_coroutine_begins_inside_the_context_of_another_job() -> None:
    seen: list[object] = []

    async def look(_one: One) -> None:
        seen.append(current_context.get())

    token = current_context.set("another job's")  # type: ignore[arg-type]
    await run(One(look), One(look))
    current_context.reset(token)
    assert seen == [None, None]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancelled_task_is_not_used_again(*, waits: bool) -> None:
    async def cancel_itself(one: One) -> None:
        assert one.task is not None
        one.task.cancel()
        if waits:
            await asyncio.sleep(60)

    after = [One() for _ in range(3)]
    tasks = await run(One(cancel_itself), *after)
    assert tasks[0] not in tasks[1:]
    assert all(one.ended.is_set() for one in after)


async def test_one_that_fails_although_it_must_not_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_one: One) -> None:
        raise LookupError("a bug")

    after = [One() for _ in range(3)]
    await run(One(fail), *after)
    assert all(one.ended.is_set() for one in after)
    assert "a bug" in caplog.text


async def test_what_is_added_later_is_run_too() -> None:
    sharing: SharedTasks[Any] = SharedTasks(lambda run, task: run(task), SYSTEM.spawn)
    async with asyncio.timeout(10):
        for _ in range(3):
            one = One()
            sharing.add(one)
            await one.ended.wait()
            assert one.task is not None
