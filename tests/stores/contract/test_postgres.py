"""PostgreSQL passes the kit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenure.stores.contract import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract import StoreContract
from tests.support.manual_postgres import PostgresClock


@pytest.mark.requirement("LC-13")
class TestPostgresStore(StoreContract):
    sql_prefix = "tenure."

    @pytest.fixture
    def clock(self, postgres_clock: PostgresClock) -> PostgresClock:
        return postgres_clock

    @pytest.fixture
    async def store(self, manual_dsn: str) -> AsyncIterator[Store]:
        store = PostgresStore.from_url(manual_dsn)
        await store.open()
        yield store
        await store.close()
