"""Finds the driver of a connection by the names of its classes. Only the library that it belongs to is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection

_SESSIONS = {"Session", "scoped_session", "AsyncSession", "async_scoped_session"}
_DRIVERS = {
    "aiosqlite": ("sqlite", "AiosqliteConnection", {"Connection"}),
    "asyncpg": ("asyncpg", "AsyncpgConnection", {"Connection", "PoolConnectionProxy"}),
    "django": ("django", "DjangoConnection", {"BaseDatabaseWrapper", "ConnectionProxy"}),
    "psycopg": ("psycopg", "PsycopgConnection", {"Connection", "AsyncConnection"}),
    "sqlalchemy": ("sqlalchemy", "SqlalchemyConnection", {"Connection", "AsyncConnection", *_SESSIONS}),
    "sqlite3": ("sqlite", "SqliteConnection", {"Connection"}),
}
"""By library: the module and the class of the driver, and the classes of the library that it takes."""
SUPPORTED = (
    "psycopg's Connection and AsyncConnection; asyncpg's Connection, also a pool's; SQLAlchemy's Session, Connection, "
    "AsyncSession and AsyncConnection; sqlite3's and aiosqlite's Connection; Django's connection and connections[alias]"
)


def detect(connection: Any) -> UserConnection:
    """Return the connection behind the protocol. InvalidInput: it is of no supported library."""
    for class_ in type(connection).__mro__:
        module, driver, classes = _DRIVERS.get(class_.__module__.partition(".")[0], ("", "", ()))
        if class_.__name__ in classes:
            found: UserConnection = getattr(import_module(f"{__package__}.{module}"), driver)(connection)
            return found
    given = type(connection)
    problem = f"{given.__module__}.{given.__qualname__} is not supported"
    raise InvalidInput("connection", f"{problem}; pass one of: {SUPPORTED}")
