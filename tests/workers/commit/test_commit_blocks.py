"""`ctx.commit`: all content of the block is committed with the commit mark, once, or rolled back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import tenure
from tenure.errors import AlreadyCommitted, DeadlinePassed, InvalidInput, LeaseLost
from tenure.lifecycle.statuses import CANCELLED, SUCCEEDED
from tenure.stores.contract import Store
from tenure.workers.worker import Worker
from tests.support.databases import Database
from tests.support.in_process_worker import working

TABLE = "create table effects (job text not null, attempt integer not null, note text)"
INSERT = "insert into effects (job, attempt, note) values ($1, $2, $3)"


class CommitApp:
    """An app with a worker, and a table of the user beside tenure's."""

    def __init__(self, app: tenure.App) -> None:
        self.app = app

    async def store(self) -> Store:
        return await self.app.store()

    async def effects(self) -> list[dict[str, Any]]:
        async with (await self.store()).transaction(deadline_seconds=5) as tx:
            return await tx.fetch("select job, attempt, note from effects order by note")

    def working(self, **options: Any) -> AbstractAsyncContextManager[Worker]:
        return working(self.app, **{"grace_seconds": 5.0, **options})


@pytest.fixture
async def commit_app(database: Database) -> AsyncIterator[CommitApp]:
    app = tenure.App(database.url)
    async with database.opened() as store, store.transaction(deadline_seconds=5) as tx:
        await tx.execute(TABLE)
    yield CommitApp(app)
    await app.close()


@pytest.mark.requirement("EL-04", "SM-20")
async def test_sql_result_artifacts_messages_and_further_jobs_take_effect_with_the_commit(
    commit_app: CommitApp,
) -> None:
    @commit_app.app.job()
    async def follow(n: int) -> int:
        return n

    @commit_app.app.job()
    async def work(ctx: tenure.Context, note: str) -> str:
        ctx.attach("early.txt", "attached before the block")
        async with ctx.commit(result=note) as tx:
            assert await tx.execute(INSERT, str(ctx.id), ctx.attempt, note) == 1
            assert await tx.fetch("select note from effects where job = $1", str(ctx.id)) == [{"note": note}]
            tx.enqueue(follow.request(41))
            tx.outbox("work.done", {"note": note}, aggregate="a")
            tx.attach("late.bin", b"\x00\x01")
        return note

    async with commit_app.working():
        job = await work.enqueue("hello")
        assert await job.result(20) == "hello"
        store = await commit_app.store()
        assert [row["note"] for row in await commit_app.effects()] == ["hello"]
        assert [a.name for a in await store.artifacts(job.id)] == ["early.txt", "late.bin"]
        late = await store.artifact(job.id, "late.bin")
        assert late is not None
        assert late.body == b"\x00\x01"
        types = [event.type for event in await job.events()]
        assert types == ["enqueued", "claimed", "started", "committed", "succeeded"]
        page = await commit_app.app.find(tenure.JobFilter(kinds=("follow",)))
        assert len(page.jobs) == 1
        assert page.jobs[0].origin.correlation_id == str(job.id)


@pytest.mark.requirement("EL-04")
async def test_a_sync_function_commits_with_with(commit_app: CommitApp) -> None:
    @commit_app.app.job()
    def work(ctx: tenure.Context, note: str) -> str:
        with ctx.commit(result=note) as tx:
            tx.execute(INSERT, str(ctx.id), ctx.attempt, note)
            assert tx.fetch("select count(*) as n from effects where job = $1", str(ctx.id)) == [{"n": 1}]
        return note

    async with commit_app.working():
        jobs = [await work.enqueue(f"n{i}") for i in range(5)]
        assert [await job.result(20) for job in jobs] == [f"n{i}" for i in range(5)]
    assert [row["note"] for row in await commit_app.effects()] == [f"n{i}" for i in range(5)]


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_an_error_inside_the_block_rolls_everything_back(commit_app: CommitApp, sync: bool) -> None:
    async def fails(ctx: tenure.Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
            tx.outbox("never", {})
            raise tenure.PermanentError("changed my mind")

    def fails_sync(ctx: tenure.Context) -> None:
        with ctx.commit() as tx:
            tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
            raise tenure.PermanentError("changed my mind")

    declared: Any = commit_app.app.job(kind="fails")(fails_sync if sync else fails)
    async with commit_app.working():
        job = await declared.enqueue()
        ended = await job.wait(20)
    assert (ended.status, ended.committed) == ("failed", False)
    assert "changed my mind" in (ended.error or "")
    assert await commit_app.effects() == []


async def test_an_error_of_the_users_sql_is_the_jobs_error_and_rolls_back(commit_app: CommitApp) -> None:
    @commit_app.app.job(max_attempts=1, on_exhausted="fail")
    async def work(ctx: tenure.Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
            await tx.execute("insert into no_such_table values (1)")

    async with commit_app.working():
        ended = await (await work.enqueue()).wait(20)
    assert ended.status == "failed"
    assert "no_such_table" in (ended.error or "")
    assert await commit_app.effects() == []


@pytest.mark.requirement("EL-05", "EL-06")
async def test_an_error_after_the_commit_does_not_run_the_effect_again(
    commit_app: CommitApp, caplog: pytest.LogCaptureFixture
) -> None:
    @commit_app.app.job()
    async def work(ctx: tenure.Context) -> str:
        async with ctx.commit(result="committed") as tx:
            await tx.execute(INSERT, str(ctx.id), ctx.attempt, "once")
        raise RuntimeError("after the fact")

    async with commit_app.working():
        job = await work.enqueue()
        assert await job.result(20) == "committed"
    assert len(await commit_app.effects()) == 1
    assert "after the fact" in caplog.text


async def test_a_result_other_than_the_committed_one_is_logged_and_ignored(
    commit_app: CommitApp, caplog: pytest.LogCaptureFixture
) -> None:
    @commit_app.app.job()
    async def work(ctx: tenure.Context) -> str:
        async with ctx.commit(result="committed"):
            pass
        return "something else"

    async with commit_app.working():
        assert await (await work.enqueue()).result(20) == "committed"
    assert "returned another result than it committed" in caplog.text


@pytest.mark.requirement("EL-03")
async def test_a_second_commit_is_refused_and_writes_nothing(commit_app: CommitApp) -> None:
    errors: list[str] = []

    @commit_app.app.job()
    async def work(ctx: tenure.Context) -> int:
        async with ctx.commit(result=1) as tx:
            await tx.execute(INSERT, str(ctx.id), ctx.attempt, "first")
        try:
            async with ctx.commit(result=2) as tx:
                await tx.execute(INSERT, str(ctx.id), ctx.attempt, "second")
        except AlreadyCommitted as refusal:
            errors.append(str(refusal))
        return 1

    async with commit_app.working():
        assert await (await work.enqueue()).result(20) == 1
    assert [row["note"] for row in await commit_app.effects()] == ["first"]
    assert len(errors) == 1


@pytest.mark.requirement("EL-04", "LC-05")
async def test_a_block_under_a_lease_that_was_revoked_rolls_everything_back(commit_app: CommitApp) -> None:
    errors: list[BaseException] = []
    inside = asyncio.Event()

    @commit_app.app.job(lease_seconds=30)
    async def work(ctx: tenure.Context) -> None:
        inside.set()
        await cancelled.wait()
        try:
            async with ctx.commit() as tx:
                await tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
        except LeaseLost as refusal:
            errors.append(refusal)
            raise

    cancelled = asyncio.Event()
    async with commit_app.working():
        job = await work.enqueue()
        await asyncio.wait_for(inside.wait(), 20)
        ended = await job.cancel(hard=True)
        cancelled.set()
        assert ended.status is CANCELLED
    assert await commit_app.effects() == []
    assert (await job.refresh()).status is CANCELLED


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_block_that_outlives_its_deadline_rolls_everything_back(commit_app: CommitApp, sync: bool) -> None:
    errors: list[BaseException] = []

    async def slow(ctx: tenure.Context) -> None:
        try:
            async with ctx.commit(deadline_seconds=0.2) as tx:
                await tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
                await asyncio.sleep(30)
        except DeadlinePassed as late:
            errors.append(late)

    def slow_sync(ctx: tenure.Context) -> None:
        try:
            with ctx.commit(deadline_seconds=0.2) as tx:
                for _ in range(3000):
                    tx.execute(INSERT, str(ctx.id), ctx.attempt, "never")
                    waiting.wait(0.01)
        except DeadlinePassed as late:
            errors.append(late)

    waiting = threading.Event()
    declared: Any = commit_app.app.job(kind="slow")(slow_sync if sync else slow)
    async with commit_app.working():
        ended = await (await declared.enqueue()).wait(20)
    assert [type(error) for error in errors] == [DeadlinePassed]
    assert "rolled back" in str(errors[0])
    assert await commit_app.effects() == []
    assert (ended.status, ended.result) == (SUCCEEDED, "null")


async def test_misuse_of_the_block_raises_an_error_with_what_to_do_instead(commit_app: CommitApp) -> None:
    errors: dict[str, str] = {}

    @commit_app.app.job()
    async def other() -> None: ...

    @commit_app.app.job()
    async def work(ctx: tenure.Context) -> None:
        try:
            with ctx.commit():
                pass
        except InvalidInput as problem:
            errors["with"] = str(problem)
        try:
            async with ctx.commit():
                await other.enqueue()
        except tenure.TenureError as problem:
            errors["enqueue"] = str(problem)
        try:
            ctx.attach("", b"")
        except InvalidInput as problem:
            errors["artifact"] = str(problem)

    async with commit_app.working():
        await (await work.enqueue()).wait(20)
    assert "async with" in errors["with"]
    assert "tx.enqueue" in errors["enqueue"]
    assert set(errors) == {"with", "enqueue", "artifact"}


@pytest.mark.requirement("SM-20")
async def test_artifacts_without_a_commit_block_are_written_with_the_completion_and_not_with_a_failure(
    commit_app: CommitApp,
) -> None:
    @commit_app.app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def work(ctx: tenure.Context) -> None:
        ctx.attach("log.txt", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("not yet")

    async with commit_app.working():
        job = await work.enqueue()
        await job.result(20)
    store = await commit_app.store()
    [record] = await store.artifacts(job.id)
    assert (record.name, record.attempt, record.media_type) == ("log.txt", 2, "text/plain; charset=utf-8")
    artifact = await store.artifact(job.id, "log.txt")
    assert artifact is not None
    assert artifact.body == b"attempt 2"


@pytest.mark.requirement("SM-20", "SM-10")
async def test_a_hard_cancel_drops_the_artifacts(commit_app: CommitApp) -> None:
    attached = asyncio.Event()

    @commit_app.app.job()
    async def work(ctx: tenure.Context) -> None:
        ctx.attach("half.txt", "half")
        attached.set()
        await asyncio.sleep(60)

    async with commit_app.working():
        job = await work.enqueue()
        await asyncio.wait_for(attached.wait(), 20)
        await job.cancel(hard=True)
    store = await commit_app.store()
    assert await store.artifacts(job.id) == []
    assert (await job.refresh()).status is CANCELLED
