"""The findings of `doctor` about a file: whether its settings keep the store's guarantees."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from tenure.stores import findings
from tenure.stores.contract import Finding, SchemaState, UnreadableRow
from tenure.stores.findings import (
    KINDS_MAX,
    LOOKED_AT_MAX,
    SEEN_SECONDS,
    UnservedJobs,
    finished_jobs,
    paused,
    unserved_jobs,
    unserved_pins,
)
from tenure.stores.quarantine import unreadable_rows
from tenure.stores.sqlite.connect import MEMORY, NETWORK_FILE_SYSTEMS, SQLITE_SAFE_RESET, file_system, read_any_text
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.migrate import schema_state
from tenure.stores.sqlite.outbox import list_endpoints
from tenure.stores.sqlite.queues import list_queues
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.transactions import WAL_BYTES_MAX, wal_bytes
from tenure.stores.sqlite.values import micros
from tenure.stores.sqlite.workers import list_workers, pinned_jobs

SYNCHRONOUS_FULL = 2


async def database_findings(connections: SqliteConnections) -> list[Finding]:
    """All findings about a file, good or bad."""
    if connections.missing():
        return [missing_file(connections.path)]
    schema = await schema_state(connections)
    _, reader = await connections.connect()
    path, mounts = connections.path, connections.mounts()

    def read_findings(connection: sqlite3.Connection) -> list[Finding]:
        session = connections.session(connection)
        return read_any_text(connection, lambda: _findings(session, path, mounts=mounts, schema=schema))

    return await reader.call(read_findings)


def _findings(session: Session, path: str, *, mounts: str, schema: SchemaState) -> list[Finding]:
    connection = session.connection
    return [
        version(sqlite3.sqlite_version_info),
        journal(path, connection.execute("pragma journal_mode").fetchone()[0]),
        synchronous(connection.execute("pragma synchronous").fetchone()[0]),
        place(path, mounts),
        integrity([row[0] for row in connection.execute("pragma quick_check(10)")]),
        wal(wal_bytes(path)),
        migrations(schema),
        *(unserved(session) if schema.current else ()),
        *(paused(list_queues(session)) if schema.current else ()),
        *(finished(session) if schema.current else ()),
    ]


def missing_file(path: str) -> Finding:
    return Finding("error", "file", f"{path} does not exist", "run `tenure migrate`, which creates it")


def version(found: Sequence[int]) -> Finding:
    detail = f"SQLite {'.'.join(map(str, found))}"
    if tuple(found) >= SQLITE_SAFE_RESET:
        return Finding("ok", "version", detail)
    return Finding(
        "warning",
        "version",
        f"{detail} has a rare race between a checkpoint and a writer that can damage the file (fixed in 3.51.3); "
        f"tenure switches automatic checkpoints off and truncates the WAL itself, under the write lock",
        "open the file with nothing else that checkpoints, or set wal_autocheckpoint = 0 there; upgrade when you can",
    )


def journal(path: str, mode: str) -> Finding:
    if mode == "wal" or path == MEMORY:
        return Finding("ok", "journal", f"journal mode {mode}")
    return Finding(
        "warning",
        "journal",
        f"journal mode {mode}: this file cannot be switched to WAL, so that readers and the writer wait for each other",
        "close other programs that have the file open, and look at the file system",
    )


def synchronous(level: int) -> Finding:
    if level >= SYNCHRONOUS_FULL:
        return Finding("ok", "synchronous", "commits are synced to the disk before they are acknowledged")
    return Finding("error", "synchronous", f"synchronous = {level}: a power cut can lose acknowledged commits")


def place(path: str, mounts: str) -> Finding:
    if path == MEMORY:
        return Finding("warning", "place", "the database is in memory and ends with this process", "use a file")
    kind = file_system(Path(path).resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("error", "place", f"on a network file system ({kind})", "move the file to a local disk")
    return Finding("ok", "place", f"on a local file system ({kind or 'unknown'})")


def integrity(answers: Sequence[str]) -> Finding:
    if list(answers) == ["ok"]:
        return Finding("ok", "integrity", "quick_check found nothing")
    return Finding(
        "error", "integrity", "; ".join(answers), "restore the file from a backup, or try sqlite3's .recover"
    )


def wal(size_bytes: int) -> Finding:
    detail = f"the WAL has {size_bytes} bytes"
    if size_bytes <= 4 * WAL_BYTES_MAX:
        return Finding("ok", "wal", detail)
    return Finding("warning", "wal", detail, "a reader keeps a long transaction open, so that no checkpoint can finish")


def migrations(schema: SchemaState) -> Finding:
    if schema.min_code_version > schema.code_version:
        detail = f"the file needs code that knows schema {schema.min_code_version}; this is {schema.code_version}"
        return Finding("error", "schema", detail, "upgrade tenure")
    if schema.changed:
        detail = f"migration {schema.changed[0]} differs from what was applied"
        return Finding("error", "schema", detail, "install the tenure that migrated the file")
    if schema.pending:
        names = ", ".join(f"{migration.number:04d}_{migration.name}" for migration in schema.pending)
        return Finding("error", "schema", f"not applied yet: {names}", "run `tenure migrate`")
    return Finding("ok", "schema", f"schema {max(schema.applied, default=0)} is applied")


def unserved(session: Session) -> list[Finding]:
    """Due jobs that no worker serves, and rows of workers and endpoints that cannot be read."""
    parameters = {
        "now": micros(session.now),
        "seen_after": micros(session.now - timedelta(seconds=SEEN_SECONDS)),
        "scanned": LOOKED_AT_MAX,
        "kinds": KINDS_MAX,
    }
    found = unserved_jobs(
        UnservedJobs(queue, kind, jobs, bool(more), bool(queue_served))
        for queue, kind, jobs, more, queue_served in session.execute("jobs/count_unserved", parameters)
    )
    unreadable: list[UnreadableRow] = []
    workers = list_workers(session, None, unreadable)
    list_endpoints(session, unreadable=unreadable)
    return [*found, *unserved_pins(pinned_jobs(session), workers, session.now), *unreadable_rows(unreadable)]


def finished(session: Session) -> list[Finding]:
    """Finished jobs that no worker removes. Counted only where the file has that many jobs at all."""
    many = findings.FINISHED_MANY
    if session.execute("jobs/estimate_count").fetchone()[0] < many:
        return []
    has_many = session.execute("jobs/has_finished", {"jobs": many}).fetchone()[0]
    seen_after = {"seen_after": micros(session.now - timedelta(seconds=SEEN_SECONDS))}
    pruned = session.execute("workers/has_pruner", seen_after).fetchone()[0]
    return finished_jobs(many if has_many else 0, pruned=bool(pruned))
