"""The load on a queue: producers, readers and transactions, each as a context that lasts while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from benchmarks.filling import payload_of
from benchmarks.measuring.jobs import app
from benchmarks.pressure_worker import work
from tenure.seams import SYSTEM

PAYLOAD_BYTES = 256
BATCH = 500
DEPTH = 10_000
"""How many jobs are kept in the queue without load: the workers always have some, and a claim reads few."""
TICK_SECONDS = 0.05
BURST_FACTOR, BURST_EVERY_SECONDS, BURST_LANES = 10, 10.0, 2
READERS = 4


@dataclass
class Producer:
    """Puts jobs into one queue, and counts them."""

    queue: str
    enqueued: int = 0
    in_bursts: int = 0
    burst_seconds: float = 0.0
    _text: str = field(default="x" * (PAYLOAD_BYTES - len(payload_of(0))))

    async def add(self, count: int) -> None:
        """Enqueue this many jobs, in batches of one round trip each."""
        request = work.options(queue=self.queue).request
        while count > 0:
            batch = min(count, BATCH)
            await app.enqueue_many([request(self._text) for _ in range(batch)])
            self.enqueued += batch
            count -= batch

    async def keep(self, done: Callable[[], int]) -> None:
        """Keep the queue at a constant length, until cancelled."""
        while True:
            missing = DEPTH - (self.enqueued - done())
            await self.add(missing)
            await asyncio.sleep(TICK_SECONDS)

    async def pace(self, per_second: float) -> None:
        """Enqueue this many jobs a second until cancelled, or as many as possible if that is fewer."""
        began, before = time.monotonic(), self.enqueued
        while True:
            await self.add(int((time.monotonic() - began) * per_second) - (self.enqueued - before))
            await asyncio.sleep(TICK_SECONDS)

    async def bursts(self, per_second: float) -> None:
        """Enqueue this many jobs a second on average, those of ten seconds in one second, or as fast as possible."""
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._burst(began, per_second) for _ in range(BURST_LANES)))
            self.burst_seconds += time.monotonic() - began
            self.in_bursts += int(per_second * BURST_EVERY_SECONDS)
            await asyncio.sleep(max(0.0, BURST_EVERY_SECONDS - (time.monotonic() - began)))

    async def _burst(self, began: float, per_second: float) -> None:
        count, pace = int(per_second * BURST_EVERY_SECONDS / BURST_LANES), per_second * BURST_FACTOR / BURST_LANES
        added = 0
        while added < count:
            due = min(count, int((time.monotonic() - began + TICK_SECONDS) * pace)) - added
            await self.add(due)
            added += max(0, due)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def an_idle_transaction(url: str) -> AsyncIterator[None]:
    """An idle transaction with an id and a snapshot: vacuum cannot remove row versions that died after its start."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("begin isolation level repeatable read")
        await connection.fetchval("select pg_current_xact_id()::text || count(*) from tenure.queues")
        yield
    finally:
        await connection.close()


@asynccontextmanager
async def overlapping_readers(url: str, *, seconds: float) -> AsyncIterator[None]:
    """Four readers that repeatedly count the jobs and then keep their snapshot for this time, each a quarter later."""

    async def read(number: int) -> None:
        connection = await asyncpg.connect(url, command_timeout=600)
        try:
            await asyncio.sleep(seconds * number / READERS)
            while True:
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.fetch("select status, count(*) from tenure.jobs group by status")
                    await asyncio.sleep(seconds)
        finally:
            connection.terminate()

    async with lasting(*(read(number) for number in range(READERS))):
        yield


@asynccontextmanager
async def lasting(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these during the block; an error of one of them is raised here."""
    tasks = [SYSTEM.spawn.task(one, name="pressure") for one in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for problem in ended:
        if isinstance(problem, BaseException) and not isinstance(problem, asyncio.CancelledError):
            raise problem
