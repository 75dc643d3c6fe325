"""`ctx.commit(conn=…)`: the commit mark and all content of the block, in a session of the user."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import tenure
from tenure.errors import AlreadyCommitted, DeadlinePassed, InvalidInput, LeaseLost
from tenure.lifecycle.statuses import CANCELLED, FAILED, SUCCEEDED
from tests.support.own_session_app import BODY, NOTHING, ONE_OF_EACH, SECONDS, SessionApp, insert, named
from tests.support.own_sessions import KINDS, SessionKind, sqlite_sync
from tests.support.waiting import eventually

PLAIN_SESSIONS = {"psycopg", "asyncpg", "sqlite3", "aiosqlite"}
"""`make test` runs tests that wait for a deadline with these kinds of session, `make test-deep` with all others."""
PER_DRIVER = [pytest.param(kind, marks=[] if kind.name in PLAIN_SESSIONS else [pytest.mark.deep]) for kind in KINDS]
PER_AWAITED_DRIVER = [case for case, kind in zip(PER_DRIVER, KINDS, strict=True) if kind.awaited]


@pytest.mark.requirement("EL-04", "SM-20")
async def test_the_users_row_and_all_content_of_the_block_are_committed_together_and_once(
    session_app: SessionApp, kind: SessionKind
) -> None:
    work = session_app.declare(kind, session_app.write_all)
    async with session_app.working():
        job = await work.enqueue("paid")
        assert await job.result(SECONDS) == "paid"
    assert session_app.errors == []
    assert await session_app.written(job) == {
        "effects": ["paid"],
        "messages": [("first", "a", 1, '{"n":2}'), ("third", "a", 2, '{"n":3}'), ("second", "b", 1, '{"n":1}')],
        "streams": [("a", 2), ("b", 1)],
        "artifacts": ["late.bin"],
        "jobs": 1,
        "committed": 1,
    }
    assert [event.type for event in await job.events()] == ["enqueued", "claimed", "started", "committed", "succeeded"]
    artifact = await (await session_app.app.store()).artifact(job.id, "late.bin")
    assert artifact is not None
    assert artifact.body == BODY
    [record] = await (await session_app.app.store()).artifacts(job.id)
    assert (record.attempt, record.bytes, record.media_type) == (1, len(BODY), "application/octet-stream")
    [(headers, of)] = await session_app.rows("select headers, job_id from $outbox where aggregate = 'b'")
    assert (headers, str(of)) == ('{"h":"ß%s:x"}', str(job.id))
    [followed] = (await session_app.app.find(tenure.JobFilter(kinds=("follow",)))).jobs
    assert followed.origin.correlation_id == str(job.id)


@pytest.mark.requirement("EL-04")
async def test_an_error_inside_the_block_rolls_everything_back(session_app: SessionApp, kind: SessionKind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        session_app.write_all(ctx, tx, connection)
        raise KeyError("changed my mind")

    work = session_app.declare(kind, inside)
    async with session_app.working():
        job = await work.enqueue("never")
        ended = await job.wait(SECONDS)
    assert (ended.status, ended.committed) == (FAILED, False)
    assert [type(error) for error in session_app.errors] == [KeyError]
    assert await session_app.written(job) == NOTHING


async def test_after_an_error_the_session_is_rolled_back_and_can_be_used_again(
    session_app: SessionApp, kind: SessionKind
) -> None:
    @session_app.app.job(kind="sync", max_attempts=1, on_exhausted="fail")
    def sync_job(ctx: tenure.Context) -> None:
        assert kind.sync is not None
        with kind.sync(session_app.app.database) as own:
            with suppress(KeyError), ctx.commit(conn=own.connection):
                own.run(insert("never"))
                raise KeyError("changed my mind")
            with ctx.commit(conn=own.connection):
                own.run(insert("after all"))

    @session_app.app.job(kind="async", max_attempts=1, on_exhausted="fail")
    async def async_job(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(session_app.app.database) as own:
            with suppress(KeyError):
                async with ctx.commit(conn=own.connection):
                    await own.run(insert("never"))
                    raise KeyError("changed my mind")
            async with ctx.commit(conn=own.connection):
                await own.run(insert("after all"))

    async with session_app.working():
        job = await (sync_job if kind.sync else async_job).enqueue()
        assert (await job.wait(SECONDS)).status is SUCCEEDED
    written = await session_app.written(job)
    assert (written["effects"], written["committed"]) == (["after all"], 1)


@pytest.mark.requirement("EL-04", "SM-10")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.sqlite], ids=str, indirect=True)
async def test_a_hard_cancel_inside_the_block_rolls_everything_back(session_app: SessionApp, kind: SessionKind) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        session_app.write_all(ctx, tx, connection)
        with psycopg.connect(session_app.app.database) as other:
            assert other.execute("select count(*) from effects").fetchone() == (0,)
        # On another thread, because this one may run an event loop.
        cancelling = threading.Thread(target=lambda: asyncio.run(cancel(session_app.app.database, ctx)))
        cancelling.start()
        cancelling.join(SECONDS)

    work = session_app.declare(kind, inside)
    async with session_app.working():
        job = await work.enqueue("never")
        await eventually(lambda: bool(session_app.errors), seconds=SECONDS)
    # A worker that is notified in time interrupts an async function; the mark of a sync function is refused.
    assert isinstance(session_app.errors[0], LeaseLost if kind.sync else (LeaseLost, asyncio.CancelledError))
    assert (await job.refresh()).status is CANCELLED
    assert await session_app.written(job) == NOTHING


async def cancel(url: str, ctx: tenure.Context) -> None:
    async with tenure.App(url) as app:
        await app.cancel(ctx.id, hard=True)


@named("sqlite-sqlite3")
@pytest.mark.requirement("EL-04", "SM-10")
async def test_on_sqlite_the_block_of_a_job_that_was_cancelled_before_it_rolls_everything_back(
    session_app: SessionApp, kind: SessionKind
) -> None:
    entering, cancelled = threading.Event(), threading.Event()

    @session_app.app.job()
    def work(ctx: tenure.Context) -> None:
        entering.set()
        cancelled.wait(SECONDS)
        try:
            with sqlite_sync(session_app.app.database) as own, ctx.commit(conn=own.connection) as tx:
                own.run(insert("never"))
                session_app.write_all(ctx, tx, own.connection)
        except LeaseLost as refusal:
            session_app.errors.append(refusal)
            raise

    async with session_app.working():
        job = await work.enqueue()
        await eventually(entering.is_set, seconds=SECONDS)
        assert (await job.cancel(hard=True)).status is CANCELLED
        cancelled.set()
        await eventually(lambda: bool(session_app.errors), seconds=SECONDS)
    assert await session_app.written(job) == NOTHING


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("kind", PER_DRIVER, ids=str, indirect=True)
async def test_a_block_that_is_left_after_its_deadline_rolls_everything_back(
    session_app: SessionApp, kind: SessionKind
) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        session_app.write_all(ctx, tx, connection)
        threading.Event().wait(0.4)

    work = session_app.declare(kind, inside, deadline_seconds=0.3)
    async with session_app.working():
        job = await work.enqueue("never")
        await job.wait(SECONDS)
    assert [type(error) for error in session_app.errors] == [DeadlinePassed]
    assert "rolled back" in str(session_app.errors[0])
    assert await session_app.written(job) == NOTHING


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("kind", PER_AWAITED_DRIVER, ids=str, indirect=True)
async def test_async_code_inside_the_block_is_interrupted_at_the_deadline(
    session_app: SessionApp, kind: SessionKind
) -> None:
    @session_app.app.job(max_attempts=1, on_exhausted="fail")
    async def work(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(session_app.app.database) as own:
            try:
                async with ctx.commit(conn=own.connection, deadline_seconds=0.3):
                    await own.run(insert("never"))
                    await asyncio.sleep(SECONDS)
            except DeadlinePassed as late:
                session_app.errors.append(late)
            async with ctx.commit(conn=own.connection):
                await own.run(insert("after all"))

    async with session_app.working():
        job = await work.enqueue()
        assert (await job.wait(SECONDS)).status is SUCCEEDED
    assert len(session_app.errors) == 1
    assert (await session_app.written(job))["effects"] == ["after all"]


@named("sqlite-sqlite3")
async def test_on_sqlite_every_deadline_is_below_the_busy_timeout_of_other_writers(
    session_app: SessionApp, kind: SessionKind
) -> None:
    with sqlite_sync(session_app.app.database) as own:
        assert session_app.app.user_transaction(own.connection).deadline_seconds_max < 5.0


@named(*ONE_OF_EACH)
@pytest.mark.requirement("EL-03")
async def test_a_second_commit_is_refused_and_writes_nothing(session_app: SessionApp, kind: SessionKind) -> None:
    @session_app.app.job(kind="sync")
    def sync_job(ctx: tenure.Context) -> int:
        assert kind.sync is not None
        with kind.sync(session_app.app.database) as own:
            with ctx.commit(result=1, conn=own.connection):
                own.run(insert("first"))
            try:
                with ctx.commit(result=2, conn=own.connection):
                    own.run(insert("second"))
            except AlreadyCommitted as refusal:
                session_app.errors.append(refusal)
        return 1

    @session_app.app.job(kind="async")
    async def async_job(ctx: tenure.Context) -> int:
        assert kind.awaited is not None
        async with kind.awaited(session_app.app.database) as own:
            async with ctx.commit(result=1, conn=own.connection):
                await own.run(insert("first"))
            try:
                async with ctx.commit(result=2, conn=own.connection):
                    await own.run(insert("second"))
            except AlreadyCommitted as refusal:
                session_app.errors.append(refusal)
        return 1

    async with session_app.working():
        job = await (sync_job if kind.sync else async_job).enqueue()
        assert await job.result(SECONDS) == 1
    assert len(session_app.errors) == 1
    written = await session_app.written(job)
    assert (written["effects"], written["committed"]) == (["first"], 1)


@named(*ONE_OF_EACH)
async def test_an_artifact_name_that_is_attached_twice_is_refused_and_everything_is_rolled_back(
    session_app: SessionApp, kind: SessionKind
) -> None:
    def inside(ctx: tenure.Context, tx: Any, connection: Any) -> None:
        session_app.write_all(ctx, tx, connection)
        tx.attach("late.bin", b"again")

    work = session_app.declare(kind, inside)
    async with session_app.working():
        job = await work.enqueue("never")
        await job.wait(SECONDS)
    assert [type(error) for error in session_app.errors] == [InvalidInput]
    assert "late.bin" in str(session_app.errors[0])
    assert await session_app.written(job) == NOTHING


@named(*ONE_OF_EACH)
async def test_jobs_that_are_enqueued_within_the_connection_belong_to_the_block(
    session_app: SessionApp, kind: SessionKind
) -> None:
    fails = threading.Event()

    @session_app.app.job(kind="sync", max_attempts=1, on_exhausted="fail")
    def sync_job(ctx: tenure.Context) -> None:
        assert kind.sync is not None
        with kind.sync(session_app.app.database) as own, ctx.commit(conn=own.connection):
            session_app.follow.within(own.connection).enqueue_sync("within")
            if fails.is_set():
                raise ValueError("changed my mind")

    @session_app.app.job(kind="async", max_attempts=1, on_exhausted="fail")
    async def async_job(ctx: tenure.Context) -> None:
        assert kind.awaited is not None
        async with kind.awaited(session_app.app.database) as own, ctx.commit(conn=own.connection):
            await session_app.follow.within(own.connection).enqueue("within")
            if fails.is_set():
                raise ValueError("changed my mind")

    work = sync_job if kind.sync else async_job
    async with session_app.working():
        assert (await (await work.enqueue()).wait(SECONDS)).status is SUCCEEDED
        fails.set()
        job = await work.enqueue()
        assert (await job.wait(SECONDS)).status is FAILED
    assert (await session_app.written(job))["jobs"] == 1
