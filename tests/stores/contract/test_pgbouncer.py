"""PostgreSQL behind PgBouncer in transaction mode passes the kit, wherever PgBouncer is found."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tenure.stores.contract import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract import StoreContract
from tests.support.manual_postgres import PostgresClock
from tests.support.postgres import PgBouncer


@pytest.mark.deep
class TestPostgresStoreBehindPgBouncer(StoreContract):
    sql_prefix = "tenure."

    @pytest.fixture
    def clock(self, postgres_clock: PostgresClock) -> PostgresClock:
        return postgres_clock

    @pytest.fixture
    async def store(self, pgbouncer: PgBouncer, manual_dsn: str) -> AsyncIterator[Store]:
        store = PostgresStore.from_url(f"{pgbouncer.dsn_like(manual_dsn)}?pooler=transaction")
        await store.open()
        yield store
        await store.close()
