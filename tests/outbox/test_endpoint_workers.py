"""The workers of an endpoint take every stream that is given to them, whenever it comes."""

from __future__ import annotations

import asyncio
from typing import Any

from tenure.outbox.endpoint_workers import EndpointWorkers
from tenure.outbox.processor import ProcessorOptions
from tenure.seams import SYSTEM

LIMIT_SECONDS = 30.0


class Stream:
    """A stream of so many messages, which are delivered at once."""

    def __init__(self, messages: int = 1) -> None:
        self.left = messages

    async def step(self) -> bool:
        self.left -= 1
        return self.left > 0


async def test_a_stream_that_comes_as_the_last_worker_ends_is_delivered() -> None:
    """It comes after the worker has seen that nothing waits, and before the end of its task is known."""
    loop, ended, done = asyncio.get_running_loop(), [], asyncio.Event()
    streams: list[Any] = [Stream(), Stream(3)]

    def end(stream: Any, error: BaseException | None) -> None:
        ended.append((stream, error))
        if len(ended) == len(streams):
            done.set()
        else:
            loop.call_soon(workers.add, [streams[1]])

    workers = EndpointWorkers(ProcessorOptions(concurrency=1), SYSTEM, set(), ended=end)
    workers.add([streams[0]])
    async with asyncio.timeout(LIMIT_SECONDS):
        await done.wait()
    assert ended == [(streams[0], None), (streams[1], None)]
    assert streams[1].left == 0


async def test_streams_that_wait_for_cancelled_workers_are_left_to_their_leases() -> None:
    ended: list[tuple[Any, BaseException | None]] = []

    class Hanging:
        async def step(self) -> bool:
            await asyncio.Event().wait()
            return False

    tasks: set[asyncio.Task[None]] = set()
    workers = EndpointWorkers(
        ProcessorOptions(concurrency=1), SYSTEM, tasks, ended=lambda stream, error: ended.append((stream, error))
    )
    streams: list[Any] = [Hanging(), Stream()]
    workers.add(streams)
    [task] = tasks
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert [stream for stream, _ in ended] == streams
    assert all(isinstance(error, asyncio.CancelledError) for _, error in ended)
