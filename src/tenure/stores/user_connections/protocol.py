"""The protocol of user connections: what each driver module does with a connection of its library.

A driver knows nothing of jobs. It uses the connection on the thread that calls it.
"""

from __future__ import annotations

import inspect
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenure.errors import InvalidInput

T = TypeVar("T")


class UserConnection(ABC):
    """A connection or session of the user. The methods of a driver with `is_async = False` never suspend."""

    is_async = False
    _dialect = ""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # The library and the class, for error messages.
        self.name = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"

    async def dialect(self) -> str:
        """Return the name of the database: `postgresql`, `sqlite`, or another, which is not supported."""
        return self._dialect

    async def fetch_text(self, sql: str, parameter: str) -> str:
        """Run a PostgreSQL statement that takes one text, `$1`, and returns one: no type depends on the driver."""
        raise AssertionError(f"{self.name} does not connect to PostgreSQL")

    async def run_on_sqlite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with the underlying `sqlite3.Connection`, on the thread that may use it."""
        raise AssertionError(f"{self.name} does not connect to SQLite")

    async def flush(self) -> None:
        """Write the pending changes of a session, so that later statements come after them."""
        return

    @abstractmethod
    async def begin(self) -> None:
        """Open a transaction that `commit` or `rollback` ends, unless one is open. InvalidInput: nothing was begun,
        because only the library can end the transaction that is open, or none can be opened."""

    async def commit(self) -> None:
        await resolve(self._connection.commit())

    async def rollback(self) -> None:
        await resolve(self._connection.rollback())


async def resolve(result: T | Awaitable[T]) -> T:
    """Return the result of a call to a library whose async classes have the same methods as its sync ones."""
    return await result if inspect.isawaitable(result) else result


def run_sync(connection: UserConnection, work: Awaitable[T], *, instead: str) -> T:
    """Run `work`, which awaits this connection and nothing else, on the calling thread. InvalidInput: the connection
    is asynchronous; `instead` is what the user should write."""
    steps = work.__await__()
    if connection.is_async:
        steps.close()
        raise InvalidInput("connection", f"{connection.name} is asynchronous; use `{instead}`")
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise AssertionError(f"the driver of {connection.name} suspended, although it is synchronous")
