"""An app whose jobs commit on sessions of their own, and everything that such a commit could leave behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import tenure
from tenure.client.handle import Handle
from tenure.workers.worker import Worker
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.own_sessions import KINDS, TABLE, Kind

SECONDS = 30.0
Inside = Callable[[tenure.Context, Any, Any], None]
"""What a test does inside the block: with its context, with `tx`, and with the connection."""


MESSAGES = "select topic, aggregate, sequence, body from $outbox order by aggregate, sequence"
BODY = bytes(range(256)) * 1000


def insert(note: str) -> str:
    return f"insert into effects values ('{note}')"


class Shop:
    """An app on a database with a table of the user's own, and what there is to be seen from outside."""

    def __init__(self, app: tenure.App) -> None:
        self.app = app
        self.errors: list[BaseException] = []

        @app.job()
        def follow(note: str) -> str:
            return note

        self.follow = follow

    def working(self) -> AbstractAsyncContextManager[Worker]:
        return working(self.app, grace_seconds=5.0)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        prefix = "tenure_" if self.app.database.startswith("sqlite") else "tenure."
        async with (await self.app.store()).transaction(deadline_seconds=5) as tx:
            return [tuple(row.values()) for row in await tx.fetch(sql.replace("$", prefix))]

    async def left_behind(self, job: Handle[Any]) -> dict[str, Any]:
        """Everything that a block could have left."""
        return {
            "effects": [note for (note,) in await self.rows("select note from effects order by note")],
            "messages": await self.rows(MESSAGES),
            "streams": await self.rows("select aggregate, written from $streams order by aggregate"),
            "artifacts": [record.name for record in await (await self.app.store()).artifacts(job.id)],
            "jobs": len((await self.app.find(tenure.JobFilter(kinds=("follow",)))).jobs),
            "committed": sum(event.type == "committed" for event in await job.events()),
        }

    def everything(self, _ctx: tenure.Context, tx: Any, _connection: Any) -> None:
        """All that can go along."""
        tx.enqueue(self.follow.request("later"))
        tx.outbox("second", {"n": 1}, aggregate="b", headers={"h": "ß%s:x"})
        tx.outbox("first", {"n": 2}, aggregate="a")
        tx.outbox("third", {"n": 3}, aggregate="a")
        tx.attach("late.bin", BODY)

    def declare(self, kind: Kind, inside: Inside, *, deadline_seconds: float | None = None, **options: Any) -> Any:
        """A job that writes its note and does what the test wants, in a block on a session of this kind. What leaves
        the block is kept in `errors`, and raised."""

        def plainly(ctx: tenure.Context, note: str) -> str:
            assert kind.plain is not None
            with kind.plain(self.app.database) as own:
                with ctx.commit(result=note, conn=own.connection, deadline_seconds=deadline_seconds) as tx:
                    own.run(insert(note))
                    inside(ctx, tx, own.connection)
                return note

        async def awaited(ctx: tenure.Context, note: str) -> str:
            assert kind.awaited is not None
            async with kind.awaited(self.app.database) as own:
                async with ctx.commit(result=note, conn=own.connection, deadline_seconds=deadline_seconds) as tx:
                    await own.run(insert(note))
                    inside(ctx, tx, own.connection)
                return note

        work: Any = self._watched(plainly) if kind.plain else self._watched_async(awaited)
        return self.app.job(kind="work", **{"max_attempts": 1, **options})(work)

    def _watched(self, body: Callable[[tenure.Context, str], str]) -> Any:
        def work(ctx: tenure.Context, note: str) -> str:
            try:
                return body(ctx, note)
            except BaseException as error:
                self.errors.append(error)
                raise

        return work

    def _watched_async(self, body: Callable[[tenure.Context, str], Any]) -> Any:
        async def work(ctx: tenure.Context, note: str) -> str:
            try:
                return str(await body(ctx, note))
            except BaseException as error:
                self.errors.append(error)
                raise

        return work


NOTHING = {"effects": [], "messages": [], "streams": [], "artifacts": [], "jobs": 0, "committed": 0}


@asynccontextmanager
async def opened_shop(database: Database) -> AsyncIterator[Shop]:
    async with database.opened() as store, store.transaction(deadline_seconds=5) as tx:
        await tx.execute(TABLE)
    async with tenure.App(database.url) as app:
        yield Shop(app)


def named(*names: str) -> pytest.MarkDecorator:
    """For a test that needs only these kinds."""
    kinds = [kind for kind in KINDS if str(kind) in names]
    assert len(kinds) == len(names)
    return pytest.mark.parametrize("kind", kinds, ids=str, indirect=True)


ONE_OF_EACH = ("postgres-psycopg", "postgres-asyncpg", "sqlite-sqlite3", "sqlite-aiosqlite")
