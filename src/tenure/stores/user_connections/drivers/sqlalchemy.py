"""Sessions and connections of SQLAlchemy, on any driver for PostgreSQL, on pysqlite and on aiosqlite.

On PostgreSQL every statement goes through SQLAlchemy, which begins the driver's transaction with the first one. On
SQLite the driver's connection is used, once SQLAlchemy knows that a transaction has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only

from tenure.errors import InvalidInput
from tenure.stores.user_connections.drivers.sqlite import run_on_its_thread
from tenure.stores.user_connections.protocol import Question, statement

T = TypeVar("T")

_NOTHING = text("select 1")


class BorrowedConnection:
    """A connection of an engine. `AsyncSession.run_sync` and its like hand over such ones too."""

    is_async = False
    name = "sqlalchemy.Connection"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _current(self) -> Connection:
        return self._connection

    async def dialect(self) -> str:
        return self._current().dialect.name

    async def ask(self, question: Question, body: str) -> str:
        return str(self._current().execute(text(statement(question, ":request")), {"request": body}).scalar_one())

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._current()
        _know_of_transaction(connection)
        driver: Any = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            return work(driver)
        result: T = await_only(run_on_its_thread(driver, work))
        return result

    async def flush(self) -> None:
        return None

    async def begin(self) -> None:
        _begin(self._current())

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()


class BorrowedSession(BorrowedConnection):
    """A session of the ORM, also a scoped one: its current connection for the bind that it has."""

    name = "sqlalchemy.orm.Session"

    def __init__(self, session: Session | scoped_session[Any]) -> None:
        self._session = session

    def _current(self) -> Connection:
        return self._session.connection()

    async def flush(self) -> None:
        self._session.flush()

    async def commit(self) -> None:
        self._session.commit()

    async def rollback(self) -> None:
        self._session.rollback()


class BorrowedAsyncConnection:
    """A connection of an async engine."""

    is_async = True
    name = "sqlalchemy.ext.asyncio.AsyncConnection"

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def _current(self) -> AsyncConnection:
        return self._connection

    async def dialect(self) -> str:
        return (await self._current()).dialect.name

    async def ask(self, question: Question, body: str) -> str:
        connection = await self._current()
        result = await connection.execute(text(statement(question, ":request")), {"request": body})
        return str(result.scalar_one())

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = await self._current()
        await connection.run_sync(_know_of_transaction)
        return await run_on_its_thread((await connection.get_raw_connection()).driver_connection, work)

    async def flush(self) -> None:
        return None

    async def begin(self) -> None:
        await (await self._current()).run_sync(_begin)

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()


class BorrowedAsyncSession(BorrowedAsyncConnection):
    """An async session of the ORM, also a scoped one."""

    name = "sqlalchemy.ext.asyncio.AsyncSession"

    def __init__(self, session: AsyncSession | async_scoped_session[Any]) -> None:
        self._session = session

    async def _current(self) -> AsyncConnection:
        return await self._session.connection()

    async def flush(self) -> None:
        await self._session.flush()

    async def commit(self) -> None:
        await self._session.commit()

    async def rollback(self) -> None:
        await self._session.rollback()


def _know_of_transaction(connection: Connection) -> None:
    """SQLAlchemy begins with the first statement that it sees. Without one, its `commit` would do nothing."""
    if not connection.in_transaction():
        connection.execute(_NOTHING)


def _begin(connection: Connection) -> None:
    """With the isolation level AUTOCOMMIT there is no transaction, whatever SQLAlchemy makes of its own `begin`."""
    _know_of_transaction(connection)
    if connection._is_autocommit_isolation():  # noqa: SLF001 - its public kin ask the server, or came later than 2.0
        problem = "is in autocommit mode, so that nothing done with it belongs together"
        raise InvalidInput("connection", f"{problem}; use one whose isolation level is not AUTOCOMMIT")
