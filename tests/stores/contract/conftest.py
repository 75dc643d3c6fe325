"""PostgreSQL for the kit: a database that is empty for each test, whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.manual_postgres import PostgresClock, copied_database, make_empty, prepared_database
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def prepared_postgres(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.fixture(scope="session")
def shared_dsn(postgres_server: Postgres, prepared_postgres: str) -> Iterator[str]:
    with copied_database(postgres_server, prepared_postgres) as dsn:
        yield dsn


@pytest.fixture
def manual_dsn(shared_dsn: str) -> Iterator[str]:
    yield shared_dsn
    make_empty(shared_dsn)


@pytest.fixture
def postgres_clock(manual_dsn: str) -> Iterator[PostgresClock]:
    clock = PostgresClock(manual_dsn)
    yield clock
    clock.close()
