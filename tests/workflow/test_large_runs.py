"""Large runs: a fan-out of a thousand children, and ten thousand recorded steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import WAITING
from tenure.stores.base import BaseStore
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

CHILDREN = 1_000
NEVER_SECONDS = 3600.0
COUNTED = ("apply", "enqueue", "read", "save_steps", "signals", "steps")


@pytest.mark.requirement("SM-16", "WF-13")
@pytest.mark.timeout(300)
async def test_a_parent_of_a_thousand_children_whose_last_two_end_at_once_continues(app: tenure.App) -> None:
    """Two workers write the last two ends at the same time. Recovery, which would find a lost wake, does not scan."""
    both = asyncio.Barrier(2)

    @app.job()
    async def child(number: int) -> int:
        return number

    @app.job()
    async def last(number: int) -> int:
        await both.wait()
        return number

    @app.workflow()
    async def fan(run: tenure.Run) -> int:
        spawned = [run.spawn(child, number) for number in range(CHILDREN - 2)]
        spawned += [run.spawn(last.options(queue=queue), 0) for queue in ("first", "second")]
        children = await run.gather(*spawned)
        return sum(await run.gather(*(one.result() for one in children)))

    options: dict[str, Any] = {"scan_seconds": NEVER_SECONDS, "concurrency": 100}
    async with app:
        handle = await fan.enqueue()
        async with working(app, queues=["default"], **options):

            async def only_two_live() -> bool:
                job = await handle.refresh()
                live = (await (await app.store()).children(handle.id, live_only=True, limit=CHILDREN)).jobs
                return job.status is WAITING and {one.kind for one in live} == {"last"}

            await eventually(only_two_live, seconds=200)
            async with working(app, queues=["first"], **options), working(app, queues=["second"], **options):
                assert await handle.result(timeout_seconds=200) == sum(range(CHILDREN - 2))
        types = [event.type for event in await handle.events()]
    assert types.count(EventType.CLAIMED) <= 5


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of a store from now on."""
    calls: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return await method(*args, **kwargs)

        return call

    for name in COUNTED:
        monkeypatch.setattr(BaseStore, name, counted(name, getattr(BaseStore, name)))
    return calls


@pytest.mark.requirement("WC-08", "EL-04")
@pytest.mark.timeout(400)
async def test_a_run_of_ten_thousand_steps_resumes_with_as_many_requests_as_a_short_one(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: Counter[int] = Counter()

    def note(number: int) -> int:
        executed[number] += 1
        return number

    async def noted(number: int) -> int:
        return note(number)

    @app.workflow()
    async def many(run: tenure.Run, count: int) -> int:
        total = sum(await run.map(noted, range(count), concurrency=500))
        await run.wait_for("go")
        return total

    async def resumed(count: int) -> dict[str, int]:
        handle = await many.enqueue(count)
        async with working(app, scan_seconds=NEVER_SECONDS):

            async def waits() -> bool:
                return (await handle.refresh()).status is WAITING

            await eventually(waits, seconds=200)
        await handle.signal("go")
        executed.clear()
        with monkeypatch.context() as patch:
            calls = count_calls(patch)
            async with working(app, scan_seconds=NEVER_SECONDS):

                async def ended() -> bool:
                    return calls["apply"] > 0

                await eventually(ended, seconds=200)
            found = {name: calls[name] for name in ("save_steps", "signals", "steps")}
        assert await handle.result(timeout_seconds=60) == sum(range(count))
        assert executed == {}
        return found

    async with app:
        short, long = await resumed(10), await resumed(10_000)
    assert short == {"save_steps": 1, "signals": 1, "steps": 1}
    # A full page is followed by one more read.
    assert long == {**short, "steps": 2}
