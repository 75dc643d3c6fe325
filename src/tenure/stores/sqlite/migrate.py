"""The schema of the file: its state, and its migrations."""

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
    return await writer.call(state)


async def apply_pending(connections: SqliteConnections) -> list[MigrationRecord]:
    """Apply the pending migrations, and create the file if it does not exist."""
    writer, _ = await connections.connect()
    applied = await writer.transact(lambda connection: migrate(connection, where=connections.path))
    connections.has_schema = True
    return applied


def empty_state() -> SchemaState:
    """The state of a file that does not exist."""
    return schema.compare(known(), {}, min_code_version=0)


def state(connection: sqlite3.Connection) -> SchemaState:
    """The applied migrations compared with those of this code."""
    if connection.execute(sql("migrations/exists")).fetchone()[0] is None:
        return empty_state()
    applied = dict(connection.execute(sql("migrations/select")).fetchall())
    least = connection.execute(sql("meta/select_min_code_version")).fetchone()
    return schema.compare(known(), applied, min_code_version=0 if least is None else least[0])


def migrate(connection: sqlite3.Connection, *, where: str) -> list[MigrationRecord]:
    """Apply the pending migrations. The write lock is held, so that of concurrent calls one applies them."""
    found = state(connection)
    schema.require_ours(found, where=where)
    for migration in found.pending:
        for statement in statements(sql_files.script(PACKAGE, migration)):
            connection.execute(statement)
    return found.pending


def statements(script: str) -> Iterator[str]:
    """The statements of a script, to be run one by one: `executescript` would end the transaction."""
    lines: list[str] = []
    for line in script.splitlines(keepends=True):
        lines.append(line)
        if line.rstrip().endswith(";") and sqlite3.complete_statement("".join(lines)):
            yield "".join(lines)
            lines = []


def known() -> tuple[MigrationRecord, ...]:
    """The migrations of this code."""
    return sql_files.migrations(PACKAGE)
