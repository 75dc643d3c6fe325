"""Databases for crash scenarios: each can be restored to a saved state, and its whole content can be compared."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.crash.scenario import EFFECTS
from tests.support.server_process import wait_until

State = dict[str, list[dict[str, Any]]]
"""Every table with its rows. Timestamps are replaced, since they differ between runs."""

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\"]*")
IDLE_SECONDS = 20.0


class CrashDatabase(Protocol):
    """One database."""

    kind: str
    url: str

    def save(self) -> None:
        """Save the current state. No connection may be open."""
        ...

    def restore(self) -> None:
        """Restore the saved state."""
        ...

    def clear(self) -> None:
        """Remove all rows or the file."""
        ...

    def wait_until_idle(self) -> None:
        """Wait until the server has ended the sessions of processes that started after `restore`."""
        ...

    def fingerprint(self) -> bytes | None:
        """A digest of the exact content, taken before the database is opened; None if there is none."""
        ...

    def create_effects_table(self) -> None:
        """Create a table of the user's."""
        ...

    def state(self) -> State: ...


def comparable_rows(rows: list[dict[str, Any]], *, without: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Sorted rows without what differs between runs."""
    return sorted(
        ({name: _comparable(name, value) for name, value in row.items() if name not in without} for row in rows),
        key=str,
    )


def _comparable(name: str, value: Any) -> Any:
    if value is not None and (name == "at" or name.endswith("_at")):
        return "a timestamp"
    return _TIMESTAMP.sub("a timestamp", value) if isinstance(value, str) else value


class SqliteDatabase:
    """A file."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.url = f"sqlite:///{self.path}"
        self._saved = folder / "kept.db"

    def save(self) -> None:
        self._saved.unlink(missing_ok=True)
        if self.path.exists():
            shutil.copyfile(self.path, self._saved)

    def clear(self) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def restore(self) -> None:
        self.clear()
        if self._saved.exists():
            shutil.copyfile(self._saved, self.path)

    def wait_until_idle(self) -> None:
        """A file has no server, so there is nothing to wait for."""

    def fingerprint(self) -> bytes | None:
        """The file and its WAL, byte for byte. The WAL's index does not count: it is rebuilt when the file is
        opened."""
        paths = [self.path, Path(f"{self.path}-wal")]
        return sha256(b"|".join(path.read_bytes() if path.exists() else b"none" for path in paths)).digest()

    def create_effects_table(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(EFFECTS)

    def state(self) -> State:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            tables = "select name from sqlite_master where type = 'table' order by name"
            return {
                name: comparable_rows([dict(row) for row in connection.execute(f'select * from "{name}"')])
                for (name,) in connection.execute(tables).fetchall()
            }


class PostgresDatabase:
    """A database on the test server. It is restored by writing its rows again, which is faster than cloning it."""

    kind = "postgres"
    differs = frozenset({"tx", "policy_id", "number", "sequence"})
    """Numbers that the server assigns; a rollback uses them up too."""

    def __init__(self, dsn: str) -> None:
        self.url = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._tables: list[str] = []
        self._connected_before: set[int] = set()

    def close(self) -> None:
        self._connection.close()

    def save(self) -> None:
        self._tables = self._found()
        copies = [f"create table kept.{_bare(table)} as table {table}" for table in self._tables]
        self._run("drop schema if exists kept cascade", "create schema kept", *copies)

    def clear(self) -> None:
        """All tables except those that record the migrations."""
        stays = ("tenure.migrations", "tenure.meta")
        emptied = [f"delete from {table}" for table in self._found() if table not in stays]
        self._run("set local session_replication_role = replica", *emptied)

    def restore(self) -> None:
        self._connected_before = self._connected_processes()
        if not self._tables:
            self._run("drop schema if exists tenure cascade")
            return
        # The guards are for changes of jobs; they are off while the tables are restored.
        statements = ["set local session_replication_role = replica"]
        for table in self._tables:
            statements += [f"delete from {table}"]
            statements += [f"insert into {table} overriding system value table kept.{_bare(table)}"]
        self._run(*statements)

    def wait_until_idle(self) -> None:
        idle = wait_until(lambda: self._connected_processes() <= self._connected_before, seconds=IDLE_SECONDS)
        assert idle, "the server still has a session of a killed process"

    def fingerprint(self) -> bytes | None:
        return None

    def _connected_processes(self) -> set[int]:
        """Process ids of the server's other sessions in this database."""
        others = b"""
            select pid from pg_stat_activity
            where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
        """
        return {pid for (pid,) in self._connection.execute(others).fetchall()}

    def create_effects_table(self) -> None:
        self._run(EFFECTS)

    def state(self) -> State:
        rows = self._rows()
        policies = {row["id"]: row["body"] for row in rows.pop("policies", [])}
        for job in rows.get("jobs", []):
            # A job's policy is compared by its content, not by its number. A policy that no job refers to does not
            # count.
            job["policy"] = policies[job["policy_id"]]
        for noted in rows.get("operator_log", []):
            del noted["id"]
        return {table: comparable_rows(found, without=self.differs) for table, found in rows.items()}

    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        """Every table with its rows, read in one statement."""
        parts = [f"select '{_bare(table)}', jsonb_agg(to_jsonb(t)) from {table} t" for table in self._found()]
        if not parts:
            return {}
        found = self._connection.execute(" union all ".join(parts).encode()).fetchall()
        return {table: rows or [] for table, rows in found}

    def _found(self) -> list[str]:
        query = b"""
            select format('%I.%I', schemaname, tablename) from pg_tables
            where schemaname = 'tenure' or (schemaname = 'public' and tablename = 'effects') order by 1
        """
        return [table for (table,) in self._connection.execute(query).fetchall()]

    def _run(self, *statements: str) -> None:
        """Execute all of them in one transaction and one round trip."""
        self._connection.execute(";".join(statements).encode())


def _bare(table: str) -> str:
    return table.partition(".")[2]
