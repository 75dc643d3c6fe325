"""The stores of an app: one for each event loop, opened at its first use."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tenure.errors import InvalidInput, StoreError
from tenure.jobs.context import inside_commit
from tenure.seams import refuse_use_at_import
from tenure.stores import Store, store_for
from tenure.stores.contract import MigrationRecord

if TYPE_CHECKING:
    from tenure.app import App


class AppStores:
    """Opens and closes stores of an app's database."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Store]] = WeakKeyDictionary()

    async def current(self) -> Store:
        """The open store of the running event loop."""
        if inside_commit.get() is not None:
            raise StoreError(
                "inside `ctx.commit()` this call would not be part of the transaction; use `tx.execute(…)`, "
                "`tx.fetch(…)`, `tx.enqueue(job.request(…))` or `tx.outbox(…)`, and with a connection of your own "
                "also `job.within(conn).enqueue(…)`"
            )
        loop = asyncio.get_running_loop()
        pid, store = self._of_loops.get(loop, (0, None))
        if store is None or pid != os.getpid():
            await self._close_those_of_closed_loops()
            store = await self._app.open_store()
            self._of_loops[loop] = (os.getpid(), store)
        return store

    async def open(self) -> Store:
        """Open a new store, which the caller closes. A new SQLite file is migrated."""
        refuse_use_at_import()
        store = self._new()
        if self._app.database.startswith("sqlite") and not (await store.schema()).applied:
            await store.migrate()
        await store.open()
        return store

    async def open_for_work(self) -> Store:
        """Open a store for a worker. A worker opens several, so a database in memory is refused."""
        store = await self._app.open_store()
        if ":memory:" in self._app.database:
            await store.close()
            raise InvalidInput(
                "database",
                "is in the memory of one store, and a worker opens others; use a file such as sqlite:///jobs.db, or "
                "`app.testing()` in tests",
            )
        return store

    async def migrate(self) -> list[MigrationRecord]:
        """Apply the pending migrations, and return them."""
        store = self._new()
        try:
            return await store.migrate()
        finally:
            await store.close()

    async def close(self) -> None:
        """Close the store of the running event loop."""
        await self._close(asyncio.get_running_loop())

    def _new(self) -> Store:
        return store_for(self._app.database, seams=self._app.seams)

    async def _close_those_of_closed_loops(self) -> None:
        """Repeated `asyncio.run` without `app.close()` must leave no threads and no connections behind."""
        for loop in [loop for loop in self._of_loops if loop.is_closed()]:
            await self._close(loop)

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        pid, store = self._of_loops.pop(loop, (0, None))
        if store is not None and pid == os.getpid():
            await store.close()
