"""Fixtures of the crash tests: a database of each kind, and processes that kill themselves at a crash point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.crash_processes import CrashProcesses
from tests.crash.databases import CrashDatabase, PostgresDatabase, SqliteDatabase


@pytest.fixture(scope="session")
def processes() -> Iterator[CrashProcesses]:
    with CrashProcesses() as processes:
        yield processes


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashDatabase]:
    """An empty database of each kind, not migrated."""
    if request.param == "sqlite":
        yield SqliteDatabase(tmp_path)
        return
    database = PostgresDatabase(request.getfixturevalue("postgres_dsn"))
    yield database
    database.close()
