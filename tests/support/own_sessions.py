"""Sessions that a job's function opens for itself, one of each kind, to be passed to `ctx.commit(conn=…)`."""

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


class Plain(NamedTuple):
    """A session that blocks, and how its owner runs a statement."""

    connection: Any
    run: Callable[[str], Any]


class Awaited(NamedTuple):
    """A session whose statements are waited for."""

    connection: Any
    run: Callable[[str], Awaitable[Any]]


@contextmanager
def psycopg_plain(url: str) -> Iterator[Plain]:
    with psycopg.connect(url) as connection:
        yield Plain(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def psycopg_autocommit(url: str) -> Iterator[Plain]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield Plain(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Plain]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session:
            yield Plain(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        engine.dispose()


@contextmanager
def django(url: str) -> Iterator[Plain]:
    connections = django_connections(url)

    def run(sql: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql)

    try:
        yield Plain(connections["default"], run)
    finally:
        connections.close_all()


@contextmanager
def sqlite_plain(url: str) -> Iterator[Plain]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        yield Plain(connection, connection.execute)


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Awaited]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Awaited(connection, lambda sql: connection.execute(sql.encode()))


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Awaited]:
    connection = await asyncpg.connect(url)
    try:
        yield Awaited(connection, connection.execute)
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Awaited]:
    driver = "sqlite+aiosqlite:" if url.startswith("sqlite") else "postgresql+asyncpg:"
    engine = create_async_engine(driver + url.partition(":")[2])
    try:
        async with AsyncSession(engine) as session:
            yield Awaited(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlite_aiosqlite(url: str) -> AsyncIterator[Awaited]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        yield Awaited(connection, connection.execute)


@asynccontextmanager
async def psycopg_in_async_code(url: str) -> AsyncIterator[Awaited]:
    with psycopg_plain(url) as own:
        yield Awaited(own.connection, _as_awaited(own))


@asynccontextmanager
async def sqlite_in_async_code(url: str) -> AsyncIterator[Awaited]:
    with sqlite_plain(url) as own:
        yield Awaited(own.connection, _as_awaited(own))


def _as_awaited(own: Plain) -> Callable[[str], Awaitable[Any]]:
    async def run(sql: str) -> Any:
        return own.run(sql)

    return run


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of session on one kind of database."""

    name: str
    sqlite: bool
    plain: Callable[[str], AbstractContextManager[Plain]] | None = None
    awaited: Callable[[str], AbstractAsyncContextManager[Awaited]] | None = None

    def __str__(self) -> str:
        return f"{'sqlite' if self.sqlite else 'postgres'}-{self.name}"


KINDS = (
    Kind("psycopg", sqlite=False, plain=psycopg_plain),
    Kind("psycopg-autocommit", sqlite=False, plain=psycopg_autocommit),
    Kind("psycopg-async", sqlite=False, awaited=psycopg_async),
    Kind("psycopg-in-async-code", sqlite=False, awaited=psycopg_in_async_code),
    Kind("asyncpg", sqlite=False, awaited=asyncpg_connection),
    Kind("session", sqlite=False, plain=sqlalchemy_session),
    Kind("async-session", sqlite=False, awaited=sqlalchemy_async_session),
    Kind("django", sqlite=False, plain=django),
    Kind("sqlite3", sqlite=True, plain=sqlite_plain),
    Kind("sqlite3-in-async-code", sqlite=True, awaited=sqlite_in_async_code),
    Kind("aiosqlite", sqlite=True, awaited=sqlite_aiosqlite),
    Kind("session", sqlite=True, plain=sqlalchemy_session),
    Kind("async-session", sqlite=True, awaited=sqlalchemy_async_session),
    Kind("django", sqlite=True, plain=django),
)
