"""User connections of each supported kind, on databases with tenure's schema and a table of the user."""

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
from tests.support.user_connections import CONNECTION_KINDS, ConnectionUser, connection_kinds

T = TypeVar("T")
NOTES = "create table notes (says text)"


async def migrate(database: Database) -> None:
    async with database.opened():
        pass


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: Postgres) -> Iterator[Database]:
    """A migrated database for tests that use names of their own. Creating one for each would dominate the run time."""
    dsn = postgres_server.create_database()
    prepare(Database(dsn))
    yield Database(dsn)
    postgres_server.drop_database(dsn)


@pytest.fixture
def postgres(postgres_dsn: str) -> Database:
    """A migrated database for one test."""
    prepare(Database(postgres_dsn))
    return Database(postgres_dsn)


def prepare(database: Database) -> None:
    asyncio.run(migrate(database))
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(NOTES)


@pytest.fixture
def own_name() -> str:
    """The name that distinguishes the jobs and notes of this test in a shared database."""
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
    """An event loop that runs for asynchronous connections only."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=[*connection_kinds(sqlite=False), *connection_kinds(sqlite=True)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest) -> Database:
    """The database of this kind of connection, with tenure's schema and the table `notes`."""
    found: Database = request.getfixturevalue("sqlite" if kind.startswith("sqlite") else "shared_postgres")
    return found


@pytest.fixture
def user(kind: str, database: Database, runner: asyncio.Runner) -> Iterator[ConnectionUser]:
    with CONNECTION_KINDS[kind](database.url, runner) as user:
        yield user


@pytest.fixture
def look(database: Database, runner: asyncio.Runner) -> Callable[[Callable[[Store], Awaitable[T]]], T]:
    """Read or write through another store, on connections of its own."""

    def run(what: Callable[[Store], Awaitable[T]]) -> T:
        async def inside() -> T:
            # Without migration, which on SQLite would wait for the open transaction of the user.
            store = store_for(database.url)
            await store.open()
            try:
                return await what(store)
            finally:
                await store.close()

        return runner.run(inside())

    return run


@pytest.fixture
def note(own_name: str) -> str:
    """A statement of the user."""
    return f"insert into notes values ('{own_name}')"


@pytest.fixture
def notes(database: Database, own_name: str) -> Callable[[], int]:
    """Count the committed notes of this test."""
    counted = f"select count(*) from notes where says = '{own_name}'"

    def count() -> int:
        if database.is_sqlite:
            with closing(sqlite3.connect(database.path)) as connection:
                return int(connection.execute(counted).fetchone()[0])
        with psycopg.connect(database.url) as other:
            [found] = other.execute(counted.encode()).fetchone() or (0,)
            return int(found)

    return count
