"""tenure itself, by its public interface."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import tenure
from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, async_body, main
from tenure.cli.worker import reduce_garbage_collection
from tenure.client.job_function import JobFunction
from tenure.workers.concurrency import TASKS

CONCURRENCY = 2000
BOOKS = Books(
    left="select count(*) from tenure.jobs where status <> 'succeeded'",
    done="select count(*) from tenure.jobs where status = 'succeeded'",
    first_claim="select extract(epoch from min(at)) from tenure.events where type = 'claimed'",
)


def declared(url: str) -> tuple[tenure.App, JobFunction[[int], None]]:
    app = tenure.App(url)

    @app.job()
    async def nothing(sent_ns: int) -> None:
        await async_body(sent_ns)

    return app, nothing


class TenureSender:
    def __init__(self, app: tenure.App, nothing: JobFunction[[int], None]) -> None:
        self._app, self._nothing = app, nothing

    async def one(self, sent_ns: int) -> None:
        await self._nothing.enqueue(sent_ns)

    async def many(self, jobs: int) -> None:
        await self._app.enqueue_many(self._nothing.request(0) for _ in range(jobs))


class Tenure(Driver):
    configuration = f"asyncpg, uvloop, concurrency {CONCURRENCY} a process; event log and guards on"
    default_configuration = f"concurrency {TASKS} a process; event log and guards on"
    uvloop = True
    bulk_batch = 20_000
    """All in one call, which sends a thousand at a time and makes the next ones meanwhile."""

    async def prepare(self, url: str) -> None:
        command = [sys.executable, "-m", "tenure", "migrate", "--database", url]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        app, nothing = declared(url)
        async with app:
            yield TenureSender(app, nothing)

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        self.run(_work(url, None if self.defaults else CONCURRENCY))


async def _work(url: str, concurrency: int | None) -> None:
    app, _ = declared(url)
    reduce_garbage_collection()  # as `tenure worker` does
    worker = app.worker(concurrency=concurrency)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    main(Tenure())
