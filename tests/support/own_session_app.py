"""An app whose jobs commit on their own sessions, and everything that such a commit can write."""

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
from tests.support.own_sessions import KINDS, TABLE, SessionKind

SECONDS = 30.0
Inside = Callable[[tenure.Context, Any, Any], None]
"""What a test does inside the block, with the context, `tx` and the connection."""


STREAMS = "select aggregate, (select count(*) from $outbox message where message.aggregate = stream.aggregate)"
STREAMS += " from $streams stream order by aggregate"
PLACE = "row_number() over (partition by aggregate order by sequence)"
MESSAGES = f"select topic, aggregate, {PLACE} as place, body from $outbox order by aggregate, place"
BODY = bytes(range(256)) * 1000


def insert(note: str) -> str:
    return f"insert into effects values ('{note}')"


class SessionApp:
    """An app on a database with a table of the user, and readers of what its jobs have written."""

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

    async def written(self, job: Handle[Any]) -> dict[str, Any]:
        """Read all that a block can write."""
        return {
            "effects": [note for (note,) in await self.rows("select note from effects order by note")],
            "messages": await self.rows(MESSAGES),
            "streams": await self.rows(STREAMS),
            "artifacts": [record.name for record in await (await self.app.store()).artifacts(job.id)],
            "jobs": len((await self.app.find(tenure.JobFilter(kinds=("follow",)))).jobs),
            "committed": sum(event.type == "committed" for event in await job.events()),
        }

    def write_all(self, _ctx: tenure.Context, tx: Any, _connection: Any) -> None:
        """Write one of everything that a block accepts."""
        tx.enqueue(self.follow.request("later"))
        tx.outbox("second", {"n": 1}, aggregate="b", headers={"h": "ß%s:x"})
        tx.outbox("first", {"n": 2}, aggregate="a")
        tx.outbox("third", {"n": 3}, aggregate="a")
        tx.attach("late.bin", BODY)

    def declare(
        self, kind: SessionKind, inside: Inside, *, deadline_seconds: float | None = None, **options: Any
    ) -> Any:
        """Declare a job that writes its note and calls `inside`, in a block on a session of this kind. An error of the
        block is appended to `errors` and raised."""

        def sync_job(ctx: tenure.Context, note: str) -> str:
            assert kind.sync is not None
            with kind.sync(self.app.database) as own:
                with ctx.commit(result=note, conn=own.connection, deadline_seconds=deadline_seconds) as tx:
                    own.run(insert(note))
                    inside(ctx, tx, own.connection)
                return note

        async def async_job(ctx: tenure.Context, note: str) -> str:
            assert kind.awaited is not None
            async with kind.awaited(self.app.database) as own:
                async with ctx.commit(result=note, conn=own.connection, deadline_seconds=deadline_seconds) as tx:
                    await own.run(insert(note))
                    inside(ctx, tx, own.connection)
                return note

        work: Any = self._recording(sync_job) if kind.sync else self._recording_async(async_job)
        return self.app.job(kind="work", **{"max_attempts": 1, "on_exhausted": "fail", **options})(work)

    def _recording(self, body: Callable[[tenure.Context, str], str]) -> Any:
        def work(ctx: tenure.Context, note: str) -> str:
            try:
                return body(ctx, note)
            except BaseException as error:
                self.errors.append(error)
                raise

        return work

    def _recording_async(self, body: Callable[[tenure.Context, str], Any]) -> Any:
        async def work(ctx: tenure.Context, note: str) -> str:
            try:
                return str(await body(ctx, note))
            except BaseException as error:
                self.errors.append(error)
                raise

        return work


NOTHING = {"effects": [], "messages": [], "streams": [], "artifacts": [], "jobs": 0, "committed": 0}


@asynccontextmanager
async def opened_session_app(database: Database) -> AsyncIterator[SessionApp]:
    async with database.opened() as store, store.transaction(deadline_seconds=5) as tx:
        await tx.execute(TABLE)
    async with tenure.App(database.url) as app:
        yield SessionApp(app)


def named(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test with these kinds only."""
    kinds = [kind for kind in KINDS if str(kind) in names]
    assert len(kinds) == len(names)
    return pytest.mark.parametrize("kind", kinds, ids=str, indirect=True)


ONE_OF_EACH = ("postgres-psycopg", "postgres-asyncpg", "sqlite-sqlite3", "sqlite-aiosqlite")
