"""Child jobs of a run: spawned once, awaited without a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import CANCELLED, QUEUED, SUCCEEDED, WAITING
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.001, max_seconds=0.001)


class Crash(Exception):
    """Raised by a workflow's function, so that its run is retried from the beginning."""


async def children_of(app: tenure.App, handle: tenure.Handle[Any]) -> list[tenure.Job]:
    return (await (await app.store()).children(handle.id, limit=1000)).jobs


@pytest.mark.requirement("WF-06", "SM-16")
async def test_a_child_is_spawned_once_and_its_result_is_recorded(app: tenure.App) -> None:
    executed: list[int] = []

    @app.job()
    def double(number: int) -> int:
        executed.append(number)
        return 2 * number

    @app.workflow(backoff=AT_ONCE)
    async def parent(run: tenure.Run) -> int:
        child = await run.spawn(double, 4)
        if run.attempt == 1:
            raise Crash
        result = await child.result()
        if len(executed) == 1:
            executed.append(0)
            raise Crash
        return result

    async with app, working(app):
        handle = await parent.enqueue()
        assert await handle.result(timeout_seconds=60) == 8
        [child] = await children_of(app, handle)
        job = await handle.refresh()
    assert executed == [4, 0]
    assert (child.origin.parent_id, child.origin.awaited) == (handle.id, True)
    assert child.correlation_id == job.correlation_id


@pytest.mark.requirement("WF-06")
async def test_the_failure_of_a_child_is_recorded_and_raised(app: tenure.App) -> None:
    @app.job(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @app.workflow(backoff=AT_ONCE)
    async def parent(run: tenure.Run) -> str:
        child = await run.spawn(fails)
        try:
            await child.result()
        except tenure.StepFailed as error:
            if run.attempt < 3:
                raise Crash from None
            return f"{error.error_type}: {error.error_message}"
        return "none"

    async with app, working(app):
        assert await (await parent.enqueue()).result(timeout_seconds=60) == "ValueError: no"


async def test_a_workflow_may_be_a_child_and_waiting_for_it_holds_no_worker(app: tenure.App) -> None:
    @app.workflow()
    async def inner(run: tenure.Run, number: int) -> int:
        return number + await run.wait_for("add", int)

    @app.workflow()
    async def outer(run: tenure.Run) -> tuple[int, ...]:
        children = [await run.spawn(inner, number) for number in (1, 2)]
        return await run.gather(*(child.result() for child in children))

    async with app, working(app, concurrency=1):
        handle = await outer.enqueue()

        async def all_wait() -> bool:
            jobs = await children_of(app, handle)
            waiting = [job for job in (await handle.refresh(), *jobs) if job.status is WAITING]
            return len(waiting) == 3

        await eventually(all_wait, seconds=60)
        assert (await handle.refresh()).waiting_for == "children"
        for number, job in enumerate(await children_of(app, handle)):
            await app.signal(job.id, "add", 10 * (number + 1))
        assert await handle.result(timeout_seconds=60) == (11, 22)


async def test_a_parent_of_many_children_is_woken_a_few_times(app: tenure.App) -> None:
    count = 200

    @app.job()
    async def child(number: int) -> int:
        return number

    @app.workflow()
    async def fan(run: tenure.Run) -> int:
        children = await run.gather(*(run.spawn(child, number) for number in range(count)))
        return sum(await run.gather(*(one.result() for one in children)))

    async with app, working(app, concurrency=20):
        handle = await fan.enqueue()
        assert await handle.result(timeout_seconds=120) == count * (count - 1) // 2
        types = [event.type for event in await handle.events()]
    assert types.count(EventType.CLAIMED) <= 5


@pytest.mark.requirement("WF-15")
@pytest.mark.parametrize(("policy", "expected"), [("cancel", CANCELLED), ("leave", QUEUED), ("wait", SUCCEEDED)])
async def test_when_its_parent_ends_a_child_is_cancelled_left_or_waited_for(
    app: tenure.App, policy: Any, expected: Any
) -> None:
    release = asyncio.Event()

    @app.job(queue="slow")
    async def child() -> int:
        await release.wait()
        return 1

    @app.workflow()
    async def parent(run: tenure.Run) -> str:
        await run.using(on_parent_end=policy).spawn(child)
        return "done"

    async with app, working(app, queues=["default"]):
        handle = await parent.enqueue()
        if policy == "wait":

            async def waits() -> bool:
                return (await handle.refresh()).waiting_for == "children"

            await eventually(waits, seconds=60)
            release.set()
            async with working(app, queues=["slow"]):
                assert await handle.result(timeout_seconds=60) == "done"
        else:
            assert await handle.result(timeout_seconds=60) == "done"
        if policy == "cancel":
            async with working(app, queues=["slow"]):

                async def ended() -> bool:
                    return not (await children_of(app, handle))[0].live

                await eventually(ended, seconds=60)
        [job] = await children_of(app, handle)
    assert job.status is expected


@pytest.mark.requirement("WF-10")
async def test_a_cancelled_run_cancels_its_children(app: tenure.App) -> None:
    started = asyncio.Event()

    @app.job()
    async def child(ctx: tenure.Context) -> None:
        started.set()
        while True:
            ctx.check()
            await asyncio.sleep(0.01)

    @app.workflow()
    async def parent(run: tenure.Run) -> None:
        await run.spawn(child)
        await run.step(asyncio.Event().wait)

    async with app, working(app):
        handle = await parent.enqueue()
        await asyncio.wait_for(started.wait(), 60)
        await handle.cancel()
        assert (await handle.wait(60)).status is CANCELLED

        async def ended() -> bool:
            return (await children_of(app, handle))[0].status is CANCELLED

        await eventually(ended, seconds=60)


@pytest.mark.requirement("WF-10", "WF-15")
async def test_a_request_to_cancel_a_waiting_parent_cancels_its_children(app: tenure.App) -> None:
    @app.workflow()
    async def child(run: tenure.Run) -> None:
        await run.wait_for("never", str)

    @app.workflow()
    async def parent(run: tenure.Run) -> None:
        await (await run.spawn(child)).result()

    async with app, working(app):
        handle = await parent.enqueue()

        async def both_wait() -> bool:
            return [job.status for job in (await handle.refresh(), *await children_of(app, handle))] == [WAITING] * 2

        await eventually(both_wait, seconds=60)
        await handle.cancel(reason="no longer needed")

        async def both_are_cancelled() -> bool:
            return [job.status for job in (await handle.refresh(), *await children_of(app, handle))] == [CANCELLED] * 2

        await eventually(both_are_cancelled, seconds=60)
    assert handle.job.reason == "no longer needed"


@pytest.mark.requirement("WF-10", "WF-15")
@pytest.mark.parametrize("how", ["an error", "a permanent error", "a timeout", "a hard cancel"])
async def test_a_parent_that_ends_without_success_cancels_its_children(app: tenure.App, how: str) -> None:
    @app.workflow()
    async def child(run: tenure.Run) -> None:
        await run.wait_for("never", str)

    @app.workflow(max_attempts=2, backoff=AT_ONCE, on_timeout="fail", timeouts=tenure.Timeouts(running_seconds=2.0))
    async def parent(run: tenure.Run) -> None:
        cancelled = await run.spawn(child)
        await run.using(on_parent_end="leave").spawn(child)
        if how == "an error":
            raise ValueError("no")
        if how == "a permanent error":
            raise tenure.PermanentError("no")
        if how == "a timeout":
            await run.step(asyncio.Event().wait)
        await cancelled.result()

    async with app, working(app):
        handle = await parent.enqueue()
        if how == "a hard cancel":

            async def waits() -> bool:
                return (await handle.refresh()).status is WAITING

            await eventually(waits, seconds=60)
            await handle.cancel(hard=True)

        async def ended() -> bool:
            jobs = await children_of(app, handle)
            return not (await handle.refresh()).live and sorted(job.status for job in jobs) == [CANCELLED, WAITING]

        await eventually(ended, seconds=60)
        assert not (await handle.refresh()).live
        for left in await children_of(app, handle):
            if left.live:
                await app.cancel(left.id)
