"""A SQLite file that another options locks for longer than the leases: jobs are late, and nothing else happens."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.stores.contract import Store
from tests.chaos.checks import check_applied_once, ended, queue
from tests.chaos.processes import WorkerProcesses, until
from tests.support.databases import Database

pytestmark = [pytest.mark.requirement("WC-05", "EL-08", "SM-02"), pytest.mark.timeout(150)]

LEASE_SECONDS = 1.0
POLICY: dict[str, object] = {"lease_seconds": LEASE_SECONDS, "max_attempts": 50, "on_exhausted": "fail"}
JOBS = 120


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'jobs.db'}")


async def test_a_file_that_is_locked_past_all_leases_loses_no_job_and_doubles_none(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    ids = await queue(store, "pay", JOBS, policy=POLICY, seconds=0.3)
    workers = [processes.start(name) for name in ("one", "two")]
    await processes.up(*workers)

    async def some_are_held() -> bool:
        return any(job.leased for job in (await store.read(ids)).values())

    await until(some_are_held, "work is under way")
    with closing(sqlite3.connect(database.path, timeout=30, isolation_level=None)) as another:
        another.execute("begin immediate")
        held = [job for job in (await store.read(ids)).values() if job.leased]

        async def all_leases_are_over() -> bool:
            now = await store.now()
            return all(job.lease_expires_at is not None and job.lease_expires_at < now for job in held)

        await until(all_leases_are_over, "all leases have run out")
        another.execute("rollback")
    assert held
    await ended(store, ids)
    await check_applied_once(store, database, ids)
    assert [worker.exit_code for worker in workers] == [None, None]
