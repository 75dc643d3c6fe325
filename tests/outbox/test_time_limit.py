"""The limit of time of deliveries that follow one another."""

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
        with pytest.raises(TimeoutError), limit:
            await never()
        with limit:
            await asyncio.sleep(0)
    limit.close()
    assert cancellations() == 0


async def test_a_timer_that_was_set_for_an_earlier_call_cancels_no_later_one() -> None:
    limit = TimeLimit(60.0)
    with limit:
        limit._check()
        await asyncio.sleep(0)
    limit._check()
    with limit:
        await asyncio.sleep(0)
    limit.close()
    assert cancellations() == 0


async def test_a_call_that_ignores_its_cancellation_leaves_the_task_as_it_was() -> None:
    with TimeLimit(0.01), pytest.raises(asyncio.CancelledError):
        await never()
    assert cancellations() == 0


async def test_a_task_that_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        with TimeLimit(60.0):
            await never()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
