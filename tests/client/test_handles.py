"""Jobs found again by id, in async and sync code; what waiting for them raises; calling a job as a function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.errors import InvalidInput, JobFailed, JobNotFound
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually


class Shop:
    """An app with a few jobs."""

    def __init__(self, url: str) -> None:
        self.app = tenure.App(url)

        @self.app.job(queue="tills")
        async def price(item: str) -> int:
            return len(item)

        @self.app.job
        def count(number: int) -> int:
            return number

        @self.app.job(max_attempts=1)
        async def broken(item: str) -> int:
            raise LookupError(f"no {item}")

        self.price, self.count, self.broken = price, count, broken


@pytest.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with database.opened():
        pass
    shop = Shop(database.url)
    async with shop.app:
        yield shop


async def test_a_job_is_found_by_its_id_or_the_text_of_it(shop: Shop) -> None:
    enqueued = await shop.price.enqueue("hat")
    async with working(shop.app):
        for job_id in (enqueued.id, str(enqueued.id)):
            assert await (await shop.app.get(job_id)).result(30) == 3
            assert await (await shop.price.get(job_id)).result(30) == 3
    other = tenure.App(shop.app.database)
    async with other:
        assert await (await other.get(enqueued.id)).result(30) == 3, "a kind that the app does not declare"


async def test_an_id_that_is_none_or_of_another_job_is_refused(shop: Shop) -> None:
    enqueued = await shop.price.enqueue("hat")
    with pytest.raises(InvalidInput, match="'seven' is not the id of a job"):
        await shop.app.get("seven")
    with pytest.raises(JobNotFound):
        await shop.app.get(UUID(int=7))
    with pytest.raises(InvalidInput, match=f"job {enqueued.id} is of kind 'price', not 'count'"):
        await shop.count.get(enqueued.id)
    assert (await shop.app.cancel(str(enqueued.id))).status == "cancelled"


async def test_sync_code_enqueues_waits_and_cancels_without_an_event_loop(shop: Shop) -> None:
    def use() -> tuple[list[int], int, str, str]:
        handles = shop.app.enqueue_many_sync([shop.price.request("hat"), shop.price.request("shirt")])
        results = [handle.result_sync(30) for handle in handles]
        again = shop.price.get_sync(str(handles[0].id)).result_sync(30)
        found = shop.app.get_sync(handles[1].id)
        waiting = shop.count.options(delay_seconds=600).enqueue_sync(1)
        other = shop.count.options(delay_seconds=600).enqueue_sync(1)
        assert waiting.cancel_sync().status == "cancelled"
        assert shop.app.cancel_sync(other.id).status == "cancelled"
        return results, again, found.wait_sync(30).status, other.refresh_sync().status

    async with working(shop.app):
        assert await asyncio.to_thread(use) == ([3, 5], 3, "succeeded", "cancelled")


async def test_sync_code_signals_retries_and_reads_the_state_of_a_run_without_an_event_loop(shop: Shop) -> None:
    @shop.app.workflow(max_attempts=1)
    async def order(run: tenure.Run) -> list[int]:
        await run.state({"phase": "waiting"})
        return [await run.wait_for("paid", int), await run.wait_for("packed", int)]

    def use() -> tuple[list[int], object, bool, str]:
        handle = order.enqueue_sync()
        handle.signal_sync("paid", 1)
        shop.app.signal_sync(handle.id, "packed", 2)
        result = handle.result_sync(30)
        failed = shop.broken.enqueue_sync("hat")
        failed.wait_sync(30)
        again = shop.app.retry_sync(failed.id)
        return result, handle.state_sync(), again.job.origin.redrive_of == failed.id, again.wait_sync(30).status

    async with working(shop.app):
        assert await asyncio.to_thread(use) == ([1, 2], {"phase": "waiting"}, True, "dead_lettered")


async def test_a_retry_and_a_redrive_return_the_handle_of_the_new_job(shop: Shop) -> None:
    async with working(shop.app):
        failed = await shop.broken.enqueue("hat")
        await failed.wait(30)
        again = await shop.app.retry(str(failed.id))
        assert (again.created, again.job.origin.redrive_of) == (True, failed.id)
        assert (await again.wait(30)).status == "dead_lettered"
        repeated = await shop.app.redrive(failed.id)
        assert (repeated.created, repeated.id) == (False, again.id)


async def test_a_failed_job_says_type_and_message_and_has_the_rest_as_attributes(shop: Shop) -> None:
    async with working(shop.app):
        handle = await shop.broken.enqueue("hat")
        with pytest.raises(JobFailed) as failed:
            await handle.result(30)
    error = failed.value
    became = f"job {handle.id} (broken) became a dead letter (exhausted_retries)"
    assert str(error) == f"{became}: LookupError: no hat"
    assert (error.error_type, error.error_message, error.job.id) == ("LookupError", "no hat", handle.id)
    assert "Traceback (most recent call last)" in (error.traceback_text or "")


async def test_a_timeout_says_which_job_is_where(shop: Shop) -> None:
    handle = await shop.price.enqueue("hat")
    with pytest.raises(TimeoutError) as late:
        await handle.result(0.01)
    says = f"job {handle.id} (price) has not ended within 0.01 s: it is queued in queue 'tills', due at "
    assert str(late.value).startswith(says)
    assert "a worker that serves the queue" in str(late.value)


async def test_a_timeout_names_the_worker_that_runs_the_job(shop: Shop) -> None:
    go = asyncio.Event()

    @shop.app.job
    async def slow() -> None:
        await go.wait()

    async with working(shop.app) as worker:
        handle = await slow.enqueue()

        async def runs() -> bool:
            return (await handle.refresh()).status == "running"

        await eventually(runs)
        with pytest.raises(TimeoutError, match=f"it is running, attempt 1, on worker {worker.name}; it continues"):
            await handle.wait(0.01)
        go.set()


async def test_a_job_is_called_like_its_function_in_tests_and_in_other_jobs(shop: Shop) -> None:
    @shop.app.job
    async def tag(ctx: tenure.Context, item: str) -> str:
        return f"{item} {ctx.id}"

    @shop.app.job
    async def order(item: str) -> tuple[int, int, str]:
        return await shop.price(item), shop.count(7), await tag(item)

    assert await shop.price("hat") == 3
    assert shop.count(number=7) == 7
    with pytest.raises(InvalidInput, match=r"call tag.function\(ctx, …\)"):
        await tag("hat")
    async with shop.app.testing() as harness:
        handle = await order.enqueue("hat")
        await harness.drain(raise_errors=True)
        assert await handle.result() == (3, 7, f"hat {handle.id}")
        assert len((await shop.app.find(tenure.JobFilter())).jobs) == 1, "a call enqueues nothing"


async def test_jobs_are_filtered_by_statuses_as_text(shop: Shop) -> None:
    handle = await shop.price.enqueue("hat")
    await (await shop.price.enqueue("cap")).cancel()
    page = await shop.app.find(tenure.JobFilter(statuses=["queued"], kinds=["price"]))
    assert [job.id for job in page.jobs] == [handle.id]
    assert (await shop.app.find(tenure.JobFilter(), after=str(handle.id))).after is None
    with pytest.raises(InvalidInput, match="'broken' is not a status; known are: queued, claimed"):
        tenure.JobFilter(statuses=["broken"])
    with pytest.raises(InvalidInput, match="statuses: must be a list, not the text 'failed'"):
        tenure.JobFilter(statuses="failed")


async def test_an_app_migrates_its_database(database: Database) -> None:
    app = tenure.App(database.url)

    @app.job
    async def work() -> int:
        return 7

    assert [migration.number for migration in await app.migrate()][:1] == [1]
    assert await app.migrate() == []
    async with app:
        assert (await work.enqueue()).job.status == "queued"


def test_what_is_not_a_function_of_its_own_is_refused_at_its_declaration() -> None:
    app = tenure.App("sqlite:///never.db")

    class Robot:
        def work(self, n: int) -> int:
            return n

        def __call__(self, n: int) -> int:
            return n

    refused: list[tuple[Any, str]] = [
        (Robot, "is a class, and a job is a function"),
        (Robot.work, "is a method, whose object no payload holds"),
        (Robot().work, "is not a function"),
        (Robot(), "is not a function"),
        (len, "is not a function"),
        (lambda n: n, "has no name under which jobs are stored"),
    ]
    for wrong, problem in refused:
        with pytest.raises(InvalidInput, match=problem):
            app.job(wrong)
        with pytest.raises(InvalidInput, match=problem):
            app.job(kind="work")(wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        app.job(retries=3)  # type: ignore[call-overload]


async def test_a_first_parameter_named_ctx_is_the_context_without_an_annotation() -> None:
    app = tenure.App("sqlite:///never.db")
    namespace: dict[str, Any] = {}
    exec("def work(ctx, n):\n    return [ctx.attempt, n]", namespace)  # noqa: S102 - mypy wants annotations
    work: Any = app.job(namespace["work"])
    async with app.testing() as harness:
        handle = await work.enqueue(7)
        await harness.drain(raise_errors=True)
        assert await handle.result() == [1, 7]


def test_the_package_lists_its_public_names() -> None:
    plain = {name for name in dir(tenure) if not name.startswith("__")}
    modules = {name for name in plain if isinstance(getattr(tenure, name), ModuleType)}
    assert plain - modules == set(tenure.__all__)
