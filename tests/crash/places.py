"""Where acts take place: a database of each kind that can be put back to where an act starts from, and everything that
is in it, so that two states can be told to be the same."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.crash.acts import EFFECTS
from tests.support.child_programs import wait_until

State = dict[str, list[dict[str, Any]]]
"""Every table with its rows. Moments are only known to be there, since no two runs have the same."""

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\"]*")
GONE_SECONDS = 20.0


class Place(Protocol):
    """One database."""

    kind: str
    url: str

    def keep(self) -> None:
        """Remember this state. Nobody may be connected."""
        ...

    def put_back(self) -> None:
        """Be again as it was remembered."""
        ...

    def clear(self) -> None:
        """Hold nothing any more."""
        ...

    def settled(self) -> None:
        """Wait until nothing of a process that came after `put_back` is still under way."""
        ...

    def left(self) -> bytes | None:
        """A name for exactly what is there, before anybody looks at it; None where there is no such thing."""
        ...

    def prepare_effects(self) -> None:
        """Make a table of the user's own."""
        ...

    def state(self) -> State: ...


def clean_text(rows: list[dict[str, Any]], *, without: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Rows without what differs from one run to the next, in an order of their own."""
    return sorted(
        ({name: _cleaned(name, value) for name, value in row.items() if name not in without} for row in rows), key=str
    )


def _cleaned(name: str, value: Any) -> Any:
    if value is not None and (name == "at" or name.endswith("_at")):
        return "a moment"
    return _MOMENT.sub("a moment", value) if isinstance(value, str) else value


class SqlitePlace:
    """A file."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.url = f"sqlite:///{self.path}"
        self._kept = folder / "kept.db"

    def keep(self) -> None:
        self._kept.unlink(missing_ok=True)
        if self.path.exists():
            shutil.copyfile(self.path, self._kept)

    def clear(self) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def put_back(self) -> None:
        self.clear()
        if self._kept.exists():
            shutil.copyfile(self._kept, self.path)

    def settled(self) -> None:
        """A file has no server behind it: what has not happened by now does not happen."""

    def left(self) -> bytes | None:
        """The file and its WAL, byte for byte. The WAL's index does not count: who opens a file alone makes it anew."""
        paths = [self.path, Path(f"{self.path}-wal")]
        return sha256(b"|".join(path.read_bytes() if path.exists() else b"none" for path in paths)).digest()

    def prepare_effects(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(EFFECTS)

    def state(self) -> State:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            tables = "select name from sqlite_master where type = 'table' order by name"
            return {
                name: clean_text([dict(row) for row in connection.execute(f'select * from "{name}"')])
                for (name,) in connection.execute(tables).fetchall()
            }


class PostgresPlace:
    """A database on the run's server. It is put back by rewriting its rows: that is faster than cloning it."""

    kind = "postgres"
    differs = frozenset({"tx", "policy_id"})
    """Numbers that the server gives: they are taken also by what is rolled back."""

    def __init__(self, dsn: str) -> None:
        self.url = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._tables: list[str] = []
        self._known: set[int] = set()

    def close(self) -> None:
        self._connection.close()

    def keep(self) -> None:
        self._tables = self._found()
        copies = [f"create table kept.{_bare(table)} as table {table}" for table in self._tables]
        self._run("drop schema if exists kept cascade", "create schema kept", *copies)

    def clear(self) -> None:
        """All but what says that it was migrated."""
        stays = ("tenure.migrations", "tenure.meta")
        emptied = [f"delete from {table}" for table in self._found() if table not in stays]
        self._run("set local session_replication_role = replica", *emptied)

    def put_back(self) -> None:
        self._known = self._served()
        if not self._tables:
            self._run("drop schema if exists tenure cascade")
            return
        # Guards are for those who write jobs; here the tables are put back behind their back.
        statements = ["set local session_replication_role = replica"]
        for table in self._tables:
            statements += [f"delete from {table}"]
            statements += [f"insert into {table} overriding system value table kept.{_bare(table)}"]
        self._run(*statements)

    def settled(self) -> None:
        settled = wait_until(lambda: self._served() <= self._known, seconds=GONE_SECONDS)
        assert settled, "the server still works for a process that died"

    def left(self) -> bytes | None:
        return None

    def _served(self) -> set[int]:
        """Whom the server works for here, besides us."""
        others = b"""
            select pid from pg_stat_activity
            where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
        """
        return {pid for (pid,) in self._connection.execute(others).fetchall()}

    def prepare_effects(self) -> None:
        self._run(EFFECTS)

    def state(self) -> State:
        rows = self._rows()
        policies = {row["id"]: row["body"] for row in rows.pop("policies", [])}
        for job in rows.get("jobs", []):
            # A policy is there for the jobs that name it: what matters is which one, not under which number, and one
            # that nobody names yet is no part of anything.
            job["policy"] = policies[job["policy_id"]]
        for noted in rows.get("operator_log", []):
            del noted["id"]
        return {table: clean_text(found, without=self.differs) for table, found in rows.items()}

    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        """Every table with its rows, of one moment."""
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
        """All of them in one transaction and one round trip."""
        self._connection.execute(";".join(statements).encode())


def _bare(table: str) -> str:
    return table.partition(".")[2]
