"""Connections of asyncpg, also those lent by its pool. Without a transaction each call is its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import Question, statement

T = TypeVar("T")


class BorrowedAsyncpg:
    """One connection. asyncpg ends a transaction by its own context, so that we end only what we have begun."""

    is_async = True
    name = "asyncpg.Connection"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun = False

    async def dialect(self) -> str:
        return "postgresql"

    async def ask(self, question: Question, body: str) -> str:
        return str(await self._connection.fetchval(statement(question, "$1"), body))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        raise AssertionError("asyncpg has no SQLite behind it")

    async def flush(self) -> None:
        return None

    async def begin(self) -> None:
        if self._connection.is_in_transaction():
            problem = "is in a transaction that was begun elsewhere, so tenure cannot end it"
            raise InvalidInput("connection", f"{problem}; begin the commit block outside of that `async with`")
        await self._connection.execute("begin")
        self._begun = True

    async def commit(self) -> None:
        self._require_begun("commit")
        await self._connection.execute("commit")
        self._begun = False

    async def rollback(self) -> None:
        self._require_begun("rollback")
        self._begun = False
        # A commit that failed has ended it already.
        if self._connection.is_in_transaction():
            await self._connection.execute("rollback")

    def _require_begun(self, how: str) -> None:
        if not self._begun:
            problem = (
                f"its transaction was begun elsewhere, so tenure cannot {how} it; leave the `async with` around it"
            )
            raise InvalidInput("connection", problem)
