"""Connections of the standard library's `sqlite3`, and of aiosqlite, which keeps one on a thread of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from tenure.stores.user_connections.protocol import Question

T = TypeVar("T")


class _Sqlite:
    """What both kinds say of themselves."""

    async def dialect(self) -> str:
        return "sqlite"

    async def ask(self, question: Question, body: str) -> str:
        raise AssertionError("SQLite is not asked, it is worked on")

    async def flush(self) -> None:
        return None


class BorrowedSqlite(_Sqlite):
    """A plain connection, in any of its transaction modes."""

    is_async = False
    name = "sqlite3.Connection"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._connection)

    async def begin(self) -> None:
        begin(self._connection)

    async def commit(self) -> None:
        end(self._connection, "commit")

    async def rollback(self) -> None:
        end(self._connection, "rollback")


class BorrowedAiosqlite(_Sqlite):
    """A connection that lives on a thread of its own."""

    is_async = True
    name = "aiosqlite.Connection"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await run_on_its_thread(self._connection, work)

    async def begin(self) -> None:
        await self.run(begin)

    async def commit(self) -> None:
        await self.run(lambda connection: end(connection, "commit"))

    async def rollback(self) -> None:
        await self.run(lambda connection: end(connection, "rollback"))


async def run_on_its_thread(connection: Any, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do the work where aiosqlite lets its connection be used. It has no public way to run more than one statement."""
    result: T = await connection._execute(work, connection._conn)  # noqa: SLF001 - see above
    return result


def begin(connection: sqlite3.Connection) -> None:
    """Take the write lock at once: a transaction that reads first may find later that it cannot write any more."""
    if not connection.in_transaction:
        connection.execute("begin immediate")


def end(connection: sqlite3.Connection, how: str) -> None:
    """End the transaction. With `autocommit=True` Python's own `commit()` and `rollback()` do nothing."""
    if getattr(connection, "autocommit", None) is not True:
        connection.commit() if how == "commit" else connection.rollback()
    elif connection.in_transaction:
        connection.execute(how)
