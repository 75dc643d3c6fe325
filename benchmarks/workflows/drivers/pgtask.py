# mypy: disable-error-code="import-not-found, untyped-decorator"
"""pgtask: a worker whose core is written in Rust, woken by LISTEN."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from pgtask import Client, Task, TaskRegistry, Worker

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.workflows.drivers.protocol import TALLY, Driver, Ledger, Runs, main

CONCURRENCY, CONNECTIONS = 200, 20
BOOKS = Books(left="select 0", done="select count(*) from pgtask.tasks where state = 'succeeded'")

tasks = TaskRegistry("default")


async def increase(number: int) -> int:
    return number + 1


@tasks.task("nothing")
async def nothing(_task: Task, number: int) -> int:
    return number


@tasks.task("steps")
async def steps(task: Task, count: int) -> int:
    number = 0
    for at in range(count):
        before = number
        number = await task.step("increase", lambda before=before: increase(before), occurrence=at)
    TALLY.end()
    return number


@tasks.task("waits")
async def waits(task: Task, number: int) -> None:
    TALLY.wait()
    await task.wait_for_signal("wait", "go")
    TALLY.resume(number)


@tasks.task("parent")
async def parent(task: Task, count: int) -> int:
    children = [await task.spawn("spawn", nothing.request(number), occurrence=number) for number in range(count)]
    results: list[Any] = [
        await task.wait_for_result("result", child, occurrence=number) for number, child in enumerate(children)
    ]
    TALLY.end()
    return len(results)


class PgtaskRuns:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: list[Any] = []

    async def start(self, count: int, steps_each: int) -> None:
        await self._client.enqueue_many([steps.request(steps_each) for _ in range(count)])

    async def start_waiting(self, count: int) -> None:
        self._waiting = [await self._client.enqueue(waits.request(number)) for number in range(count)]

    async def signal(self, number: int) -> None:
        await self._waiting[number].signal("go", 1)

    async def start_parent(self, children: int) -> None:
        await self._client.enqueue(parent.request(children))


class Pgtask(Driver):
    configuration = f"concurrency {CONCURRENCY}, {CONNECTIONS} connections, woken by LISTEN"

    async def prepare(self, url: str) -> None:
        client = await Client.connect(url)
        await client.migrate()

    @asynccontextmanager
    async def working(self, url: str) -> AsyncIterator[Runs]:
        client = await Client.connect(url)
        worker = Worker(url, tasks, concurrency=CONCURRENCY, max_query_connections=CONNECTIONS)
        working = asyncio.create_task(worker.run())
        yield PgtaskRuns(client)
        worker.shutdown()
        await working

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)


if __name__ == "__main__":
    main(Pgtask())
