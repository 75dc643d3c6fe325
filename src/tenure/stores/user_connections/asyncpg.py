"""asyncpg's connections, also those of its pool. Each call outside of a transaction is a transaction of its own."""

from __future__ import annotations

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection

_BEGUN_ELSEWHERE = "is in a transaction that was begun elsewhere, so tenure cannot end it"


class AsyncpgConnection(UserConnection):
    """asyncpg ends a transaction by its own context manager, so only a transaction that `begin` opened is ended."""

    is_async = True
    _dialect = "postgresql"
    _begun = False

    async def fetch_text(self, sql: str, parameter: str) -> str:
        return str(await self._connection.fetchval(sql, parameter))

    async def begin(self) -> None:
        if self._connection.is_in_transaction():
            raise InvalidInput("connection", f"{_BEGUN_ELSEWHERE}; open the commit block outside of that `async with`")
        await self._connection.execute("begin")
        self._begun = True

    async def commit(self) -> None:
        self._require_begun()
        await self._connection.execute("commit")
        self._begun = False

    async def rollback(self) -> None:
        self._require_begun()
        self._begun = False
        # A commit that failed has ended the transaction already.
        if self._connection.is_in_transaction():
            await self._connection.execute("rollback")

    def _require_begun(self) -> None:
        if not self._begun:
            raise InvalidInput("connection", f"{_BEGUN_ELSEWHERE}; leave the `async with` around it")
