"""Unsupported connections, and connections to other databases, are refused with what to do instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import InvalidInput, SchemaMismatch
from tests.support.databases import Database
from tests.support.user_connections import django_connections


def declared(url: str) -> JobFunction[[str], str]:
    @tenure.App(url).job()
    def send(to: str) -> str:
        return to

    return send


class Connection:
    """A class whose name alone is that of a connection."""


def unknown() -> list[Any]:
    engine = sqlalchemy.create_engine("sqlite://")
    return [None, "postgresql://localhost/app", object(), Connection(), engine, sessionmaker(engine), Session]


@pytest.mark.parametrize("given", unknown(), ids=lambda given: type(given).__name__)
def test_an_unsupported_object_is_refused_with_the_list_of_supported_connections(given: Any) -> None:
    with pytest.raises(InvalidInput, match=type(given).__name__) as refusal:
        declared("sqlite:///jobs.db").within(given)
    for known in ("psycopg", "asyncpg", "SQLAlchemy", "sqlite3", "aiosqlite", "Django"):
        assert known in str(refusal.value)


async def test_an_asynchronous_connection_is_not_for_the_sync_form(sqlite: Database) -> None:
    send = declared(sqlite.url)
    async with aiosqlite.connect(sqlite.path) as connection:
        with pytest.raises(
            InvalidInput, match=r"aiosqlite.Connection is asynchronous; use `await ….within\(…\).enqueue"
        ):
            send.within(connection).enqueue_sync("ada")
    engine = create_async_engine(sqlite.url.replace("://", "+aiosqlite://"))
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidInput, match=r"AsyncSession is asynchronous"):
            send.within(session).enqueue_sync("ada")
    await engine.dispose()


async def test_postgres_without_our_schema_is_refused(postgres_dsn: str) -> None:
    send = declared(postgres_dsn)
    with psycopg.connect(postgres_dsn) as plain:
        with pytest.raises(SchemaMismatch, match="tenure migrate"):
            await send.within(plain).enqueue("ada")
        plain.rollback()
        assert plain.execute("select 1").fetchone() == (1,)
    connection = await asyncpg.connect(postgres_dsn)
    with pytest.raises(SchemaMismatch, match="tenure migrate"):
        await send.within(connection).enqueue("ada")
    await connection.close()
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(postgres_dsn.replace("://", f"+{driver}://"))
        async with AsyncSession(engine) as session:
            with pytest.raises(SchemaMismatch, match="tenure migrate"):
                await send.within(session).enqueue("ada")
        await engine.dispose()


def test_django_on_a_database_without_the_schema_is_refused(postgres_dsn: str) -> None:
    connections = django_connections(postgres_dsn)
    with pytest.raises(SchemaMismatch, match="tenure migrate"):
        declared(postgres_dsn).within(connections["default"]).enqueue_sync("ada")
    connections.close_all()


def test_another_sqlite_file_than_the_apps_is_refused(sqlite: Database, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    for place in (other, ":memory:", ""):
        with closing(sqlite3.connect(place)) as connection:
            with pytest.raises(InvalidInput, match=r"leads to .*and the app's jobs are in .*jobs\.db"):
                declared(sqlite.url).within(connection).enqueue_sync("ada")
            assert not connection.in_transaction


def test_the_same_file_under_another_name_is_the_same_file(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    for url, place in (("sqlite:///jobs.db", sqlite.path), (sqlite.url, "link/jobs.db")):
        with closing(sqlite3.connect(place)) as connection:
            assert declared(url).within(connection).enqueue_sync("ada").created


def test_jobs_in_the_memory_of_a_store_cannot_be_enqueued_on_a_connection(sqlite: Database) -> None:
    with closing(sqlite3.connect(sqlite.path)) as connection, pytest.raises(InvalidInput, match=r"memory.*use a file"):
        declared("sqlite://:memory:").within(connection).enqueue_sync("ada")


def test_a_connection_to_the_other_kind_of_database_is_refused(sqlite: Database, postgres: Database) -> None:
    with closing(sqlite3.connect(sqlite.path)) as connection, psycopg.connect(postgres.url) as other:
        with pytest.raises(InvalidInput, match=r"leads to sqlite, and the app's jobs are in postgresql://"):
            declared(postgres.url).within(connection).enqueue_sync("ada")
        with pytest.raises(InvalidInput, match=r"leads to postgresql, and the app's jobs are in sqlite://"):
            declared(sqlite.url).within(other).enqueue_sync("ada")


def test_a_connection_to_an_unsupported_database_is_refused(sqlite: Database) -> None:
    from django.utils.connection import ConnectionProxy

    class Elsewhere:
        vendor = "oracle"

    proxy = ConnectionProxy({"default": Elsewhere()}, "default")
    with pytest.raises(InvalidInput, match="leads to oracle"):
        declared(sqlite.url).within(proxy).enqueue_sync("ada")
