"""The code of docs/guides/transactions.md works as the page describes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tenure.stores import JobFilter, store_for
from tests.support.databases import Database
from tools.generated import DOCS

ORDERS = "create table orders (customer text)"


def page(database: Database, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's code defines, once it has run."""
    monkeypatch.setenv("TENURE_DATABASE", database.url)
    text = (DOCS / "guides" / "transactions.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {"text": sqlalchemy.text, "Session": Session, "AsyncSession": AsyncSession}
    for block in blocks:
        exec(compile(block, "docs/guides/transactions.md", "exec"), namespace)  # noqa: S102 - our own page
    return namespace


async def customers(database: Database) -> list[str]:
    store = store_for(database.url)
    await store.open()
    try:
        return [job.origin.payload for job in (await store.find(JobFilter(kinds=("confirm",)))).jobs]
    finally:
        await store.close()


def test_the_page_works_on_sqlite(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    code = page(sqlite, monkeypatch)
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.execute(ORDERS)
        code["order_with_sqlite"](connection, "ada")
        assert connection.execute("select customer from orders").fetchall() == [("ada",)]
    assert asyncio.run(customers(sqlite)) == ['{"customer":"ada"}']


async def test_the_page_works_on_postgres(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    code = page(postgres, monkeypatch)
    with psycopg.connect(postgres.url, autocommit=True) as plain:
        plain.execute(ORDERS)
        code["order_with_psycopg"](plain, "ada")
    connection = await asyncpg.connect(postgres.url)
    await code["order_with_asyncpg"](connection, "bob")
    await connection.close()
    engine = create_async_engine(postgres.url.replace("://", "+asyncpg://"))
    async with AsyncSession(engine) as session:
        await code["order_with_sqlalchemy"](session, "eve")
        found = await session.execute(sqlalchemy.text("select customer from orders order by customer"))
        assert list(found.scalars()) == ["ada", "bob", "eve"]
    await engine.dispose()
    assert await customers(postgres) == [f'{{"customer":"{name}"}}' for name in ("ada", "bob", "eve")]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_jobs_of_the_page_commit_on_their_own_sessions(
    kind: str, sqlite: Database, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite if kind == "sqlite" else postgres
    code = page(database, monkeypatch)
    plain, awaited = ("+pysqlite:", "+aiosqlite:") if database.is_sqlite else ("+psycopg:", "+asyncpg:")
    code["engine"] = sqlalchemy.create_engine(database.url.replace(":", plain, 1))
    code["async_engine"] = create_async_engine(database.url.replace(":", awaited, 1))
    async with code["app"] as app:
        async with (await app.store()).transaction(deadline_seconds=5) as tx:
            await tx.execute(ORDERS)
        worker = app.worker(poll_seconds=0.05)
        running = asyncio.create_task(worker.run())
        assert await (await code["charge"].enqueue("ada")).result(30) == "receipt for ada"
        assert await (await code["charge_async"].enqueue("bob")).result(30) is None
        worker.stop()
        await asyncio.wait_for(running, 30)
        async with (await app.store()).transaction(deadline_seconds=5) as tx:
            orders = await tx.fetch("select customer from orders order by customer")
    code["engine"].dispose()
    await code["async_engine"].dispose()
    assert orders == [{"customer": "ada"}, {"customer": "bob"}]
    assert sorted(await customers(database)) == ['{"customer":"ada"}', '{"customer":"bob"}']


def test_the_page_names_every_kind_of_connection() -> None:
    text = (DOCS / "guides" / "transactions.md").read_text(encoding="utf-8")
    for name in ("psycopg", "asyncpg", "SQLAlchemy", "sqlite3", "aiosqlite", "Django"):
        assert name in text
