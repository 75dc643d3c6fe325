"""Databases of both kinds, and what somebody could do to them by hand who has switched off the guards."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tenure.stores import Store, store_for


@dataclass(frozen=True, slots=True)
class Database:
    """Where a database is. In SQL that is meant for both kinds, `{jobs}` stands for the name of a table of ours."""

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
        """What this SQL answers, on a connection of its own."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(_named(statement, "tenure_")).fetchall()
        with psycopg.connect(self.url, autocommit=True) as server:
            cursor = server.execute(_named(statement, "tenure.").encode())
            return cursor.fetchall() if cursor.description else []

    def tamper(self, *statements: str) -> None:
        """Run this SQL with all guards, checks and unique indexes of the log out of the way."""
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
    names = ("jobs", "events", "policies", "dead_letters", "signals", "migrations", "meta", "operator_log")
    for name in names:
        statement = statement.replace(f"{{{name}}}", f"{prefix}{name}")
    return statement
