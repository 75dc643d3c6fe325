"""Django's connections, on PostgreSQL and on SQLite. Outside of `atomic` each call is a transaction of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import Question, statement

T = TypeVar("T")


class BorrowedDjango:
    """`django.db.connection` or `connections[alias]`. Django itself refuses it on a thread that runs an event loop."""

    is_async = False
    name = "Django's connection"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun = False

    async def dialect(self) -> str:
        return str(self._connection.vendor)

    async def ask(self, question: Question, body: str) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute(statement(question, "%s"), [body])
            return str(cursor.fetchone()[0])

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # A cursor connects where that was not done yet, and refuses a transaction that Django knows to be broken.
        with self._connection.cursor() as cursor:
            cursor.execute("select 1")
        return work(self._connection.connection)

    async def flush(self) -> None:
        return None

    async def begin(self) -> None:
        if self._connection.in_atomic_block:
            problem = "is inside `atomic`, which only Django may end; begin the commit block outside of it"
            raise InvalidInput("connection", problem)
        if self._connection.get_autocommit():
            self._connection.set_autocommit(False)
            self._begun = True

    async def commit(self) -> None:
        self._connection.commit()
        self._as_it_was()

    async def rollback(self) -> None:
        try:
            self._connection.rollback()
        finally:
            self._as_it_was()

    def _as_it_was(self) -> None:
        if self._begun:
            self._connection.set_autocommit(True)
            self._begun = False
