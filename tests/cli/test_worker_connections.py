"""`tenure worker --processes` on a PostgreSQL role that may have fewer connections than the processes need."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tenure.lifecycle.json_text import encode
from tenure.stores import JobFilter, Store
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.postgres import Postgres, database_of
from tests.support.running_command import SHOP, Started, started, until

PROCESSES = 4
JOBS = 300


class LimitedRole:
    """A database whose owner has a connection limit. The test itself connects as another role."""

    def __init__(self, server: Postgres, dsn: str, store: Store) -> None:
        self._server, self.dsn, self.store = server, dsn, store

    def limit(self, connections: int) -> None:
        self._server.limit_connections(str(urlsplit(self.dsn).username), connections)

    async def enqueue(self) -> None:
        drive, payload = Driver(self.store), encode({"seconds": 0.0})
        await self.store.enqueue([drive.enqueue(kind="nap", payload=payload) for _ in range(JOBS)])

    async def all_succeeded(self) -> None:
        async def ended() -> bool:
            return not any(job.live for job in (await self.store.find(JobFilter(), limit=JOBS + 1)).jobs)

        await until(ended, seconds=90)
        assert {job.status for job in (await self.store.find(JobFilter(), limit=JOBS + 1)).jobs} == {"succeeded"}


@pytest.fixture
async def role(postgres_server: Postgres) -> AsyncIterator[LimitedRole]:
    with postgres_server.owned_database() as dsn:
        async with Database(dsn).opened():
            pass
        async with Database(postgres_server.dsn(database_of(dsn))).opened() as store:
            yield LimitedRole(postgres_server, dsn, store)


def command(role: LimitedRole, folder: Path, *more: str) -> tuple[str, ...]:
    (folder / "shop.py").write_text(SHOP)
    options = ("--poll-seconds", "0.1", "--scan-seconds", "0.3", "--concurrency", "20", *more)
    return ("worker", "shop:app", "--database", role.dsn, *options)


def no_process_ended(workers: Started) -> bool:
    return "restarting in" not in workers.log and "giving up" not in workers.log


@pytest.mark.requirement("WC-05")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("connections", [3, 7])
async def test_processes_without_a_connection_wait_while_the_others_work(
    role: LimitedRole, tmp_path: Path, connections: int
) -> None:
    role.limit(connections)
    with started(*command(role, tmp_path, "--processes", str(PROCESSES)), folder=tmp_path) as workers:
        workers.wait_for_log("worker 1 is up")
        workers.wait_for_log("waiting for the database: .* accepts no further connection", seconds=60)
        await role.enqueue()
        await role.all_succeeded()
        assert no_process_ended(workers), workers.log
        role.limit(-1)
        workers.wait_for_log(r"worker \d is up", times=PROCESSES, seconds=90)
        waited = workers.log.count("waiting for the database")
        workers.wait_for_log(r"database available after \d", times=waited, seconds=30)
        assert 1 <= waited < PROCESSES
        workers.signal(signal.SIGTERM)
        assert workers.ended(seconds=90) == 0, workers.log
    assert no_process_ended(workers), workers.log


@pytest.mark.requirement("WC-05")
async def test_a_worker_that_waits_for_a_connection_can_be_stopped(role: LimitedRole, tmp_path: Path) -> None:
    role.limit(1)
    with started(*command(role, tmp_path), folder=tmp_path) as worker:
        worker.wait_for_log("waiting for the database: .* accepts no further connection")
        worker.signal(signal.SIGTERM)
        assert worker.ended(seconds=30) == 0, worker.log
