"""`ctx.commit(conn=…)`: the mark, and all that goes along with it, in a session of the user's own."""

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
from tests.support.own_session_app import BODY, NOTHING, ONE_OF_EACH, SECONDS, Shop, insert, named
from tests.support.own_sessions import KINDS, Kind, sqlite_plain
from tests.support.waiting import eventually


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
