"""The real system, driven by short words and read in the words of one source document."""

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
from tools.requirements_page import chapters, proofs_in


class HandWritten(Exception):
    """The database itself refused what somebody wrote by hand."""


@dataclass(slots=True)
class Place:
    """A store whose database's clock the test moves, and what acts upon it."""

    database: Database
    store: Store
    clock: DatabaseClock
    drive: Driver
    words: str = "contract"

    async def shown(self, job_id: UUID) -> dict[str, Any]:
        """The job as the source's object."""
        job, events = await self.drive.seen(job_id)
        assert job is not None
        return vocabulary(self.words).job(job, events)

    async def told(self, job_id: UUID) -> list[TranslatedEvent]:
        """Everything that happened to it, as the source's events."""
        job, events = await self.drive.seen(job_id)
        assert job is not None
        return vocabulary(self.words).translate_log(job.origin, events)

    async def names(self, job_id: UUID) -> list[str]:
        return [one.name for one in await self.told(job_id)]

    async def recover(self) -> int:
        """One scan of the recovery worker."""
        return await RecoveryWorker(self.store, Seams(clock=ManualClock()), name="mender").scan()

    def operator(self) -> JobAdmin:
        return JobAdmin(self.store, actor=OPERATOR)

    def by_hand(self, statement: str, **values: Any) -> None:
        """SQL of somebody with a shell on the database, guards and all. `{jobs}` and `{events}` stand for our tables,
        `:name` for a value. HandWritten where a guard refuses; a mistake in the SQL is none of those."""
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
    """The store of a database, and what moves the time by which it decides."""
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


async def told_by(app: tenure.App, job_id: UUID, words: str) -> list[TranslatedEvent]:
    """The history of a job of a real app."""
    store = await app.store()
    job = (await store.read([job_id]))[job_id]
    log = (await store.history([job_id]))[job_id]
    return vocabulary(words).translate_log(job.origin, log)


def check_complete(prefix: str, source: str, path: str, still_open: dict[str, str]) -> None:
    """Every requirement of a source is shown by a test of its file, or listed there as open with what is missing.

    One that is in part built may be both.
    """
    [chapter] = [one for one in chapters() if one.prefix == prefix]
    shown = {proof.requirement for proof in proofs_in(source, path)}
    own = {number for number in shown if number.startswith(f"{prefix}-")}
    assert own | set(still_open) == set(chapter.requirements), "a requirement is neither shown nor listed as open"
    assert all(still_open.values()), "what is open says what is missing"
