"""`ctx.commit(conn=…)` where something is not as it should be: misuse, other databases, lost connections, isolation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tenure
from tenure.errors import InvalidInput, SchemaMismatch
from tenure.lifecycle.statuses import FAILED, SUCCEEDED
from tests.support import own_session_jobs
from tests.support.databases import Database
from tests.support.own_session_app import NOTHING, SECONDS, Shop, insert, named
from tests.support.own_sessions import Kind, asyncpg_connection, psycopg_plain, sqlite_aiosqlite, sqlite_plain
from tests.support.postgres import Postgres
from tests.support.relay import Cut, relay_to


@named("postgres-psycopg", "postgres-asyncpg")
async def test_misuse_of_the_block_is_told_what_to_do_instead(shop: Shop, kind: Kind) -> None:
    said: dict[str, str] = {}

    @shop.app.job(kind="plainly")
    def plainly(ctx: tenure.Context) -> None:
        with psycopg_plain(shop.app.database) as own, ctx.commit(conn=own.connection) as tx:
            said["execute"] = refused(lambda: tx.execute("select 1"))
            said["fetch"] = refused(lambda: tx.fetch("select 1"))
            said["app"] = refused(lambda: shop.follow.enqueue_sync("beside"))

    @shop.app.job(kind="awaited")
    async def awaited(ctx: tenure.Context) -> None:
        async with asyncpg_connection(shop.app.database) as own:
            said["with"] = refused(ctx.commit(conn=own.connection).__enter__)
            async with own.connection.transaction():
                try:
                    await ctx.commit(conn=own.connection).__aenter__()
                except InvalidInput as problem:
                    said["begun"] = str(problem)
            async with ctx.commit(conn=own.connection) as tx:
                for name, call in (("execute", tx.execute), ("fetch", tx.fetch)):
                    try:
                        await call("select 1")
                    except InvalidInput as problem:
                        said[name] = str(problem)
                try:
                    await shop.follow.enqueue("beside")
                except tenure.TenureError as problem:
                    said["app"] = str(problem)

    @shop.app.job(kind="crossed", max_attempts=1)
    def crossed(ctx: tenure.Context) -> None:
        with asyncio.Runner() as runner:
            opened = asyncpg_connection(shop.app.database)
            own = runner.run(opened.__aenter__())
            try:
                said["plain with async"] = refused(ctx.commit(conn=own.connection).__enter__)
            finally:
                runner.run(opened.__aexit__(None, None, None))
        said["unknown"] = refused(lambda: ctx.commit(conn=object()))

    async with shop.working():
        for job in (plainly if kind.plain else awaited, crossed):
            assert (await (await job.enqueue()).wait(SECONDS)).status is SUCCEEDED
    assert "run them there" in said["execute"]
    assert "run them there" in said["fetch"]
    assert "tx.enqueue" in said["app"]
    assert "within(conn)" in said["app"]
    assert "asynchronous" in said["plain with async"]
    assert "supported are" in said["unknown"]
    if kind.awaited:
        assert "async with" in said["with"]
        assert "begun elsewhere" in said["begun"]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(tenure.TenureError) as problem:
        call()
    return str(problem.value)


async def refusal(shop: Shop, opened: Any) -> BaseException:
    """What a job is told that commits on this connection."""

    @shop.app.job(kind="elsewhere", max_attempts=1)
    def elsewhere(ctx: tenure.Context) -> None:
        with opened as own:
            try:
                with ctx.commit(conn=own.connection) as tx:
                    own.run("select 1")
                    shop.everything(ctx, tx, own.connection)
            except tenure.TenureError as problem:
                shop.errors.append(problem)
                raise

    async with shop.working():
        job = await elsewhere.enqueue()
        assert (await job.wait(SECONDS)).status is FAILED
    assert await shop.left_behind(job) == NOTHING
    return shop.errors[0]


@named("postgres-psycopg", "sqlite-sqlite3")
async def test_a_connection_to_another_kind_of_database_is_refused(
    shop: Shop, kind: Kind, postgres_dsn: str, tmp_path: Path
) -> None:
    other = sqlite_plain(f"sqlite:///{tmp_path / 'other.db'}") if not kind.sqlite else psycopg_plain(postgres_dsn)
    problem = await refusal(shop, other)
    assert isinstance(problem, InvalidInput)
    assert "the app's own database" in str(problem)


@named("sqlite-sqlite3")
async def test_a_connection_to_another_file_is_refused_before_anything_is_done(
    shop: Shop, kind: Kind, tmp_path: Path
) -> None:
    problem = await refusal(shop, sqlite_plain(f"sqlite:///{tmp_path / 'other.db'}"))
    assert isinstance(problem, InvalidInput)
    assert "other.db" in str(problem)


@named("postgres-psycopg")
async def test_a_connection_to_another_database_of_the_server_is_refused(
    shop: Shop, kind: Kind, postgres_server: Postgres
) -> None:
    dsn = postgres_server.create_database()
    try:
        assert isinstance(await refusal(shop, psycopg_plain(dsn)), SchemaMismatch)
    finally:
        postgres_server.drop_database(dsn)


@named("postgres-psycopg")
async def test_a_connection_to_another_apps_database_is_refused(
    shop: Shop, kind: Kind, postgres_server: Postgres
) -> None:
    dsn = postgres_server.create_database()
    try:
        async with Database(dsn).opened():
            pass
        shop.everything = lambda *_: None  # type: ignore[method-assign]
        problem = await refusal(shop, psycopg_plain(dsn))
    finally:
        postgres_server.drop_database(dsn)
    assert isinstance(problem, InvalidInput)
    assert "does not know job" in str(problem)


@pytest.mark.requirement("LC-07", "EL-04")
@named("postgres-psycopg-async")
@pytest.mark.parametrize("cut", [Cut.REPLY, Cut.REQUEST])
async def test_when_the_connection_is_lost_at_the_commit_the_log_says_whether_it_was_made(
    shop: Shop, kind: Kind, cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_to(shop.app.database) as (relay, through):

        class Cutting(psycopg.AsyncConnection[Any]):
            """Loses its wire at its first commit, before or after the server hears of it."""

            async def commit(self) -> None:
                if not shop.errors:
                    relay.cut = cut
                await super().commit()

        @shop.app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
        async def work(ctx: tenure.Context) -> int:
            try:
                async with (
                    await Cutting.connect(through, autocommit=True) as connection,
                    ctx.commit(result=ctx.attempt, conn=connection) as tx,
                ):
                    await connection.execute(insert(str(ctx.attempt)).encode())
                    shop.everything(ctx, tx, connection)
            except psycopg.OperationalError as lost:
                shop.errors.append(lost)
                raise
            return ctx.attempt

        async with shop.working():
            job = await work.enqueue()
            made_at = 1 if cut is Cut.REPLY else 2
            assert await job.result(SECONDS) == made_at
    assert len(shop.errors) == 1
    left = await shop.left_behind(job)
    assert (left["effects"], left["committed"], left["jobs"]) == ([str(made_at)], 1, 1)
    assert left["artifacts"] == ["late.bin"]
    assert job.job.attempt == made_at
    assert "could not be rolled back" in caplog.text


@named("postgres-psycopg")
@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
async def test_what_happens_when_the_job_changes_inside_the_block_depends_on_the_isolation_level(
    shop: Shop, kind: Kind, level: str
) -> None:
    @shop.app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
    def work(ctx: tenure.Context) -> int:
        with psycopg_plain(shop.app.database) as own:
            own.connection.isolation_level = psycopg.IsolationLevel[level]
            try:
                with ctx.commit(result=ctx.attempt, conn=own.connection) as tx:
                    own.run(insert(str(ctx.attempt)))
                    shop.everything(ctx, tx, own.connection)
                    if ctx.attempt == 1:
                        ctx.progress(50)
                        progressed(shop.app.database)
            except tenure.TenureError as problem:
                shop.errors.append(problem)
                raise
        return ctx.attempt

    async with shop.working():
        job = await work.enqueue()
        made_at = 1 if level == "READ_COMMITTED" else 2
        assert await job.result(SECONDS) == made_at
    assert [("use READ COMMITTED" in str(problem)) for problem in shop.errors] == [True] * (made_at - 1)
    left = await shop.left_behind(job)
    assert (left["effects"], left["committed"], left["jobs"]) == ([str(made_at)], 1, 1)


def progressed(url: str) -> None:
    """Return once the job's progress is written."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(3000):
            if connection.execute("select 1 from tenure.events where type = 'progress'").fetchone():
                return
            threading.Event().wait(0.01)
    raise AssertionError("the progress was not written")


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    note: Mapped[str] = mapped_column(primary_key=True)


@named("postgres-session", "sqlite-session")
async def test_objects_of_a_session_are_written_before_the_mark_which_comes_last(shop: Shop, kind: Kind) -> None:
    statements: list[str] = []

    @shop.app.job(max_attempts=1)
    def work(ctx: tenure.Context, note: str | None) -> None:
        assert kind.plain is not None
        with kind.plain(shop.app.database) as own:
            session: Session = own.connection
            watch = sqlalchemy.event.listens_for(session.get_bind(), "before_cursor_execute")
            watch(lambda _conn, _cursor, statement, *_: statements.append(statement))
            with ctx.commit(conn=session):
                session.add(Effect(note=note))
                assert not any("effects" in statement for statement in statements)

    async with shop.working():
        job = await work.enqueue("kept")
        assert (await job.wait(SECONDS)).status is SUCCEEDED
        inserts = [at for at, statement in enumerate(statements) if "INSERT INTO effects" in statement]
        assert len(inserts) == 1
        if not kind.sqlite:
            assert "commit_within" in statements[-1]
        fails = await work.enqueue(None)
        assert (await fails.wait(SECONDS)).status is FAILED
    assert (await shop.left_behind(fails)) | {"effects": []} == NOTHING
    assert (await shop.left_behind(job))["effects"] == ["kept"]


@named("sqlite-sqlite3", "postgres-psycopg")
@pytest.mark.parametrize("name", ["noted", "noted_plainly"])
async def test_a_job_in_a_process_of_its_own_commits_on_a_session_that_it_opens(
    shop: Shop, kind: Kind, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_session_jobs.app, "database", shop.app.database)
    async with own_session_jobs.app as app:
        theirs = Shop.__new__(Shop)
        theirs.app = app
        work = getattr(own_session_jobs, name)
        async with theirs.working():
            failed = await work.enqueue("never", fails=True)
            assert (await failed.wait(SECONDS)).status is FAILED
            assert await theirs.left_behind(failed) == NOTHING
            job = await work.enqueue("paid", fails=False)
            assert await job.result(SECONDS) == "paid"
        assert await theirs.left_behind(job) == {
            "effects": ["paid"],
            "messages": [("noted", "a", 1, '{"note":"paid"}')],
            "streams": [("a", 1)],
            "artifacts": ["early.txt", "late.txt"],
            "jobs": 1,
            "committed": 1,
        }


async def test_under_test_the_app_says_that_a_connection_leads_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = tenure.App(url)

    @app.job(max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        async with sqlite_aiosqlite(url) as own, ctx.commit(conn=own.connection):
            pass

    async with app.testing() as bench:
        job = await work.enqueue()
        await bench.drain()
        error = (await job.refresh()).error or ""
    assert "app.testing()" in error
    assert "app.worker()" in error
