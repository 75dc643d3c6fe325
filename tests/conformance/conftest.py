"""Both stores for every suite: with a manual clock, and plain for real workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import tenure
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tests.conformance.system import System, opened
from tests.support.databases import Database
from tests.support.manual_postgres import copied_database, prepared_database
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def prepared_postgres(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.fixture
def manual_dsn(postgres_server: Postgres, prepared_postgres: str) -> Iterator[str]:
    with copied_database(postgres_server, prepared_postgres) as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind. The PostgreSQL one is migrated, and has a manual clock."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("manual_dsn"))


@pytest.fixture
async def system(request: pytest.FixtureRequest, ground: Database) -> AsyncIterator[System]:
    """An open store on it, with the vocabulary of the suite. After the test, its log must explain every row."""
    async with opened(ground) as (store, clock):
        yield System(ground, store, clock, Driver(store), request.module.WORDS)
        await check_store(store)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind, not migrated."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    """An app on each kind of database, for a real worker."""
    async with database.opened():
        pass
    app = tenure.App(database.url, version="2026.11")
    yield app
    await app.close()
