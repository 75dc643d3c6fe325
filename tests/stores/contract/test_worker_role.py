"""PostgreSQL passes the kit by a role that has the grants of a worker, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from tenure.stores.contract import Store
from tenure.stores.postgres.grants import grants_sql
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract import StoreContract
from tenure.testing.contract.archive import ArchiveContract
from tests.support.manual_postgres import PostgresClock
from tests.support.postgres import Postgres, database_of


@pytest.fixture(scope="module")
def worker_role(postgres_server: Postgres, shared_dsn: str) -> Iterator[str]:
    with postgres_server.plain_role(shared_dsn) as role:
        with psycopg.connect(shared_dsn, autocommit=True) as owner:
            owner.execute(grants_sql("worker", role).encode())
        yield role


@pytest.mark.deep
class TestPostgresStoreAsWorker(StoreContract):
    sql_prefix = "tenure."

    @pytest.fixture(autouse=True)
    def _archives_need_the_owner(self, request: pytest.FixtureRequest) -> None:
        if request.function.__module__ == ArchiveContract.__module__:
            pytest.skip("exports and imports need the owner of the schema")

    @pytest.fixture
    def clock(self, postgres_clock: PostgresClock) -> PostgresClock:
        return postgres_clock

    @pytest.fixture
    async def store(self, postgres_server: Postgres, worker_role: str, manual_dsn: str) -> AsyncIterator[Store]:
        # The kit's commit blocks create tables of users, and drop them by emptying the schema.
        with psycopg.connect(manual_dsn, autocommit=True) as owner:
            owner.execute(f'grant all on schema public to "{worker_role}"'.encode())
        store = PostgresStore.from_url(postgres_server.dsn(database_of(manual_dsn), role=worker_role))
        await store.open()
        yield store
        await store.close()
