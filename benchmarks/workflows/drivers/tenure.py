"""tenure itself, by its public interface, on either store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import tenure
from benchmarks.peers.drivers import postgres, sqlite
from benchmarks.workflows.drivers.protocol import TALLY, Driver, Ledger, Runs, main
from tenure.cli.worker import reduce_garbage_collection

CONCURRENCY = 200
ON_POSTGRES = postgres.Books(left="select 0", done="select count(*) from tenure.jobs where status = 'succeeded'")
ON_SQLITE = sqlite.Books(left="select 0", done="select count(*) from tenure_jobs where status = 'succeeded'")


async def increase(number: int) -> int:
    return number + 1


class TenureRuns:
    def __init__(self, app: tenure.App) -> None:
        self._app = app
        self._waiting: list[tenure.Handle[None]] = []

        @app.job()
        async def nothing(number: int) -> int:
            return number

        @app.workflow()
        async def steps(run: tenure.Run, count: int) -> int:
            number = 0
            for _ in range(count):
                number = await run.step(increase, number)
            TALLY.end()
            return number

        @app.workflow()
        async def waits(run: tenure.Run, number: int) -> None:
            TALLY.wait()
            await run.wait_for("go")
            TALLY.resume(number)

        @app.workflow()
        async def parent(run: tenure.Run, count: int) -> int:
            children = await run.gather(*(run.spawn(nothing, number) for number in range(count)))
            total = sum(await run.gather(*(child.result() for child in children)))
            TALLY.end()
            return total

        self._steps, self._waits, self._parent = steps, waits, parent

    async def start(self, count: int, steps: int) -> None:
        await self._app.enqueue_many(self._steps.request(steps) for _ in range(count))

    async def start_waiting(self, count: int) -> None:
        self._waiting = [await self._waits.enqueue(number) for number in range(count)]

    async def signal(self, number: int) -> None:
        await self._waiting[number].signal("go", 1)

    async def start_parent(self, children: int) -> None:
        await self._parent.enqueue(children)


class Tenure(Driver):
    configuration = f"uvloop, concurrency {CONCURRENCY}; event log and guards on, synchronous=FULL on SQLite"
    uvloop = True

    async def prepare(self, url: str) -> None:
        command = [sys.executable, "-m", "tenure", "migrate", "--database", url]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)

    @asynccontextmanager
    async def working(self, url: str) -> AsyncIterator[Runs]:
        app = tenure.App(url, version="1")
        runs = TenureRuns(app)
        reduce_garbage_collection()  # as `tenure worker` does
        async with app:
            worker = app.worker(concurrency=CONCURRENCY)
            working = asyncio.create_task(worker.run())
            yield runs
            worker.stop()
            await working

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return sqlite.ledger(url, ON_SQLITE) if url.startswith("sqlite:") else postgres.ledger(url, ON_POSTGRES)


if __name__ == "__main__":
    main(Tenure())
