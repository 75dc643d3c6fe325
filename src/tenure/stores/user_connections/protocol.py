"""What each kind of connection must be able to do for us."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Literal, Protocol, TypeVar

from tenure.stores import sql_files

T = TypeVar("T")

Question = Literal["enqueue", "commit"]


class Driver(Protocol):
    """A connection that its owner lends us, used in its owner's transaction and on its owner's thread.

    A kind that is not asynchronous never waits for anything in these methods, so that plain code can use
    them without an event loop.
    """

    is_async: bool
    name: str
    """What its owner calls such a connection, for messages."""

    async def dialect(self) -> str:
        """The database behind it, in SQLAlchemy's words: `postgresql`, `sqlite` or one that we do not know."""
        ...

    async def ask(self, question: Question, body: str) -> str:
        """Put a question to PostgreSQL: one text goes in, one text comes out, so that no driver's types matter."""
        ...

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work on SQLite's own connection, on the thread that may use it."""
        ...

    async def flush(self) -> None:
        """Send what its owner has asked for and it has kept back, so that what we write next comes after it."""
        ...

    async def begin(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


@cache
def statement(question: Question, placeholder: str) -> str:
    """The statement of a question, with its one parameter written as the driver wants it."""
    return sql_files.numbered("tenure.stores.user_connections", question).sql.strip().replace("$1", placeholder)
