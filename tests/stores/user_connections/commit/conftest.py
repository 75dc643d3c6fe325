"""An app on the database of each kind of session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.own_session_app import SessionApp, opened_session_app
from tests.support.own_sessions import KINDS, SessionKind


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> SessionKind:
    found: SessionKind = request.param
    return found


@pytest.fixture
def database(kind: SessionKind, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """The database of this kind of session."""
    if kind.sqlite:
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
async def session_app(database: Database) -> AsyncIterator[SessionApp]:
    async with opened_session_app(database) as session_app:
        yield session_app
