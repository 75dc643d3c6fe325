"""The file's schema: where it stands, and how it is brought to what this code knows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from tenure.stores import schema, sql_files
from tenure.stores.contract import MigrationRecord, SchemaState
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.statements import PACKAGE, sql


async def schema_state(connections: SqliteConnections) -> SchemaState:
    """The schema of the file, which need not exist."""
    if connections.missing():
        return empty_state()
    writer, _ = await connections.connect()
    return await writer.look(state)


async def apply_pending(connections: SqliteConnections, *, where: str) -> list[MigrationRecord]:
    """Apply the pending migrations, and create the file if it does not exist."""
    writer, _ = await connections.connect()
    applied = await writer.run(lambda connection: migrate(connection, where=where))
    connections.has_schema = True
    return applied


def empty_state() -> SchemaState:
    """Of a file that is not there yet."""
    return schema.compare(known(), {}, min_code_version=0)


def state(connection: sqlite3.Connection) -> SchemaState:
    """Where the file stands against this code."""
    if connection.execute(sql("migrations_known")).fetchone()[0] is None:
        return empty_state()
    applied = dict(connection.execute(sql("migrations_applied")).fetchall())
    least = connection.execute(sql("min_code_version")).fetchone()
    return schema.compare(known(), applied, min_code_version=0 if least is None else least[0])


def migrate(connection: sqlite3.Connection, *, where: str) -> list[MigrationRecord]:
    """Apply what is pending. The write lock is held, so that of several who try, one does it and the others see it."""
    found = state(connection)
    schema.require_ours(found, where=where)
    for migration in found.pending:
        for statement in statements(sql_files.script(PACKAGE, migration)):
            connection.execute(statement)
    return found.pending


def statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would end our transaction, so they are run one by one."""
    lines: list[str] = []
    for line in script.splitlines(keepends=True):
        lines.append(line)
        if line.rstrip().endswith(";") and sqlite3.complete_statement("".join(lines)):
            yield "".join(lines)
            lines = []


def known() -> tuple[MigrationRecord, ...]:
    """The migrations that this code brings."""
    return sql_files.migrations(PACKAGE)
