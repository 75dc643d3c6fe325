"""What the first version of the schema wrote is read, explained and carried on by this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.lifecycle.operations import Cancel, Requeue, Stall
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.verify import problems_of
from tenure.stores import migrations_for, script_for
from tenure.stores.contract import JobFilter, Store
from tenure.testing.driver import CLIENT, RECOVERY, Driver
from tests.migration.first_version import checksum_line
from tests.support.databases import Database

FOLDER = Path(__file__).parent


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database as the first version left it."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
        with closing(sqlite3.connect(database.path)) as file:
            file.executescript((FOLDER / "first_version.sqlite.sql").read_text(encoding="utf-8"))
        return database
    database = Database(request.getfixturevalue("postgres_dsn"))
    first = migrations_for(database.url)[0]
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(script_for(database.url, first).encode())
        connection.execute("set session_replication_role = replica")
        connection.execute((FOLDER / "first_version.postgres.sql").read_bytes())
    return database


async def all_jobs(store: Store) -> list[Job]:
    return (await store.find(JobFilter(), limit=1000)).jobs


@pytest.mark.requirement("SM-19")
async def test_the_first_migration_is_the_one_that_the_fixture_was_written_with(database: Database) -> None:
    """Until the first release it may change, and the fixture is written anew. A SQLite fixture has the checksum among
    its rows."""
    if database.is_sqlite:
        async with database.opened() as store:
            state = await store.schema()
        assert (state.applied, state.pending, state.changed) == ([1], [], [])
    else:
        written = (FOLDER / "first_version.postgres.sql").read_text(encoding="utf-8")
        assert written.startswith(checksum_line(database.url))


@pytest.mark.requirement("SM-19")
async def test_rows_and_events_of_the_first_version_are_read_and_explained(database: Database) -> None:
    async with database.opened() as store:
        jobs = await all_jobs(store)
        histories = await store.history([job.id for job in jobs])
    assert {job.status for job in jobs} == set(Status)
    assert [problem for job in jobs for problem in problems_of(job, histories[job.id])] == []
    assert {event.version for events in histories.values() for event in events} == {1}


@pytest.mark.requirement("SM-19")
async def test_jobs_of_the_first_version_run_on_the_current_one(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        before = {job.status: job for job in await all_jobs(store) if not job.committed}
        lost = await drive.apply(before[Status.RUNNING].id, Stall(), Requeue(), actor=RECOVERY)
        assert lost.status is Status.QUEUED
        assert (await drive.apply(before[Status.WAITING].id, Cancel(), actor=CLIENT)).status is Status.CANCELLED
        kinds = ("mail", "queued", "released", "signalled")
        claimed = [job for _ in range(5) for job in await drive.claim(kinds=kinds, limit=10)]
        assert {job.attempt for job in claimed} == {1, 2}
        assert lost.id in {job.id for job in claimed}, "a job that was lost is claimed, if alone"
