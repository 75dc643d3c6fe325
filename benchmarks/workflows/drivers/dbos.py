# mypy: disable-error-code="import-not-found, untyped-decorator"
"""DBOS: synchronous workflows in threads, started in the worker's own process. A run that waits stays in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from dbos import DBOS

from benchmarks.peers.drivers import postgres, sqlite
from benchmarks.workflows.drivers.protocol import TALLY, Driver, Ledger, Runs, main

CONNECTIONS = 20
POLL_SECONDS = 0.02
ON_POSTGRES = postgres.Books(left="select 0", done="select count(*) from dbos.workflow_status where status = 'SUCCESS'")
ON_SQLITE = sqlite.Books(left="select 0", done="select count(*) from workflow_status where status = 'SUCCESS'")


@DBOS.step()
def increase(number: int) -> int:
    return number + 1


@DBOS.workflow()
def nothing(number: int) -> int:
    return number


@DBOS.workflow()
def steps(count: int) -> int:
    number = 0
    for _ in range(count):
        number = increase(number)
    TALLY.end()
    return number


@DBOS.workflow()
def waits(number: int) -> None:
    TALLY.wait()
    DBOS.recv("go", timeout_seconds=600)
    TALLY.resume(number)


@DBOS.workflow()
def parent(count: int) -> int:
    children = [DBOS.start_workflow(nothing, number) for number in range(count)]
    total = sum(child.get_result(polling_interval_sec=POLL_SECONDS) for child in children)
    TALLY.end()
    return total


class DBOSRuns:
    def __init__(self) -> None:
        self._waiting: list[str] = []

    async def start(self, count: int, steps_each: int) -> None:
        await asyncio.to_thread(lambda: [DBOS.start_workflow(steps, steps_each) for _ in range(count)])

    async def start_waiting(self, count: int) -> None:
        def start() -> list[str]:
            return [DBOS.start_workflow(waits, number).get_workflow_id() for number in range(count)]

        self._waiting = await asyncio.to_thread(start)

    async def signal(self, number: int) -> None:
        await asyncio.to_thread(DBOS.send, self._waiting[number], 1, "go")

    async def start_parent(self, children: int) -> None:
        await asyncio.to_thread(DBOS.start_workflow, parent, children)


class DBOSDriver(Driver):
    configuration = (
        f"synchronous workflows started in the worker's process, pool of {CONNECTIONS}, LISTEN on PostgreSQL, polling "
        f"every {POLL_SECONDS} s on SQLite (default 1 s); a run that waits stays in memory"
    )

    async def prepare(self, url: str) -> None:
        """Its launch creates the tables."""

    @asynccontextmanager
    async def working(self, url: str) -> AsyncIterator[Runs]:
        DBOS(
            config={
                "name": "workflows",
                "system_database_url": url,
                "sys_db_pool_size": CONNECTIONS,
                "notification_listener_polling_interval_sec": POLL_SECONDS,
                "log_level": "ERROR",
            }
        )
        await asyncio.to_thread(DBOS.launch)
        yield DBOSRuns()
        await asyncio.to_thread(DBOS.destroy)

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return sqlite.ledger(url, ON_SQLITE) if url.startswith("sqlite:") else postgres.ledger(url, ON_POSTGRES)


if __name__ == "__main__":
    main(DBOSDriver())
