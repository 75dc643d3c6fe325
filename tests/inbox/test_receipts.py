"""A receipt is written with the receiver's own effect: both or neither, and a repeated message applies nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.errors import InvalidInput
from tenure.inbox import CREATE_TABLE, record_receipt, record_receipt_async

EFFECT = "insert into effects (message_id) values ('m1')"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "receiver.db"
    with sqlite3.connect(path) as connection:
        connection.execute(CREATE_TABLE)
        connection.execute("create table effects (message_id text)")
    connection.close()
    yield path
    with sqlite3.connect(path) as connection:
        assert connection.execute("select message_id from effects").fetchall() == [("m1",)]
        assert connection.execute("select message_id from webhook_receipts").fetchall() == [("m1",)]
    connection.close()


@pytest.fixture
async def dsn(postgres_dsn: str) -> AsyncIterator[str]:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        await connection.execute(CREATE_TABLE)
        await connection.execute("create table effects (message_id text)")
        yield postgres_dsn
        assert [tuple(row) for row in await connection.fetch("select message_id from effects")] == [("m1",)]
    finally:
        await connection.close()


def check_applied_once(connection: Any, execute: Any) -> None:
    """The first transaction fails after its effect, the second is committed, the third finds the receipt."""
    assert record_receipt(connection, "m1")
    execute(EFFECT)
    connection.rollback()
    assert record_receipt(connection, "m1")
    execute(EFFECT)
    connection.commit()
    assert not record_receipt(connection, "m1")
    connection.rollback()


@pytest.mark.requirement("WC-07")
def test_sqlite3_applies_a_message_once(file: Path) -> None:
    connection = sqlite3.connect(file)
    check_applied_once(connection, connection.execute)
    connection.close()


def test_sqlalchemy_applies_a_message_once(file: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        check_applied_once(connection, connection.exec_driver_sql)
    engine.dispose()


@pytest.mark.requirement("WC-07")
async def test_psycopg_applies_a_message_once(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        check_applied_once(connection, connection.execute)


async def test_an_async_psycopg_connection_applies_a_message_once(dsn: str) -> None:
    connection = await psycopg.AsyncConnection.connect(dsn)
    assert await record_receipt_async(connection, "m1")
    await connection.execute(EFFECT)
    await connection.commit()
    assert not await record_receipt_async(connection, "m1")
    await connection.close()


async def test_asyncpg_applies_a_message_once(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    failed = connection.transaction()
    await failed.start()
    assert await record_receipt_async(connection, "m1")
    await connection.execute(EFFECT)
    await failed.rollback()
    async with connection.transaction():
        assert await record_receipt_async(connection, "m1")
        await connection.execute(EFFECT)
    async with connection.transaction():
        assert not await record_receipt_async(connection, "m1")
    await connection.close()


async def test_an_async_sqlalchemy_connection_applies_a_message_once(file: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    for first in (True, False):
        async with engine.begin() as connection:
            assert await record_receipt_async(connection, "m1") is first
            if first:
                await connection.exec_driver_sql(EFFECT)
    await engine.dispose()


async def test_aiosqlite_applies_a_message_once(file: Path) -> None:
    async with aiosqlite.connect(file) as connection:
        assert await record_receipt_async(connection, "m1")
        await connection.execute(EFFECT)
        await connection.commit()
        assert not await record_receipt_async(connection, "m1")
        await connection.rollback()


async def test_a_second_request_waits_for_the_first_and_applies_it_if_that_is_rolled_back(dsn: str) -> None:
    with psycopg.connect(dsn) as first:
        assert record_receipt(first, "m1")
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            await connection.execute("set local lock_timeout = '50ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                async with connection.transaction():
                    await record_receipt_async(connection, "m1")
            first.rollback()
            assert await record_receipt_async(connection, "m1")
            await connection.execute(EFFECT)
        await connection.close()


async def test_a_connection_that_would_commit_the_receipt_alone_is_refused(postgres_dsn: str) -> None:
    with sqlite3.connect(":memory:", isolation_level=None) as plain:
        plain.execute(CREATE_TABLE)
        with pytest.raises(InvalidInput, match="begin a transaction"):
            record_receipt(plain, "m1")
        plain.execute("begin")
        assert record_receipt(plain, "m1")
    plain.close()
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(CREATE_TABLE)
        with pytest.raises(InvalidInput, match="begin a transaction"):
            record_receipt(connection, "m1")
        with connection.transaction():
            assert record_receipt(connection, "m1")
    own = await asyncpg.connect(postgres_dsn)
    with pytest.raises(InvalidInput, match="begin a transaction"):
        await record_receipt_async(own, "m2")
    await own.close()


async def test_another_connection_is_refused_by_name(postgres_dsn: str) -> None:
    with pytest.raises(InvalidInput, match=r"record_receipt takes a connection of .*, not builtins\.object"):
        record_receipt(object(), "m1")
    own = await asyncpg.connect(postgres_dsn)
    with pytest.raises(InvalidInput, match="record_receipt takes"):
        record_receipt(own, "m1")
    await own.close()
    plain = sqlite3.connect(":memory:")
    with pytest.raises(InvalidInput, match="record_receipt_async takes"):
        await record_receipt_async(plain, "m1")
    plain.close()
