"""The stores that layers run on: one per process, prepared before a mutant is applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.fresh_stores import FreshStores
from tests.support.manual_postgres import prepared_database
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def prepared_postgres(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.fixture
def stores(tmp_path: Path, postgres_server: Postgres, prepared_postgres: str) -> FreshStores:
    return FreshStores(tmp_path, postgres_server, prepared_postgres)
