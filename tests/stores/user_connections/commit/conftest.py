"""An app on the database that each kind of session leads to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.own_session_app import Shop, opened_shop
from tests.support.own_sessions import KINDS, Kind


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def database(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """The database that this kind of session leads to."""
    if kind.sqlite:
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with opened_shop(database) as shop:
        yield shop
