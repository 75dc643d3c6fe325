"""A store under test, driven by short calls and read in the vocabulary of one source document."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

import tenure
from tenure.client.admin import JobAdmin
from tenure.seams import Seams
from tenure.stores import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract import DatabaseClock
from tenure.testing.driver import OPERATOR, Driver
from tenure.vocabularies import TranslatedEvent, vocabulary
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.support.databases import Database
from tests.support.manual_postgres import PostgresClock
from tools.requirement_marks import proofs_in
from tools.requirement_sentences import chapters, gaps


class HandWritten(Exception):
    """The database refused a hand-written statement."""


@dataclass(slots=True)
class System:
    """A store with a manual database clock, and its driver."""

    database: Database
    store: Store
    clock: DatabaseClock
    drive: Driver
    words: str = "contract"

    async def shown(self, job_id: UUID) -> dict[str, Any]:
        """The job in the source's vocabulary."""
        job, events = await self.drive.seen(job_id)
        assert job is not None
        return vocabulary(self.words).job(job, events)

    async def reported(self, job_id: UUID) -> list[TranslatedEvent]:
        """Its whole log in the source's vocabulary."""
        job, events = await self.drive.seen(job_id)
        assert job is not None
        return vocabulary(self.words).translate_log(job.origin, events)

    async def names(self, job_id: UUID) -> list[str]:
        return [one.name for one in await self.reported(job_id)]

    async def recover(self) -> int:
        """One scan of the recovery worker."""
        return await RecoveryWorker(self.store, Seams(clock=ManualClock()), name="mender").scan()

    def operator(self) -> JobAdmin:
        return JobAdmin(self.store, actor=OPERATOR)

    def by_hand(self, statement: str, **values: Any) -> None:
        """Hand-written SQL, with all guards on. `{jobs}` and `{events}` stand for the tables, `:name` for a value.
        HandWritten where a guard refuses it; an error in the SQL itself is raised as it is."""
        try:
            if self.database.is_sqlite:
                with closing(sqlite3.connect(self.database.path, timeout=30)) as connection, connection:
                    connection.execute(_named(statement, "tenure_"), values)
            else:
                with psycopg.connect(self.database.url) as session:
                    session.execute(_with_percent(_named(statement, "tenure."), values).encode(), values)
        except psycopg.ProgrammingError:
            raise
        except (sqlite3.IntegrityError, psycopg.DatabaseError) as refusal:
            raise HandWritten(str(refusal)) from refusal


def _named(statement: str, prefix: str) -> str:
    return statement.format(jobs=f"{prefix}jobs", events=f"{prefix}events")


def _with_percent(statement: str, values: dict[str, Any]) -> str:
    for name in values:
        statement = statement.replace(f":{name}", f"%({name})s")
    return statement


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[tuple[Store, DatabaseClock]]:
    """The store of a database, and its manual clock."""
    if database.is_sqlite:
        clock = ManualClock()
        local = SqliteStore(database.path, database_clock=clock.now)
        await local.migrate()
        await local.open()
        try:
            yield local, clock
        finally:
            await local.close()
        return
    remote, moved = PostgresStore.from_url(database.url), PostgresClock(database.url)
    await remote.open()
    try:
        yield remote, moved
    finally:
        await remote.close()
        moved.close()


async def reported_by(app: tenure.App, job_id: UUID, words: str) -> list[TranslatedEvent]:
    """The history of a job of a real app."""
    store = await app.store()
    job = (await store.read([job_id]))[job_id]
    log = (await store.history([job_id]))[job_id]
    return vocabulary(words).translate_log(job.origin, log)


async def word_of(app: tenure.App, job_id: UUID, words: str) -> str:
    """The status of a job of a real app in the source's vocabulary."""
    store = await app.store()
    job = (await store.read([job_id]))[job_id]
    log = (await store.history([job_id]))[job_id]
    return vocabulary(words).status(job, log)


def check_complete(prefix: str, source: str, path: str) -> None:
    """Every requirement of a source is proven by a test of its file, or listed with what is missing in
    tools/requirements_gaps.toml. One that is partly built may be both."""
    [chapter] = [one for one in chapters() if one.prefix == prefix]
    shown = {proof.requirement for proof in proofs_in(source, path)}
    own = {number for number in shown if number.startswith(f"{prefix}-")}
    missing = {number for number in gaps() if number.startswith(f"{prefix}-")}
    assert own | missing == set(chapter.requirements), "a requirement is neither shown nor listed as missing"
