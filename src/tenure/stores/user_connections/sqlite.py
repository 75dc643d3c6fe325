"""Connections of the standard library's sqlite3, and of aiosqlite, which runs one on a thread of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from tenure.stores.user_connections.protocol import UserConnection

T = TypeVar("T")


class SqliteConnection(UserConnection):
    """A `sqlite3.Connection` in any of its transaction modes."""

    _dialect = "sqlite"

    async def run_on_sqlite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._connection)

    async def begin(self) -> None:
        await self.run_on_sqlite(_begin)

    async def commit(self) -> None:
        await self.run_on_sqlite(lambda connection: _end(connection, "commit"))

    async def rollback(self) -> None:
        await self.run_on_sqlite(lambda connection: _end(connection, "rollback"))


class AiosqliteConnection(SqliteConnection):
    """An `aiosqlite.Connection`."""

    is_async = True

    async def run_on_sqlite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await run_on_aiosqlite(self._connection, work)


async def run_on_aiosqlite(connection: Any, work: Callable[[sqlite3.Connection], T]) -> T:
    # Private, because no public method of aiosqlite runs more than one statement on its thread.
    result: T = await connection._execute(work, connection._conn)  # noqa: SLF001
    return result


def _begin(connection: sqlite3.Connection) -> None:
    # Immediate: a transaction that has read may not be able to take the write lock later.
    if not connection.in_transaction:
        connection.execute("begin immediate")


def _end(connection: sqlite3.Connection, how: Literal["commit", "rollback"]) -> None:
    # With `autocommit=True`, Python's own `commit()` and `rollback()` do nothing.
    if getattr(connection, "autocommit", None) is not True:
        connection.commit() if how == "commit" else connection.rollback()
    elif connection.in_transaction:
        connection.execute(how)
