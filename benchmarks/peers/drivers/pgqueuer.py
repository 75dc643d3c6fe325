# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"
"""PgQueuer: asyncpg, a pool, batches for claims and for completions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import asyncpg
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, async_body, main

BATCH = 500
DEFAULT_BATCH = 10
BOOKS = Books(
    left="select count(*) from pgqueuer",
    done="select count(*) from pgqueuer_log where status = 'successful'",
    first_claim="select extract(epoch from min(created)) from pgqueuer_log where status = 'picked'",
)


class PgQueuerSender:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, sent_ns: int) -> None:
        await self._queries.enqueue("nothing", b"%d" % sent_ns)

    async def many(self, jobs: int) -> None:
        await self._queries.enqueue(["nothing"] * jobs, [b"0"] * jobs, [0] * jobs)


class PgQueuer(Driver):
    configuration = f"asyncpg, uvloop, pool, batch_size {BATCH}, durability durable (its default), async entrypoint"
    default_configuration = f"asyncpg, pool, batch_size {DEFAULT_BATCH}, async entrypoint"
    uvloop = True

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        connection = await asyncpg.connect(url)
        yield PgQueuerSender(Queries.from_asyncpg_connection(connection))
        await connection.close()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        self.run(_work(url, DEFAULT_BATCH if self.defaults else BATCH))


async def _work(url: str, batch_size: int) -> None:
    async with asyncpg.create_pool(url, min_size=4, max_size=4) as pool:
        manager = QueueManager(Queries.from_asyncpg_pool(pool))

        @manager.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            await async_body(int(job.payload or b"0"))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run(batch_size=batch_size)


if __name__ == "__main__":
    main(PgQueuer())
