"""Which kind of connection this is, by the names of its classes: no driver is imported that its owner has not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import Driver

_KINDS = {
    ("aiosqlite", "Connection"): "sqlite:BorrowedAiosqlite",
    ("asyncpg", "Connection"): "asyncpg:BorrowedAsyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg:BorrowedAsyncpg",
    ("django", "BaseDatabaseWrapper"): "django:BorrowedDjango",
    ("django", "ConnectionProxy"): "django:BorrowedDjango",
    ("psycopg", "AsyncConnection"): "psycopg:BorrowedAsyncPsycopg",
    ("psycopg", "Connection"): "psycopg:BorrowedPsycopg",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy:BorrowedAsyncConnection",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy:BorrowedAsyncSession",
    ("sqlalchemy", "Connection"): "sqlalchemy:BorrowedConnection",
    ("sqlalchemy", "Session"): "sqlalchemy:BorrowedSession",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy:BorrowedAsyncSession",
    ("sqlalchemy", "scoped_session"): "sqlalchemy:BorrowedSession",
    ("sqlite3", "Connection"): "sqlite:BorrowedSqlite",
}

SUPPORTED = (
    "psycopg's Connection and AsyncConnection; asyncpg's Connection, also a pool's; SQLAlchemy's Session, Connection, "
    "AsyncSession and AsyncConnection; sqlite3's and aiosqlite's Connection; Django's connection and connections[alias]"
)


def borrow(connection: Any) -> Driver:
    """The connection as we use it."""
    for class_ in type(connection).__mro__:
        package = class_.__module__.partition(".")[0]
        if (kind := _KINDS.get((package, class_.__name__))) is not None:
            module, _, name = kind.partition(":")
            borrowed: Driver = getattr(import_module(f"tenure.stores.user_connections.drivers.{module}"), name)(
                connection
            )
            return borrowed
    given = type(connection)
    raise InvalidInput(
        "connection",
        f"{given.__module__}.{given.__qualname__} is not a connection that tenure can use; supported are {SUPPORTED}",
    )
