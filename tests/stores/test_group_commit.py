"""Group commit: what waits for a write goes together in the next one, and each request has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tenure.errors import InvalidInput, StoreUnavailable
from tenure.seams import SYSTEM
from tenure.stores import group_commit
from tenure.stores.group_commit import GroupCommit


class Writes:
    """Writes that the test ends. A negative number poisons its write."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.written: list[int] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.commit: GroupCommit[int, str] = GroupCommit(self.write, SYSTEM, name="test-writes")

    async def write(self, requests: Sequence[int]) -> list[str]:
        self.groups.append(list(requests))
        await self.go.wait()
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if any(request < 0 for request in requests):
            raise InvalidInput("number", "is negative")
        self.written += requests
        return [f"answer {request}" for request in requests]

    def submit(self, *numbers: int) -> list[asyncio.Task[str]]:
        return [SYSTEM.spawn.task(self.commit.submit(number), name="test-caller") for number in numbers]


async def steps(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_at_idle_a_request_is_written_at_once_and_alone() -> None:
    writes = Writes()
    writes.go.set()
    assert [await writes.commit.submit(number) for number in (1, 2)] == ["answer 1", "answer 2"]
    assert writes.groups == [[1], [2]]


async def test_what_arrives_during_a_write_goes_together_in_the_next_in_order() -> None:
    writes = Writes()
    callers = writes.submit(*range(5))
    await steps()
    assert writes.groups == [[0]]
    writes.go.set()
    assert await asyncio.gather(*callers) == [f"answer {number}" for number in range(5)]
    assert writes.groups == [[0], [1, 2, 3, 4]]


async def test_callers_that_go_on_at_once_share_the_next_write_too() -> None:
    writes = Writes()
    writes.go.set()

    async def caller(first: int) -> None:
        for number in range(3):
            await writes.commit.submit(first + number)

    await asyncio.gather(*(caller(first) for first in (0, 10, 20, 30)))
    assert len(writes.groups) <= 5
    for first in (0, 10, 20, 30):
        mine = [number for number in writes.written if number // 10 == first // 10]
        assert mine == sorted(mine), "the order of each caller is kept"


async def test_a_poisoned_request_fails_alone() -> None:
    writes = Writes()
    callers = writes.submit(0, 1, 2, -3, 4, 5)
    await steps()
    writes.go.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found.pop(3), InvalidInput)
    assert found == [f"answer {number}" for number in (0, 1, 2, 4, 5)]
    assert writes.written == [0, 1, 2, 4, 5]


async def test_an_unreachable_database_is_everybodys_error_and_nothing_is_sent_again() -> None:
    writes = Writes()
    callers = writes.submit(0, 1, 2)
    await steps()
    writes.error = StoreUnavailable("gone")
    writes.go.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    assert writes.groups == [[0], [1, 2]]
    writes.error = None
    assert await writes.commit.submit(7) == "answer 7"


@pytest.mark.parametrize("cancelled", [0, 1, 3])
async def test_a_cancelled_caller_harms_no_other(cancelled: int) -> None:
    writes = Writes()
    callers = writes.submit(*range(4))
    await steps()
    callers[cancelled].cancel()
    await steps()
    writes.go.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found.pop(cancelled), asyncio.CancelledError)
    assert found == [f"answer {number}" for number in range(4) if number != cancelled]
    assert cancelled not in writes.written, "what was not sent yet is not written"


async def test_a_group_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GROUP_MAX", 3)
    writes = Writes()
    callers = writes.submit(*range(8))
    await steps()
    writes.go.set()
    await asyncio.gather(*callers)
    assert writes.groups == [[0], [1, 2, 3], [4, 5, 6], [7]]


async def test_a_writer_that_is_cancelled_leaves_no_caller_waiting() -> None:
    writes = Writes()
    callers = writes.submit(0, 1, 2)
    await steps()
    callers[0].cancel()
    await steps()
    assert writes.groups == [[0], [1, 2]]
    late = writes.submit(3)
    await steps()
    assert writes.commit._writer is not None
    writes.commit._writer.cancel()
    found = await asyncio.gather(*callers, *late, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
    writes.go.set()
    assert await writes.commit.submit(9) == "answer 9"


async def test_a_caller_on_another_event_loop_is_not_grouped() -> None:
    writes = Writes()
    [first] = writes.submit(1)
    await steps()

    async def on_another_loop() -> str:
        quick: GroupCommit[int, str] = writes.commit
        writes.go = asyncio.Event()
        writes.go.set()
        return await quick.submit(2)

    slow = writes.go
    assert await asyncio.to_thread(lambda: asyncio.run(on_another_loop())) == "answer 2"
    assert writes.groups == [[1], [2]]
    slow.set()
    assert await first == "answer 1"
