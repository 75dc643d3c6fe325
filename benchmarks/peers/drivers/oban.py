# mypy: disable-error-code="import-not-found, untyped-decorator, misc"
"""oban for Python: claims in batches up to the queue's limit, acknowledges what has gathered since the last claim."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import psycopg
from oban import Oban, worker
from oban.schema import install_sql

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, async_body, main

LIMIT = 250
DEFAULT_LIMIT = 10
BOOKS = Books(
    left="select count(*) from oban_jobs where state <> 'completed'",
    done="select count(*) from oban_jobs where state = 'completed'",
    first_claim="select extract(epoch from min(attempted_at) at time zone 'UTC') from oban_jobs",
)


@worker(queue="default")
class Nothing:
    async def process(self, job: object) -> None:
        await async_body(job.args["sent_ns"])  # type: ignore[attr-defined]


class ObanSender:
    def __init__(self, oban: Oban) -> None:
        self._oban = oban

    async def one(self, sent_ns: int) -> None:
        await self._oban.enqueue(Nothing.new({"sent_ns": sent_ns}))  # type: ignore[attr-defined]

    async def many(self, jobs: int) -> None:
        await self._oban.enqueue_many([Nothing.new({"sent_ns": 0}) for _ in range(jobs)])  # type: ignore[attr-defined]


class ObanDriver(Driver):
    configuration = f"psycopg pool of 10, uvloop, queue limit {LIMIT}, async worker"
    default_configuration = f"psycopg pool of 10, queue limit {DEFAULT_LIMIT}, async worker"
    uvloop = True

    async def prepare(self, url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(install_sql())

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        pool = await Oban.create_pool(url)
        async with Oban(pool=pool) as oban:
            yield ObanSender(oban)
        await pool.close()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        self.run(_work(url, DEFAULT_LIMIT if self.defaults else LIMIT))


async def _work(url: str, limit: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pool = await Oban.create_pool(url)
    async with Oban(pool=pool, queues={"default": limit}):
        await stop.wait()
    await pool.close()


if __name__ == "__main__":
    main(ObanDriver())
