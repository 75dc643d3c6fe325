"""On PostgreSQL a claim waits for no row that another transaction has locked."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract.outbox import claim, endpoint, post
from tenure.testing.driver import Driver

LIMIT_SECONDS = 60.0
LOCK_ADA = "select from tenure.pending where aggregate = 'ada' for update"


@pytest.mark.requirement("WC-07")
async def test_a_claim_skips_a_locked_stream_and_leases_it_at_the_next_poll(postgres_dsn: str) -> None:
    store = PostgresStore.from_url(postgres_dsn)
    await store.migrate()
    await store.open()
    try:
        await endpoint(store)
        await post(Driver(store), ("paid", "ada"), ("paid", "bob"))
        async with await psycopg.AsyncConnection.connect(postgres_dsn) as other:
            await other.execute(LOCK_ADA)
            async with asyncio.timeout(LIMIT_SECONDS):
                assert [one.aggregate for one in await claim(store)] == ["bob"]
            await other.rollback()
        assert [one.aggregate for one in await claim(store)] == ["ada"]
    finally:
        await store.close()
