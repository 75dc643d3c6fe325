"""The schema of the database: its state, and its migrations, each in a transaction of its own."""

from __future__ import annotations

from tenure.stores.contract import MigrationRecord, SchemaState
from tenure.stores.postgres.connections import PACKAGE, Connections, Session
from tenure.stores.schema import compare, require_ours
from tenure.stores.sql_files import migrations, script

LOCK = 0x74656E757265
"""The advisory lock under which migrations run, held to the end of each transaction: the ASCII of our name."""


async def schema_state(connections: Connections) -> SchemaState:
    """The schema of the database."""
    async with connections.transaction() as connection:
        return await _state(connection)


async def apply_pending(connections: Connections, *, where: str) -> list[MigrationRecord]:
    """Apply the pending migrations. Of concurrent calls one applies each migration; the others wait for it."""
    done: list[MigrationRecord] = []
    while True:
        async with connections.transaction() as connection:
            await connection.execute("select pg_advisory_xact_lock($1)", LOCK)
            state = await _state(connection)
            require_ours(state, where=where)
            if not state.pending:
                return done
            done.append(await _apply(connection, state.pending[0]))


async def _apply(connection: Session, migration: MigrationRecord) -> MigrationRecord:
    await connection.execute(script(PACKAGE, migration))
    return migration


async def _state(connection: Session) -> SchemaState:
    known = migrations(PACKAGE)
    if await connection.fetchval("select to_regclass('tenure.migrations')") is None:
        return compare(known, {}, min_code_version=0)
    applied = await connection.fetch("select number, checksum from tenure.migrations")
    least = await connection.fetchval("select value from tenure.meta where name = 'min_code_version'")
    return compare(known, {row["number"]: row["checksum"] for row in applied}, min_code_version=int(least or 0))
