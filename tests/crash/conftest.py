"""What the tests that crash share: a database of each kind, and processes that die on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.mortals import Mortals
from tests.crash.places import Place, PostgresPlace, SqlitePlace


@pytest.fixture(scope="session")
def mortals() -> Iterator[Mortals]:
    with Mortals() as mortals:
        yield mortals


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database of each kind, not migrated."""
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
        return
    place = PostgresPlace(request.getfixturevalue("postgres_dsn"))
    yield place
    place.close()
