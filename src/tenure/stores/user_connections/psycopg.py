"""psycopg's connections, sync and async. In autocommit mode, each call outside of a transaction is one of its own."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection, resolve


class PsycopgConnection(UserConnection):
    """A `Connection` or `AsyncConnection`. Statements run on own cursors, whatever factories the user has set."""

    _dialect = "postgresql"

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self.is_async = isinstance(connection, AsyncConnection)

    async def fetch_text(self, sql: str, parameter: str) -> str:
        cursor: Any = (AsyncCursor if self.is_async else Cursor)(self._connection, row_factory=tuple_row)
        try:
            await resolve(cursor.execute(sql.replace("$1", "%s").encode(), (parameter,)))
            [text] = await resolve(cursor.fetchone())
            return str(text)
        finally:
            await resolve(cursor.close())

    async def begin(self) -> None:
        # Private, because the public ways fail only when such a block is left.
        if getattr(self._connection, "_num_transactions", 0):
            problem = "is inside `connection.transaction()`, which only psycopg may end"
            raise InvalidInput("connection", f"{problem}; open the commit block outside of it")
        # With autocommit off, psycopg begins with the first statement.
        if self._connection.autocommit and self._connection.info.transaction_status is TransactionStatus.IDLE:
            await resolve(self._connection.execute("begin"))
