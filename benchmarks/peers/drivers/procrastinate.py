# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Procrastinate: one statement to fetch a job, one to end it, many at once by its concurrency."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, async_body, main

CONCURRENCY = 30
DEFAULT_CONCURRENCY = 1
CONNECTIONS = 10
BOOKS = Books(
    left="select count(*) from procrastinate_jobs where status <> 'succeeded'",
    done="select count(*) from procrastinate_jobs where status = 'succeeded'",
    first_claim="select extract(epoch from min(at)) from procrastinate_events where type = 'started'",
)


def declared(url: str) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=CONNECTIONS))

    @app.task(name="nothing")
    async def nothing(sent_ns: int) -> None:
        await async_body(sent_ns)

    return app, nothing


class ProcrastinateSender:
    def __init__(self, nothing: Any) -> None:
        self._nothing = nothing

    async def one(self, sent_ns: int) -> None:
        await self._nothing.defer_async(sent_ns=sent_ns)

    async def many(self, jobs: int) -> None:
        await self._nothing.batch_defer_async(*({"sent_ns": 0} for _ in range(jobs)))


class Procrastinate(Driver):
    configuration = f"psycopg pool of {CONNECTIONS}, uvloop, concurrency {CONCURRENCY}, listen_notify, async task"
    default_configuration = f"psycopg pool of {CONNECTIONS}, concurrency {DEFAULT_CONCURRENCY}, async task"
    uvloop = True

    async def prepare(self, url: str) -> None:
        app, _ = declared(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        app, nothing = declared(url)
        async with app.open_async():
            yield ProcrastinateSender(nothing)

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        self.run(_work(url, DEFAULT_CONCURRENCY if self.defaults else CONCURRENCY))


async def _work(url: str, concurrency: int) -> None:
    app, _ = declared(url)
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    main(Procrastinate())
