"""Where layers run: new stores of each kind, with manual clocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from simulation.model.store import ModelStore
from tenure.stores.contract import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract import DatabaseClock
from tests.support.manual_postgres import PostgresClock, copied_database
from tests.support.postgres import Postgres


class FreshStores:
    """What layers need: a folder, and a migrated PostgreSQL database with a manual clock to clone."""

    def __init__(self, folder: Path, server: Postgres, prepared: str) -> None:
        self._folder, self._server, self._prepared = folder, server, prepared
        self._files = 0

    def file(self) -> Path:
        """A new path."""
        self._files += 1
        return self._folder / f"jobs-{self._files}.db"

    @contextmanager
    def database(self) -> Iterator[str]:
        with copied_database(self._server, self._prepared) as dsn:
            yield dsn

    @asynccontextmanager
    async def store(self, kind: str) -> AsyncIterator[tuple[Store, DatabaseClock]]:
        """A new store of that kind, and the clock of its database."""
        if kind == "model":
            clock = ManualClock()
            yield ModelStore(clock), clock
        elif kind == "sqlite":
            clock = ManualClock()
            sqlite = SqliteStore(self.file(), database_clock=clock.now)
            await sqlite.migrate()
            async with opened(sqlite):
                yield sqlite, clock
        else:
            with self.database() as dsn:
                postgres_clock = PostgresClock(dsn)
                try:
                    async with opened(PostgresStore.from_url(dsn)) as postgres:
                        yield postgres, postgres_clock
                finally:
                    postgres_clock.close()


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    try:
        await store.open()
        yield store
    finally:
        await store.close()
