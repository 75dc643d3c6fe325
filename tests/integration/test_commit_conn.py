"""`ctx.commit(conn=…)`: the mark, and all that goes along with it, in a session of the user's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tenure
from tenure.errors import AlreadyCommitted, DeadlinePassed, InvalidInput, LeaseLost, SchemaMismatch
from tenure.handles import Handle
from tenure.lifecycle.statuses import CANCELLED, FAILED, SUCCEEDED
from tenure.workers.worker import Worker
from tests import own_session_jobs
from tests.databases import Database
from tests.own_sessions import KINDS, TABLE, Kind, asyncpg_connection, psycopg_plain, sqlite_aiosqlite, sqlite_plain
from tests.patience import eventually
from tests.postgres import Postgres
from tests.relay import Cut, relay_to

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

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Worker]:
        worker = self.app.worker(poll_seconds=0.05, scan_seconds=0.1, grace_seconds=5.0)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await asyncio.wait_for(running, SECONDS)

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


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def database(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """The database that this kind of session leads to."""
    if kind.sqlite:
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with opened_shop(database) as shop:
        yield shop


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


@pytest.mark.requirement("EL-04", "SM-20")
async def test_the_users_row_and_all_that_goes_along_are_there_together_and_once(shop: Shop, kind: Kind) -> None:
    work = shop.declare(kind, shop.everything)
    async with shop.working():
        job = await work.enqueue("paid")
        assert await job.result(SECONDS) == "paid"
    assert shop.errors == []
    assert await shop.left_behind(job) == {
        "effects": ["paid"],
        "messages": [("first", "a", 1, '{"n":2}'), ("third", "a", 2, '{"n":3}'), ("second", "b", 1, '{"n":1}')],
        "streams": [("a", 2), ("b", 1)],
        "artifacts": ["late.bin"],
        "jobs": 1,
        "committed": 1,
    }
    assert [event.type for event in await job.events()] == ["enqueued", "claimed", "started", "committed", "succeeded"]
    artifact = await (await shop.app.store()).artifact(job.id, "late.bin")
    assert artifact is not None
    assert artifact.body == BODY
    [record] = await (await shop.app.store()).artifacts(job.id)
    assert (record.attempt, record.bytes, record.media_type) == (1, len(BODY), "application/octet-stream")
    [(headers, of)] = await shop.rows("select headers, job_id from $outbox where aggregate = 'b'")
    assert (headers, str(of)) == ('{"h":"ß%s:x"}', str(job.id))
    [followed] = (await shop.app.find(tenure.JobFilter(kinds=("follow",)))).jobs
    assert followed.origin.correlation_id == str(job.id)


@pytest.mark.requirement("EL-04")
async def test_an_error_inside_leaves_nothing(shop: Shop, kind: Kind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        shop.everything(ctx, tx, connection)
        raise KeyError("changed my mind")

    work = shop.declare(kind, inside)
    async with shop.working():
        job = await work.enqueue("never")
        ended = await job.wait(SECONDS)
    assert (ended.status, ended.committed) == (FAILED, False)
    assert [type(error) for error in shop.errors] == [KeyError]
    assert await shop.left_behind(job) == NOTHING


async def test_after_an_error_the_session_has_nothing_of_the_block_and_can_go_on(shop: Shop, kind: Kind) -> None:
    @shop.app.job(kind="plainly", max_attempts=1)
    def plainly(ctx: tenure.Context) -> None:
        assert kind.plain is not None
        with kind.plain(shop.app.database) as own:
            with suppress(KeyError), ctx.commit(conn=own.connection):
                own.run(insert("never"))
                raise KeyError("changed my mind")
            with ctx.commit(conn=own.connection):
                own.run(insert("after all"))

    @shop.app.job(kind="awaited", max_attempts=1)
    async def awaited(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(shop.app.database) as own:
            with suppress(KeyError):
                async with ctx.commit(conn=own.connection):
                    await own.run(insert("never"))
                    raise KeyError("changed my mind")
            async with ctx.commit(conn=own.connection):
                await own.run(insert("after all"))

    async with shop.working():
        job = await (plainly if kind.plain else awaited).enqueue()
        assert (await job.wait(SECONDS)).status is SUCCEEDED
    left = await shop.left_behind(job)
    assert (left["effects"], left["committed"]) == (["after all"], 1)


@pytest.mark.requirement("EL-04", "SM-10")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.sqlite], ids=str, indirect=True)
async def test_a_hard_cancel_before_the_block_is_left_leaves_nothing(shop: Shop, kind: Kind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        shop.everything(ctx, tx, connection)
        with psycopg.connect(shop.app.database) as other:
            assert other.execute("select count(*) from effects").fetchone() == (0,)
        # On a thread of its own, since this one may be the event loop's.
        cancelling = threading.Thread(target=lambda: asyncio.run(cancel(shop.app.database, ctx)))
        cancelling.start()
        cancelling.join(SECONDS)

    work = shop.declare(kind, inside)
    async with shop.working():
        job = await work.enqueue("never")
        await eventually(lambda: bool(shop.errors), seconds=SECONDS)
    # A worker that hears of it in time interrupts an async function; a plain one goes on, and its mark is refused.
    assert isinstance(shop.errors[0], LeaseLost if kind.plain else (LeaseLost, asyncio.CancelledError))
    assert (await job.refresh()).status is CANCELLED
    assert await shop.left_behind(job) == NOTHING


async def cancel(url: str, ctx: tenure.Context) -> None:
    async with tenure.App(url) as app:
        await app.cancel(ctx.id, hard=True)


@named("sqlite-sqlite3")
@pytest.mark.requirement("EL-04", "SM-10")
async def test_on_sqlite_a_job_that_was_cancelled_before_the_block_leaves_nothing(shop: Shop, kind: Kind) -> None:
    entering, cancelled = threading.Event(), threading.Event()

    @shop.app.job()
    def work(ctx: tenure.Context) -> None:
        entering.set()
        cancelled.wait(SECONDS)
        try:
            with sqlite_plain(shop.app.database) as own, ctx.commit(conn=own.connection) as tx:
                own.run(insert("never"))
                shop.everything(ctx, tx, own.connection)
        except LeaseLost as refusal:
            shop.errors.append(refusal)
            raise

    async with shop.working():
        job = await work.enqueue()
        await eventually(entering.is_set, seconds=SECONDS)
        assert (await job.cancel(hard=True)).status is CANCELLED
        cancelled.set()
        await eventually(lambda: bool(shop.errors), seconds=SECONDS)
    assert await shop.left_behind(job) == NOTHING


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("kind", KINDS, ids=str, indirect=True)
async def test_a_block_that_is_left_after_its_deadline_rolls_back_whole(shop: Shop, kind: Kind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        shop.everything(ctx, tx, connection)
        threading.Event().wait(0.4)

    work = shop.declare(kind, inside, deadline_seconds=0.3)
    async with shop.working():
        job = await work.enqueue("never")
        await job.wait(SECONDS)
    assert [type(error) for error in shop.errors] == [DeadlinePassed]
    assert "rolled back" in str(shop.errors[0])
    assert await shop.left_behind(job) == NOTHING


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.awaited], ids=str, indirect=True)
async def test_code_that_waits_inside_is_interrupted_at_the_deadline(shop: Shop, kind: Kind) -> None:
    @shop.app.job(max_attempts=1)
    async def work(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(shop.app.database) as own:
            try:
                async with ctx.commit(conn=own.connection, deadline_seconds=0.3):
                    await own.run(insert("never"))
                    await asyncio.sleep(SECONDS)
            except DeadlinePassed as late:
                shop.errors.append(late)
            async with ctx.commit(conn=own.connection):
                await own.run(insert("after all"))

    async with shop.working():
        job = await work.enqueue()
        assert (await job.wait(SECONDS)).status is SUCCEEDED
    assert len(shop.errors) == 1
    assert (await shop.left_behind(job))["effects"] == ["after all"]


@named("sqlite-sqlite3")
async def test_on_sqlite_no_deadline_lets_a_block_be_in_everybodys_way(shop: Shop, kind: Kind) -> None:
    with sqlite_plain(shop.app.database) as own:
        assert shop.app.borrow(own.connection).deadline_seconds_max < 5.0


@named(*ONE_OF_EACH)
@pytest.mark.requirement("EL-03")
async def test_a_second_commit_is_refused_and_leaves_nothing(shop: Shop, kind: Kind) -> None:
    @shop.app.job(kind="plainly")
    def plainly(ctx: tenure.Context) -> int:
        assert kind.plain is not None
        with kind.plain(shop.app.database) as own:
            with ctx.commit(result=1, conn=own.connection):
                own.run(insert("first"))
            try:
                with ctx.commit(result=2, conn=own.connection):
                    own.run(insert("second"))
            except AlreadyCommitted as refusal:
                shop.errors.append(refusal)
        return 1

    @shop.app.job(kind="awaited")
    async def awaited(ctx: tenure.Context) -> int:
        assert kind.awaited is not None
        async with kind.awaited(shop.app.database) as own:
            async with ctx.commit(result=1, conn=own.connection):
                await own.run(insert("first"))
            try:
                async with ctx.commit(result=2, conn=own.connection):
                    await own.run(insert("second"))
            except AlreadyCommitted as refusal:
                shop.errors.append(refusal)
        return 1

    async with shop.working():
        job = await (plainly if kind.plain else awaited).enqueue()
        assert await job.result(SECONDS) == 1
    assert len(shop.errors) == 1
    left = await shop.left_behind(job)
    assert (left["effects"], left["committed"]) == (["first"], 1)


@named(*ONE_OF_EACH)
async def test_a_name_that_is_attached_twice_is_refused_and_nothing_is_kept(shop: Shop, kind: Kind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        shop.everything(ctx, tx, connection)
        tx.attach("late.bin", b"again")

    work = shop.declare(kind, inside)
    async with shop.working():
        job = await work.enqueue("never")
        await job.wait(SECONDS)
    assert [type(error) for error in shop.errors] == [InvalidInput]
    assert "late.bin" in str(shop.errors[0])
    assert await shop.left_behind(job) == NOTHING


@named(*ONE_OF_EACH)
async def test_jobs_that_are_queued_within_the_connection_belong_to_the_block(shop: Shop, kind: Kind) -> None:
    fails = threading.Event()

    @shop.app.job(kind="plainly", max_attempts=1)
    def plainly(ctx: tenure.Context) -> None:
        assert kind.plain is not None
        with kind.plain(shop.app.database) as own, ctx.commit(conn=own.connection):
            shop.follow.within(own.connection).enqueue_sync("within")
            if fails.is_set():
                raise ValueError("changed my mind")

    @shop.app.job(kind="awaited", max_attempts=1)
    async def awaited(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(shop.app.database) as own, ctx.commit(conn=own.connection):
            await shop.follow.within(own.connection).enqueue("within")
            if fails.is_set():
                raise ValueError("changed my mind")

    work = plainly if kind.plain else awaited
    async with shop.working():
        assert (await (await work.enqueue()).wait(SECONDS)).status is SUCCEEDED
        fails.set()
        job = await work.enqueue()
        assert (await job.wait(SECONDS)).status is FAILED
    assert (await shop.left_behind(job))["jobs"] == 1


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
