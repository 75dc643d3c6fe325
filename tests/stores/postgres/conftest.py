"""Databases with tenure's schema and the real clock, copied from one that was migrated once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver
from tests.support.postgres import Postgres, database_of


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Postgres) -> Iterator[str]:
    dsn = postgres_server.create_database()
    asyncio.run(_migrate(dsn))
    yield database_of(dsn)
    postgres_server.drop_database(dsn)


@pytest.fixture
def dsn(postgres_server: Postgres, migrated_template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    mine = postgres_server.create_database(template=migrated_template)
    yield mine
    postgres_server.drop_database(mine)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore.from_url(dsn)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def drive(store: PostgresStore) -> Driver:
    return Driver(store)


async def _migrate(dsn: str) -> None:
    store = PostgresStore.from_url(dsn)
    await store.migrate()
    await store.close()
