"""Connections of psycopg 3. Outside of a transaction block, its autocommit mode makes each call its own transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import Question, statement

T = TypeVar("T")


class _Psycopg:
    """What both kinds say of themselves."""

    async def dialect(self) -> str:
        return "postgresql"

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        raise AssertionError("psycopg has no SQLite behind it")

    async def flush(self) -> None:
        return None


class BorrowedPsycopg(_Psycopg):
    """A plain connection. Cursors are our own kind, whatever factories its owner has set."""

    is_async = False
    name = "psycopg.Connection"

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    async def ask(self, question: Question, body: str) -> str:
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement(question, "%s").encode(), (body,))
            return _answer(cursor.fetchone())

    async def begin(self) -> None:
        if _needs_begin(self._connection):
            self._connection.execute("begin")

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()


class BorrowedAsyncPsycopg(_Psycopg):
    """The same for a connection that must be waited for."""

    is_async = True
    name = "psycopg.AsyncConnection"

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def ask(self, question: Question, body: str) -> str:
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement(question, "%s").encode(), (body,))
            return _answer(await cursor.fetchone())

    async def begin(self) -> None:
        if _needs_begin(self._connection):
            await self._connection.execute("begin")

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()


def _needs_begin(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """With autocommit off, psycopg begins by itself with the first statement. What its own block has begun, nothing
    else can end."""
    if getattr(connection, "_num_transactions", 0):  # its public ways say so only when it is too late
        problem = "is inside `connection.transaction()`, which only psycopg may end"
        raise InvalidInput("connection", f"{problem}; begin the commit block outside of it")
    return connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE


def _answer(row: tuple[Any, ...] | None) -> str:
    assert row is not None, "a function answers with one row"
    return str(row[0])
