"""What the tests on whole databases share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import Database


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind, not migrated."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))
