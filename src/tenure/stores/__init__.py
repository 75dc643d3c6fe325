"""The stores. `store_for` returns the one that a URL names."""

from __future__ import annotations

from tenure.errors import InvalidInput
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import EventFilter, EventPage, Finding, JobFilter, MigrationRecord, SchemaState, Store
from tenure.stores.database_url import unknown_database, without_driver
from tenure.stores.sql_files import migrations, script

__all__ = [
    "EventFilter",
    "EventPage",
    "Finding",
    "JobFilter",
    "MigrationRecord",
    "SchemaState",
    "Store",
    "migrations_for",
    "script_for",
    "store_for",
]

_PACKAGES = {
    "sqlite": "tenure.stores.sqlite",
    "postgresql": "tenure.stores.postgres",
    "postgres": "tenure.stores.postgres",
}


def store_for(url: str, *, seams: Seams = SYSTEM) -> Store:
    """The store that a URL names, not yet opened: `sqlite:///file.db`, `sqlite://:memory:` or `postgresql://…`.

    >>> type(store_for("sqlite:///jobs.db")).__name__
    'SqliteStore'
    """
    url = without_driver(url)
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from tenure.stores.sqlite.store import SqliteStore

        return SqliteStore.from_url(url, seams=seams)
    if scheme in ("postgresql", "postgres"):
        try:
            from tenure.stores.postgres.store import PostgresStore
        except ModuleNotFoundError as missing:
            raise InvalidInput("database", "PostgreSQL needs its driver: pip install 'tenure[postgres]'") from missing
        return PostgresStore.from_url(url, seams=seams)
    raise unknown_database(url)


def migrations_for(url: str) -> tuple[MigrationRecord, ...]:
    """The migrations of this code for that kind of database. The database need not exist."""
    package = _PACKAGES.get(without_driver(url).partition("://")[0])
    if package is None:
        raise unknown_database(url)
    return migrations(package)


def script_for(url: str, migration: MigrationRecord) -> str:
    """The SQL script that applies this migration by hand, its record included."""
    return script(_PACKAGES[without_driver(url).partition("://")[0]], migration)
