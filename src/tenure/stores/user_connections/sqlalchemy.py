"""SQLAlchemy's connections and sessions, sync and async, on PostgreSQL, pysqlite and aiosqlite.

On PostgreSQL each statement runs through SQLAlchemy, which begins the driver's transaction with the first one. On
SQLite statements run on the driver's own connection, once SQLAlchemy has begun a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection, resolve
from tenure.stores.user_connections.sqlite import run_on_aiosqlite

T = TypeVar("T")


class SqlalchemyConnection(UserConnection):
    """A connection, or a session, whose current connection is used. `run_sync` of an async one passes sync ones."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.is_async = _is_async(connection)
        has_connection = hasattr(connection, "sync_connection") if self.is_async else isinstance(connection, Connection)
        self._is_session = not has_connection

    async def _current(self) -> Any:
        return await resolve(self._connection.connection()) if self._is_session else self._connection

    async def _run(self, work: Callable[[Connection], T]) -> T:
        current = await self._current()
        result: T = await current.run_sync(work) if self.is_async else work(current)
        return result

    async def dialect(self) -> str:
        return str((await self._current()).dialect.name)

    async def fetch_text(self, sql: str, parameter: str) -> str:
        statement = text(sql.replace("$1", ":parameter"))
        result = await resolve((await self._current()).execute(statement, {"parameter": parameter}))
        return str(result.scalar_one())

    async def run_on_sqlite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        driver = await self._run(_driver_connection)
        if isinstance(driver, sqlite3.Connection):
            return work(driver)
        result = run_on_aiosqlite(driver, work)
        if self.is_async:
            return await result
        # A sync connection on aiosqlite is inside of `run_sync`, whose greenlet awaits in its place.
        from sqlalchemy.util import await_only

        return await_only(result)

    async def flush(self) -> None:
        if self._is_session:
            await resolve(self._connection.flush())

    async def begin(self) -> None:
        await self._run(_begin)


def _is_async(connection: Any) -> bool:
    """Whether its class is one of `sqlalchemy.ext.asyncio`, which cannot be imported where greenlet is missing."""
    return any(class_.__module__.startswith("sqlalchemy.ext.asyncio") for class_ in type(connection).__mro__)


def _driver_connection(connection: Connection) -> Any:
    # SQLAlchemy begins with the first statement that it sees. Without one, its `commit` would do nothing.
    if not connection.in_transaction():
        connection.execute(text("select 1"))
    return connection.connection.driver_connection


def _begin(connection: Connection) -> None:
    _driver_connection(connection)
    # Private, because the public ways ask the server, or exist only in versions after 2.0.
    if connection._is_autocommit_isolation():  # noqa: SLF001
        problem = "is in autocommit mode, so its statements do not form a transaction"
        raise InvalidInput("connection", f"{problem}; use an isolation level other than AUTOCOMMIT")
