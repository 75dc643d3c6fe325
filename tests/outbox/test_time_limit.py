"""The limit of time of deliveries."""

from __future__ import annotations

import asyncio

import pytest

from tenure.outbox.time_limit import TimeLimit


async def never() -> None:
    await asyncio.Event().wait()


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_call_that_takes_longer_is_cancelled_and_the_next_one_has_its_own_time() -> None:
    limit = TimeLimit(0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError), limit.call() as call:
            await never()
        assert call.expired
        with limit.call():
            await asyncio.sleep(0)
    limit.close()
    assert cancellations() == 0


async def test_a_timer_that_was_set_for_an_earlier_call_cancels_no_later_one() -> None:
    limit, loop = TimeLimit(60.0), asyncio.get_running_loop()
    with limit.call():
        limit._check(loop)
        await asyncio.sleep(0)
    limit._check(loop)
    with limit.call() as call:
        await asyncio.sleep(0)
    limit.close()
    assert not call.expired
    assert cancellations() == 0


async def test_calls_of_several_tasks_end_each_at_its_own_time() -> None:
    limit, ended = TimeLimit(0.05), []

    async def work(name: str) -> None:
        with pytest.raises(TimeoutError), limit.call():
            await never()
        ended.append(name)

    async def quick() -> None:
        with limit.call():
            await asyncio.sleep(0)
        ended.append("quick")

    first = asyncio.ensure_future(work("first"))
    await asyncio.sleep(0)
    await asyncio.gather(work("second"), quick(), first)
    assert ended == ["quick", "first", "second"]
    assert limit._calls == {}
    assert limit._timer is None


async def test_a_call_within_another_ends_alone() -> None:
    outer, inner = TimeLimit(60.0), TimeLimit(0.01)
    with outer.call() as around:
        with pytest.raises(TimeoutError), inner.call():
            await never()
        await asyncio.sleep(0)
    outer.close()
    assert not around.expired
    assert cancellations() == 0


async def test_a_call_that_ignores_its_cancellation_leaves_the_task_as_it_was() -> None:
    with TimeLimit(0.01).call(), pytest.raises(asyncio.CancelledError):
        await never()
    assert cancellations() == 0


async def test_a_task_that_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        with TimeLimit(60.0).call():
            await never()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
