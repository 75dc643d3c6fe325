"""Databases of both kinds, and changes made by hand with the guards switched off."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tenure.stores import Store, store_for
from tenure.stores.postgres.connections import GUARD_STATE

POSTGRES_IN_DEPTH = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)], indirect=True
)
"""`make test` runs the test on SQLite alone, `make test-deep` on PostgreSQL."""
SQLITE_IN_DEPTH = pytest.mark.parametrize(
    "database", ["postgres", pytest.param("sqlite", marks=pytest.mark.deep)], indirect=True
)
"""`make test` runs the test on PostgreSQL alone, `make test-deep` on SQLite."""


class GuardRefused(Exception):
    """A guard or a constraint of the database refused a statement."""


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a database. In SQL for both kinds `{jobs}` stands for the name of a table of the schema."""

    url: str

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Its store, migrated and open."""
        store = store_for(self.url)
        await store.migrate()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of this SQL, on a new connection."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(_named(statement, "tenure_")).fetchall()
        with psycopg.connect(self.url, autocommit=True) as server:
            cursor = server.execute(_named(statement, "tenure.").encode())
            return cursor.fetchall() if cursor.description else []

    def write_as(self, writer: str | None, *statements: str) -> None:
        """Run this SQL in one transaction with all guards on and the writer set to this one.

        GuardRefused: a guard or a constraint refused it. Any other error is raised as it is.
        """
        try:
            if self.is_sqlite:
                with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                    connection.execute("begin immediate")
                    if writer is not None:
                        connection.execute("update tenure_writer set writer = ?", (writer,))
                    for statement in statements:
                        connection.execute(_named(statement, "tenure_"))
                    connection.execute("update tenure_writer set writer = null")
                    connection.execute("commit")
            else:
                with psycopg.connect(self.url) as server:
                    if writer is not None:
                        server.execute("select set_config('tenure.writer', %s, true)", (writer,))
                    for statement in statements:
                        server.execute(_named(statement, "tenure.").encode())
        except (
            sqlite3.IntegrityError,
            psycopg.errors.IntegrityError,
            psycopg.errors.InvalidTextRepresentation,
        ) as refused:
            raise GuardRefused(str(refused)) from refused
        except psycopg.Error as refused:
            if refused.sqlstate != GUARD_STATE:
                raise
            raise GuardRefused(str(refused)) from refused

    def tamper(self, *statements: str) -> None:
        """Run this SQL with all guards, checks and unique indexes of the log switched off."""
        if self.is_sqlite:
            self._tamper_with_sqlite(statements)
        else:
            self._tamper_with_postgres(statements)

    def _tamper_with_sqlite(self, statements: Iterable[str]) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            triggers = connection.execute("select name from sqlite_master where type = 'trigger'").fetchall()
            for (name,) in triggers:
                connection.execute(f'drop trigger "{name}"')
            connection.execute("pragma ignore_check_constraints = on")
            for statement in statements:
                connection.execute(_named(statement, "tenure_"))

    def _tamper_with_postgres(self, statements: Iterable[str]) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = "select tablename from pg_tables where schemaname = 'tenure'"
            for (table,) in connection.execute(tables).fetchall():
                name = sql.Identifier("tenure", table)
                connection.execute(sql.SQL("alter table {} disable trigger all").format(name))
            checks = "select conname, conrelid::regclass::text from pg_constraint where contype = 'c'"
            checks += " and connamespace = 'tenure'::regnamespace"
            for constraint, table in connection.execute(checks).fetchall():
                name = sql.Identifier(*table.split("."))
                connection.execute(
                    sql.SQL("alter table {} drop constraint {}").format(name, sql.Identifier(constraint))
                )
            for statement in statements:
                connection.execute(_named(statement, "tenure.").encode())


def _named(statement: str, prefix: str) -> str:
    return re.sub(r"\{([a-z_]+)\}", rf"{prefix}\1", statement)
