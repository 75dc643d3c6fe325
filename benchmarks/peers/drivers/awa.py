# mypy: disable-error-code="import-not-found, untyped-decorator"
"""awa: a Rust core that claims and completes in batches into rotating, append-only tables."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass

import awa

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, async_body, main

QUEUE = "default"
WORKERS = 512
# Segments that are done with are counted into the roll-ups and then emptied.
BOOKS = Books(
    left="select count(*) from awa.jobs where state <> 'completed'",
    done="""
        select (select count(*) from awa.terminal_jobs where state = 'completed')
             + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
    """,
    first_claim=None,
)


@dataclass
class Nothing:
    sent_ns: int


class AwaSender:
    def __init__(self, client: awa.AsyncClient) -> None:
        self._client = client

    async def one(self, sent_ns: int) -> None:
        await self._client.insert(Nothing(sent_ns), queue=QUEUE)

    async def many(self, jobs: int) -> None:
        await self._client.enqueue_many_copy([Nothing(0)] * jobs, queue=QUEUE)


class Awa(Driver):
    configuration = (
        f"its Rust core, queue storage, COPY for bulk, {WORKERS} workers a process, no deadlines (so that claims "
        "stay batches), async handler"
    )

    async def prepare(self, url: str) -> None:
        client = awa.AsyncClient(url)
        await client.migrate()
        await client.install_queue_storage(schema="awa")
        await client.close()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        client = awa.AsyncClient(url)
        yield AwaSender(client)
        await client.close()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        self.run(_work(url))


async def _work(url: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = awa.AsyncClient(url)

    @client.task(Nothing, queue=QUEUE)
    async def nothing(job: awa.Job[Nothing]) -> None:
        await async_body(job.args.sent_ns)

    await client.start([{"name": QUEUE, "max_workers": WORKERS, "deadline_duration_ms": 0}])
    await stop.wait()
    await client.shutdown()
    await client.close()


if __name__ == "__main__":
    main(Awa())
