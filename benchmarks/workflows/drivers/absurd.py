# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Absurd: asynchronous workers that poll, each with a connection of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from absurd_sdk import AsyncAbsurd

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.workflows.drivers.protocol import TALLY, Driver, Ledger, Runs, main

WORKERS, CONCURRENCY = 4, 25
POLL_SECONDS = 0.01
QUEUES = ("runs", "children")
BOOKS = Books(
    left="select 0",
    done="select (select count(*) from absurd.t_runs where state = 'completed')"
    " + (select count(*) from absurd.t_children where state = 'completed')",
)


async def increase(number: int) -> int:
    return number + 1


def declare(app: AsyncAbsurd) -> None:
    @app.register_task("nothing", queue="children")
    async def nothing(number: int, _: Any) -> int:
        return number

    @app.register_task("steps", queue="runs")
    async def steps(count: int, ctx: Any) -> int:
        number = 0
        for _ in range(count):
            at = number
            number = await ctx.step("increase", lambda at=at: increase(at))
        TALLY.end()
        return number

    @app.register_task("waits", queue="runs")
    async def waits(number: int, ctx: Any) -> None:
        TALLY.wait()
        await ctx.await_event(f"go:{number}")
        TALLY.resume(number)

    @app.register_task("parent", queue="runs")
    async def parent(count: int, ctx: Any) -> int:
        async def spawn(number: int) -> str:
            spawned = await app.spawn("nothing", number, queue="children")
            return str(spawned["task_id"])

        children = [await ctx.step("spawn", lambda number=number: spawn(number)) for number in range(count)]
        ended = [await ctx.await_task_result(child, queue_name="children") for child in children]
        total = sum(one.result for one in ended)
        TALLY.end()
        return total


class AbsurdRuns:
    def __init__(self, client: AsyncAbsurd) -> None:
        self._client = client

    async def start(self, count: int, steps: int) -> None:
        for _ in range(count):
            await self._client.spawn("steps", steps, queue="runs")

    async def start_waiting(self, count: int) -> None:
        for number in range(count):
            await self._client.spawn("waits", number, queue="runs")

    async def signal(self, number: int) -> None:
        await self._client.emit_event(f"go:{number}", 1, queue_name="runs")

    async def start_parent(self, children: int) -> None:
        await self._client.spawn("parent", children, queue="runs")


class Absurd(Driver):
    configuration = (
        f"{WORKERS} asynchronous workers of concurrency {CONCURRENCY} for each of 2 queues (a run cannot await a child "
        f"of its own queue), polling every {POLL_SECONDS} s (default 0.25 s)"
    )

    async def prepare(self, url: str) -> None:
        command = [str(Path(sys.executable).parent / "absurdctl"), "init"]
        environment = {**os.environ, "ABSURD_DATABASE_URL": url}
        await asyncio.to_thread(
            subprocess.run,
            command,
            check=True,
            capture_output=True,
            timeout=60,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        client = AsyncAbsurd(url)
        for queue in QUEUES:
            await client.create_queue(queue)
        await client.close()

    @asynccontextmanager
    async def working(self, url: str) -> AsyncIterator[Runs]:
        workers = [AsyncAbsurd(url, queue_name=queue) for queue in QUEUES for _ in range(WORKERS)]
        for worker in workers:
            declare(worker)
        client = AsyncAbsurd(url)
        declare(client)
        working = [
            asyncio.create_task(worker.start_worker(concurrency=CONCURRENCY, poll_interval=POLL_SECONDS))
            for worker in workers
        ]
        yield AbsurdRuns(client)
        for worker in workers:
            worker.stop_worker()
        await asyncio.gather(*working)

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)


if __name__ == "__main__":
    main(Absurd())
