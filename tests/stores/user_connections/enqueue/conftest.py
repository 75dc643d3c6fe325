"""Every kind of connection that can be lent to tenure, on a database of the test's own with a table of the user's."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest

from tenure.stores import Store, store_for
from tests.support.databases import Database
from tests.support.postgres import Postgres
from tests.support.user_connections import LENDERS, Lent, lenders

T = TypeVar("T")
NOTES = "create table notes (says text)"


async def migrate(database: Database) -> None:
    async with database.opened():
        pass


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: Postgres) -> Iterator[Database]:
    """A migrated database for all tests that keep to their own names: one for each would take most of the time."""
    dsn = postgres_server.create_database()
    prepare(Database(dsn))
    yield Database(dsn)
    postgres_server.drop_database(dsn)


@pytest.fixture
def postgres(postgres_dsn: str) -> Database:
    """A migrated database of the test's own."""
    prepare(Database(postgres_dsn))
    return Database(postgres_dsn)


def prepare(database: Database) -> None:
    asyncio.run(migrate(database))
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(NOTES)


@pytest.fixture
def own_name() -> str:
    """What tells this test's jobs and notes from those of others in the same database."""
    return f"own-{uuid4().hex}"


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    asyncio.run(migrate(database))
    with closing(sqlite3.connect(database.path)) as connection:
        connection.execute(NOTES)
    return database


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """An event loop that runs only when it is asked to: plain connections are used without one."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=[*lenders(sqlite=False), *lenders(sqlite=True)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest) -> Database:
    """The database that this kind of connection leads to, with tenure's schema and the table `notes`."""
    found: Database = request.getfixturevalue("sqlite" if kind.startswith("sqlite") else "shared_postgres")
    return found


@pytest.fixture
def lent(kind: str, database: Database, runner: asyncio.Runner) -> Iterator[Lent]:
    with LENDERS[kind](database.url, runner) as lent:
        yield lent


@pytest.fixture
def look(database: Database, runner: asyncio.Runner) -> Callable[[Callable[[Store], Awaitable[T]]], T]:
    """What somebody else sees or does, through a store of their own."""

    def looking(what: Callable[[Store], Awaitable[T]]) -> T:
        async def inside() -> T:
            # Not migrated again: on SQLite that would wait for the very transaction that is looked at from outside.
            store = store_for(database.url)
            await store.open()
            try:
                return await what(store)
            finally:
                await store.close()

        return runner.run(inside())

    return looking


@pytest.fixture
def note(own_name: str) -> str:
    """A statement of the user's own."""
    return f"insert into notes values ('{own_name}')"


@pytest.fixture
def notes(database: Database, own_name: str) -> Callable[[], int]:
    """How many of this test's notes are committed."""
    counted = f"select count(*) from notes where says = '{own_name}'"

    def count() -> int:
        if database.is_sqlite:
            with closing(sqlite3.connect(database.path)) as connection:
                return int(connection.execute(counted).fetchone()[0])
        with psycopg.connect(database.url) as other:
            [found] = other.execute(counted.encode()).fetchone() or (0,)
            return int(found)

    return count
