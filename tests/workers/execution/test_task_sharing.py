"""Attempts that never wait share a task; whoever waits keeps it, and nothing is carried from one to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from tenure.jobs.context import current_context
from tenure.seams import SYSTEM
from tenure.workers.execution.task_sharing import TURNS_MAX, SharedTasks

NOTE: ContextVar[str] = ContextVar("note")
Body = Callable[["One"], Awaitable[None]]


class One:
    """A turn that notes in which task it ran, and then does what it was given to do."""

    def __init__(self, body: Body | None = None) -> None:
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self._body = body

    async def live(self, task: asyncio.Task[None]) -> None:
        assert asyncio.current_task() is task
        self.task = task
        try:
            if self._body is not None:
                await self._body(self)
        except asyncio.CancelledError:
            pass
        finally:
            self.ended.set()


async def run(*turns: One) -> list[asyncio.Task[None]]:
    """The tasks that the turns ran in."""
    taking = SharedTasks(SYSTEM.spawn)
    for turn in turns:
        taking.add(turn)
    async with asyncio.timeout(10):
        for turn in turns:
            await turn.ended.wait()
    return [turn.task for turn in turns if turn.task is not None]


async def test_turns_that_never_wait_share_a_task_in_their_order() -> None:
    order: list[int] = []

    def noting(number: int) -> One:
        async def note(_one: One) -> None:
            order.append(number)

        return One(note)

    tasks = await run(*(noting(number) for number in range(TURNS_MAX)))
    assert (order, len(set(tasks))) == (list(range(TURNS_MAX)), 1)


async def test_the_event_loop_has_its_turn_among_many() -> None:
    passed: list[int] = []
    ran: list[One] = []

    async def note(one: One) -> None:
        ran.append(one)

    turns = [One(note) for _ in range(3 * TURNS_MAX)]
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(lambda: passed.append(len(ran))))
    await run(*turns)
    assert len(ran) == 3 * TURNS_MAX
    assert passed[0] <= TURNS_MAX


async def test_whoever_waits_keeps_its_task_and_holds_up_nobody() -> None:
    gate = asyncio.Event()

    async def wait(_one: One) -> None:
        await gate.wait()

    waiting = [One(wait) for _ in range(50)]
    last = One()
    taking = SharedTasks(SYSTEM.spawn)
    for turn in (*waiting, last):
        taking.add(turn)
    async with asyncio.timeout(10):
        await last.ended.wait()
        assert not any(turn.ended.is_set() for turn in waiting)
        assert len({turn.task for turn in waiting}) == len(waiting), "each has a task of its own"
        gate.set()
        for turn in waiting:
            await turn.ended.wait()


async def test_a_task_in_which_something_has_waited_is_not_used_again() -> None:
    async def yield_once(_one: One) -> None:
        await asyncio.sleep(0)

    first = One(yield_once)
    tasks = await run(first, *(One() for _ in range(5)))
    assert tasks[0] not in tasks[1:]


async def test_what_one_sets_in_its_context_no_other_sees() -> None:
    seen: list[str | None] = []

    async def leave(_one: One) -> None:
        seen.append(NOTE.get(None))
        NOTE.set("mine")

    tasks = await run(*(One(leave) for _ in range(4)))
    assert (seen, len(set(tasks))) == ([None] * 4, 4)


async def test_nobody_begins_inside_the_context_of_another_job() -> None:
    seen: list[object] = []

    async def look(_one: One) -> None:
        seen.append(current_context.get())

    token = current_context.set("somebody else's")  # type: ignore[arg-type]
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
    assert all(turn.ended.is_set() for turn in after)


async def test_one_that_fails_although_it_must_not_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_one: One) -> None:
        raise LookupError("a bug")

    after = [One() for _ in range(3)]
    await run(One(fail), *after)
    assert all(turn.ended.is_set() for turn in after)
    assert "a bug" in caplog.text


async def test_what_is_added_later_is_run_too() -> None:
    taking = SharedTasks(SYSTEM.spawn)
    async with asyncio.timeout(10):
        for _ in range(3):
            turn = One()
            taking.add(turn)
            await turn.ended.wait()
            assert turn.task is not None
