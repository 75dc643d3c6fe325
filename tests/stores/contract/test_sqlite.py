"""SQLite passes the kit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.stores.contract import Store
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract import StoreContract


@pytest.mark.requirement("LC-13")
class TestSqliteStore(StoreContract):
    sql_prefix = "tenure_"

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "jobs.db", database_clock=clock.now)
        await store.migrate()
        await store.open()
        yield store
        await store.close()
