"""Django's connections, on PostgreSQL and SQLite. Each call outside of `atomic` is a transaction of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection

T = TypeVar("T")


class DjangoConnection(UserConnection):
    """`django.db.connection` or `connections[alias]`. Django itself refuses it on a thread that runs an event loop."""

    _autocommit_disabled = False

    async def dialect(self) -> str:
        return str(self._connection.vendor)

    async def fetch_text(self, sql: str, parameter: str) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute(sql.replace("$1", "%s"), [parameter])
            return str(cursor.fetchone()[0])

    async def run_on_sqlite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # A cursor connects if necessary, and refuses a transaction that Django has marked as broken.
        with self._connection.cursor() as cursor:
            cursor.execute("select 1")
        return work(self._connection.connection)

    async def begin(self) -> None:
        if self._connection.in_atomic_block:
            problem = "is inside `atomic`, which only Django may end; open the commit block outside of it"
            raise InvalidInput("connection", problem)
        if self._connection.get_autocommit():
            self._connection.set_autocommit(False)
            self._autocommit_disabled = True

    async def commit(self) -> None:
        self._connection.commit()
        self._restore_autocommit()

    async def rollback(self) -> None:
        try:
            self._connection.rollback()
        finally:
            self._restore_autocommit()

    def _restore_autocommit(self) -> None:
        if self._autocommit_disabled:
            self._connection.set_autocommit(True)
            self._autocommit_disabled = False
