"""`ctx.commit(conn=…)` and errors: misuse, other databases, lost connections, isolation levels."""

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
from tests.support.own_session_app import NOTHING, SECONDS, SessionApp, insert, named
from tests.support.own_sessions import SessionKind, asyncpg_connection, psycopg_sync, sqlite_aiosqlite, sqlite_sync
from tests.support.postgres import Postgres
from tests.support.relay import Cut, relay_to


@named("postgres-psycopg", "postgres-asyncpg")
async def test_misuse_of_the_block_raises_an_error_with_what_to_do_instead(
    session_app: SessionApp, kind: SessionKind
) -> None:
    errors: dict[str, str] = {}

    @session_app.app.job(kind="sync")
    def sync_job(ctx: tenure.Context) -> None:
        with psycopg_sync(session_app.app.database) as own, ctx.commit(conn=own.connection) as tx:
            errors["execute"] = refused(lambda: tx.execute("select 1"))
            errors["fetch"] = refused(lambda: tx.fetch("select 1"))
            errors["app"] = refused(lambda: session_app.follow.enqueue_sync("beside"))

    @session_app.app.job(kind="async")
    async def async_job(ctx: tenure.Context) -> None:
        async with asyncpg_connection(session_app.app.database) as own:
            errors["with"] = refused(ctx.commit(conn=own.connection).__enter__)
            async with own.connection.transaction():
                try:
                    await ctx.commit(conn=own.connection).__aenter__()
                except InvalidInput as problem:
                    errors["begun"] = str(problem)
            async with ctx.commit(conn=own.connection) as tx:
                for name, call in (("execute", tx.execute), ("fetch", tx.fetch)):
                    try:
                        await call("select 1")
                    except InvalidInput as problem:
                        errors[name] = str(problem)
                try:
                    await session_app.follow.enqueue("beside")
                except tenure.TenureError as problem:
                    errors["app"] = str(problem)

    @session_app.app.job(kind="crossed", max_attempts=1, on_exhausted="fail")
    def crossed(ctx: tenure.Context) -> None:
        with asyncio.Runner() as runner:
            opened = asyncpg_connection(session_app.app.database)
            own = runner.run(opened.__aenter__())
            try:
                errors["sync with async"] = refused(ctx.commit(conn=own.connection).__enter__)
            finally:
                runner.run(opened.__aexit__(None, None, None))
        errors["unknown"] = refused(lambda: ctx.commit(conn=object()))

    async with session_app.working():
        for job in (sync_job if kind.sync else async_job, crossed):
            assert (await (await job.enqueue()).wait(SECONDS)).status is SUCCEEDED
    assert "run them on that connection" in errors["execute"]
    assert "run them on that connection" in errors["fetch"]
    assert "tx.enqueue" in errors["app"]
    assert "within(conn)" in errors["app"]
    assert "asynchronous" in errors["sync with async"]
    assert "pass one of" in errors["unknown"]
    if kind.awaited:
        assert "async with" in errors["with"]
        assert "begun elsewhere" in errors["begun"]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(tenure.TenureError) as problem:
        call()
    return str(problem.value)


async def refusal(session_app: SessionApp, opened: Any) -> BaseException:
    """Return the error of a job that commits on this connection."""

    @session_app.app.job(kind="elsewhere", max_attempts=1, on_exhausted="fail")
    def elsewhere(ctx: tenure.Context) -> None:
        with opened as own:
            try:
                with ctx.commit(conn=own.connection) as tx:
                    own.run("select 1")
                    session_app.write_all(ctx, tx, own.connection)
            except tenure.TenureError as problem:
                session_app.errors.append(problem)
                raise

    async with session_app.working():
        job = await elsewhere.enqueue()
        assert (await job.wait(SECONDS)).status is FAILED
    assert await session_app.written(job) == NOTHING
    return session_app.errors[0]


@named("postgres-psycopg", "sqlite-sqlite3")
async def test_a_connection_to_another_kind_of_database_is_refused(
    session_app: SessionApp, kind: SessionKind, postgres_dsn: str, tmp_path: Path
) -> None:
    other = sqlite_sync(f"sqlite:///{tmp_path / 'other.db'}") if not kind.sqlite else psycopg_sync(postgres_dsn)
    problem = await refusal(session_app, other)
    assert isinstance(problem, InvalidInput)
    assert "the app's own database" in str(problem)


@named("sqlite-sqlite3")
async def test_a_connection_to_another_file_is_refused_before_the_block(
    session_app: SessionApp, kind: SessionKind, tmp_path: Path
) -> None:
    problem = await refusal(session_app, sqlite_sync(f"sqlite:///{tmp_path / 'other.db'}"))
    assert isinstance(problem, InvalidInput)
    assert "other.db" in str(problem)


@named("postgres-psycopg")
async def test_a_connection_to_another_database_of_the_server_is_refused(
    session_app: SessionApp, kind: SessionKind, postgres_server: Postgres
) -> None:
    dsn = postgres_server.create_database()
    try:
        assert isinstance(await refusal(session_app, psycopg_sync(dsn)), SchemaMismatch)
    finally:
        postgres_server.drop_database(dsn)


@named("postgres-psycopg")
async def test_a_connection_to_another_apps_database_is_refused(
    session_app: SessionApp, kind: SessionKind, postgres_server: Postgres
) -> None:
    dsn = postgres_server.create_database()
    try:
        async with Database(dsn).opened():
            pass
        session_app.write_all = lambda *_: None  # type: ignore[method-assign]
        problem = await refusal(session_app, psycopg_sync(dsn))
    finally:
        postgres_server.drop_database(dsn)
    assert isinstance(problem, InvalidInput)
    assert "does not contain job" in str(problem)


@pytest.mark.requirement("LC-07", "EL-04")
@named("postgres-psycopg-async")
@pytest.mark.parametrize("cut", [Cut.REPLY, Cut.REQUEST])
async def test_when_the_connection_is_lost_at_the_commit_the_log_shows_whether_it_was_made(
    session_app: SessionApp, kind: SessionKind, cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_to(session_app.app.database) as (relay, through):

        class Cutting(psycopg.AsyncConnection[Any]):
            """Loses its connection at the first commit, before or after the server receives it."""

            async def commit(self) -> None:
                if not session_app.errors:
                    relay.cut = cut
                await super().commit()

        @session_app.app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
        async def work(ctx: tenure.Context) -> int:
            try:
                async with (
                    await Cutting.connect(through, autocommit=True) as connection,
                    ctx.commit(result=ctx.attempt, conn=connection) as tx,
                ):
                    await connection.execute(insert(str(ctx.attempt)).encode())
                    session_app.write_all(ctx, tx, connection)
            except psycopg.OperationalError as lost:
                session_app.errors.append(lost)
                raise
            return ctx.attempt

        async with session_app.working():
            job = await work.enqueue()
            made_at = 1 if cut is Cut.REPLY else 2
            assert await job.result(SECONDS) == made_at
    assert len(session_app.errors) == 1
    written = await session_app.written(job)
    assert (written["effects"], written["committed"], written["jobs"]) == ([str(made_at)], 1, 1)
    assert written["artifacts"] == ["late.bin"]
    assert job.job.attempt == made_at
    assert "rollback failed" in caplog.text


@named("postgres-psycopg")
@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
async def test_a_change_of_the_job_inside_the_block_fails_the_commit_above_read_committed(
    session_app: SessionApp, kind: SessionKind, level: str
) -> None:
    @session_app.app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    def work(ctx: tenure.Context) -> int:
        with psycopg_sync(session_app.app.database) as own:
            own.connection.isolation_level = psycopg.IsolationLevel[level]
            try:
                with ctx.commit(result=ctx.attempt, conn=own.connection) as tx:
                    own.run(insert(str(ctx.attempt)))
                    session_app.write_all(ctx, tx, own.connection)
                    if ctx.attempt == 1:
                        ctx.progress(50)
                        progressed(session_app.app.database)
            except tenure.TenureError as problem:
                session_app.errors.append(problem)
                raise
        return ctx.attempt

    async with session_app.working():
        job = await work.enqueue()
        made_at = 1 if level == "READ_COMMITTED" else 2
        assert await job.result(SECONDS) == made_at
    assert [("use READ COMMITTED" in str(problem)) for problem in session_app.errors] == [True] * (made_at - 1)
    written = await session_app.written(job)
    assert (written["effects"], written["committed"], written["jobs"]) == ([str(made_at)], 1, 1)


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
async def test_objects_of_a_session_are_written_before_the_commit_mark(
    session_app: SessionApp, kind: SessionKind
) -> None:
    statements: list[str] = []

    @session_app.app.job(max_attempts=1, on_exhausted="fail")
    def work(ctx: tenure.Context, note: str | None) -> None:
        assert kind.sync is not None
        with kind.sync(session_app.app.database) as own:
            session: Session = own.connection
            watch = sqlalchemy.event.listens_for(session.get_bind(), "before_cursor_execute")
            watch(lambda _conn, _cursor, statement, *_: statements.append(statement))
            with ctx.commit(conn=session):
                session.add(Effect(note=note))
                assert not any("effects" in statement for statement in statements)

    async with session_app.working():
        job = await work.enqueue("kept")
        assert (await job.wait(SECONDS)).status is SUCCEEDED
        inserts = [at for at, statement in enumerate(statements) if "INSERT INTO effects" in statement]
        assert len(inserts) == 1
        if not kind.sqlite:
            assert "commit_within" in statements[-1]
        fails = await work.enqueue(None)
        assert (await fails.wait(SECONDS)).status is FAILED
    assert (await session_app.written(fails)) | {"effects": []} == NOTHING
    assert (await session_app.written(job))["effects"] == ["kept"]


@named("sqlite-sqlite3", "postgres-psycopg")
@pytest.mark.parametrize("name", ["noted", "noted_sync"])
async def test_a_job_with_process_isolation_commits_on_a_session_that_it_opens(
    session_app: SessionApp, kind: SessionKind, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_session_jobs.app, "database", session_app.app.database)
    async with own_session_jobs.app as app:
        child_app = SessionApp.__new__(SessionApp)
        child_app.app = app
        work = getattr(own_session_jobs, name)
        async with child_app.working():
            failed = await work.enqueue("never", fails=True)
            assert (await failed.wait(SECONDS)).status is FAILED
            assert await child_app.written(failed) == NOTHING
            job = await work.enqueue("paid", fails=False)
            assert await job.result(SECONDS) == "paid"
        assert await child_app.written(job) == {
            "effects": ["paid"],
            "messages": [("noted", "a", 1, '{"note":"paid"}')],
            "streams": [("a", 1)],
            "artifacts": ["early.txt", "late.txt"],
            "jobs": 1,
            "committed": 1,
        }


async def test_in_app_testing_a_connection_of_the_user_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = tenure.App(url)

    @app.job(max_attempts=1, on_exhausted="fail")
    async def work(ctx: tenure.Context) -> None:
        async with sqlite_aiosqlite(url) as own, ctx.commit(conn=own.connection):
            pass

    async with app.testing() as harness:
        job = await work.enqueue()
        await harness.drain()
        error = (await job.refresh()).error or ""
    assert "app.testing()" in error
    assert "app.worker()" in error
