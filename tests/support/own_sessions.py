"""Sessions of each kind that a job function opens and passes to `ctx.commit(conn=…)`."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support.user_connections import django_connections

TABLE = "create table effects (note text not null)"


class SyncSession(NamedTuple):
    """A synchronous session, and how its user runs a statement."""

    connection: Any
    run: Callable[[str], Any]


class AwaitedSession(NamedTuple):
    """A session whose statements are awaited."""

    connection: Any
    run: Callable[[str], Awaitable[Any]]


@contextmanager
def psycopg_sync(url: str) -> Iterator[SyncSession]:
    with psycopg.connect(url) as connection:
        yield SyncSession(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def psycopg_autocommit(url: str) -> Iterator[SyncSession]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield SyncSession(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[SyncSession]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session:
            yield SyncSession(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        engine.dispose()


@contextmanager
def django(url: str) -> Iterator[SyncSession]:
    connections = django_connections(url)

    def run(sql: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql)

    try:
        yield SyncSession(connections["default"], run)
    finally:
        connections.close_all()


@contextmanager
def sqlite_sync(url: str) -> Iterator[SyncSession]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        yield SyncSession(connection, connection.execute)


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[AwaitedSession]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield AwaitedSession(connection, lambda sql: connection.execute(sql.encode()))


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[AwaitedSession]:
    connection = await asyncpg.connect(url)
    try:
        yield AwaitedSession(connection, connection.execute)
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[AwaitedSession]:
    driver = "sqlite+aiosqlite:" if url.startswith("sqlite") else "postgresql+asyncpg:"
    engine = create_async_engine(driver + url.partition(":")[2])
    try:
        async with AsyncSession(engine) as session:
            yield AwaitedSession(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlite_aiosqlite(url: str) -> AsyncIterator[AwaitedSession]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        yield AwaitedSession(connection, connection.execute)


@asynccontextmanager
async def psycopg_in_async_code(url: str) -> AsyncIterator[AwaitedSession]:
    with psycopg_sync(url) as own:
        yield AwaitedSession(own.connection, _as_awaited(own))


@asynccontextmanager
async def sqlite_in_async_code(url: str) -> AsyncIterator[AwaitedSession]:
    with sqlite_sync(url) as own:
        yield AwaitedSession(own.connection, _as_awaited(own))


def _as_awaited(own: SyncSession) -> Callable[[str], Awaitable[Any]]:
    async def run(sql: str) -> Any:
        return own.run(sql)

    return run


@dataclass(frozen=True, slots=True)
class SessionKind:
    """A kind of session on one of the databases."""

    name: str
    sqlite: bool
    sync: Callable[[str], AbstractContextManager[SyncSession]] | None = None
    awaited: Callable[[str], AbstractAsyncContextManager[AwaitedSession]] | None = None

    def __str__(self) -> str:
        return f"{'sqlite' if self.sqlite else 'postgres'}-{self.name}"


KINDS = (
    SessionKind("psycopg", sqlite=False, sync=psycopg_sync),
    SessionKind("psycopg-autocommit", sqlite=False, sync=psycopg_autocommit),
    SessionKind("psycopg-async", sqlite=False, awaited=psycopg_async),
    SessionKind("psycopg-in-async-code", sqlite=False, awaited=psycopg_in_async_code),
    SessionKind("asyncpg", sqlite=False, awaited=asyncpg_connection),
    SessionKind("session", sqlite=False, sync=sqlalchemy_session),
    SessionKind("async-session", sqlite=False, awaited=sqlalchemy_async_session),
    SessionKind("django", sqlite=False, sync=django),
    SessionKind("sqlite3", sqlite=True, sync=sqlite_sync),
    SessionKind("sqlite3-in-async-code", sqlite=True, awaited=sqlite_in_async_code),
    SessionKind("aiosqlite", sqlite=True, awaited=sqlite_aiosqlite),
    SessionKind("session", sqlite=True, sync=sqlalchemy_session),
    SessionKind("async-session", sqlite=True, awaited=sqlalchemy_async_session),
    SessionKind("django", sqlite=True, sync=django),
)
