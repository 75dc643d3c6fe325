"""What a type checker must accept, and the types that it must find. Checked by tests/project/test_typing.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, assert_type
from uuid import UUID

import msgspec

import tenure
from tenure.client.job_function import Enqueuer, PreparedCall
from tenure.testing.harness.harness import Harness
from tenure.testing.harness.report import HarnessReport

app = tenure.App("sqlite:///never.db")


class Address(msgspec.Struct):
    """An argument with a type of its own."""

    street: str


class Parcel(msgspec.Struct):
    """A result with a type of its own."""

    to: Address
    weight: float


@app.job()
async def async_with_context(ctx: tenure.Context, to: Address, weight: float = 1.0) -> Parcel:
    assert_type(ctx.id, UUID)
    assert_type(ctx.attempt, int)
    async with ctx.commit(result=weight) as tx:
        assert_type(await tx.execute("delete from parcels where street = $1", to.street), int)
        assert_type(await tx.fetch("select 1"), list[dict[str, Any]])
        assert_type(tx.enqueue(plain_without_context.request(1)), UUID)
        tx.outbox("parcel.sent", {"to": to.street}, aggregate=to.street)
    return Parcel(to, weight)


@app.job(queue="mail", max_attempts=3, retry_on=OSError, fail_on=(KeyError, ValueError))
async def async_without_context(n: int, *, loud: bool = False) -> list[str]:
    return ["!" if loud else "."] * n


@app.job(isolation="process", memory_bytes_max=10**9)
def plain_with_context(ctx: tenure.Context, name: str) -> dict[str, int]:
    with ctx.commit() as tx:
        assert_type(tx.execute("delete from parcels"), int)
        assert_type(tx.fetch("select 1"), list[dict[str, Any]])
    return {name: ctx.attempt}


@app.job(backoff=tenure.Backoff(base_seconds=1), timeouts=tenure.Timeouts(queued_seconds=30))
def plain_without_context(n: int) -> int | None:
    return n or None


@app.job()
async def async_with_nothing(ctx: tenure.Context) -> None: ...


@app.job()
def plain_with_nothing() -> None: ...


async def enqueue() -> None:
    """Each form of each function, with the result that its handle promises."""
    first = await async_with_context.enqueue(Address("Main"), weight=2.0)
    assert_type(first, tenure.Handle[Parcel])
    assert_type(await first.result(timeout_seconds=10), Parcel)
    assert_type(first.id, UUID)
    assert_type(first.created, bool)
    assert_type(await first.wait(), tenure.Job)
    assert_type(await first.cancel(hard=True), tenure.Job)

    assert_type(await (await async_without_context.enqueue(3, loud=True)).result(), list[str])
    assert_type(await (await plain_with_context.enqueue("ada")).result(), dict[str, int])
    assert_type(await (await plain_without_context.enqueue(n=7)).result(), int | None)
    assert_type(await async_with_nothing.enqueue(), tenure.Handle[None])
    assert_type(await plain_with_nothing.enqueue(), tenure.Handle[None])


def enqueue_without_a_loop() -> None:
    """The same for plain code."""
    assert_type(async_with_context.enqueue_sync(Address("Main")), tenure.Handle[Parcel])
    assert_type(plain_without_context.enqueue_sync(7), tenure.Handle[int | None])


async def enqueue_with_options(session: object) -> None:
    """Options keep the signature and the result."""
    urgent = async_without_context.options(priority=5, delay_seconds=30, dedupe_key="k", tags={"tenant": "x"})
    async_without_context.options(at=datetime(2030, 1, 1, tzinfo=UTC), max_attempts=3)
    assert_type(await urgent.enqueue(3, loud=False), tenure.Handle[list[str]])
    assert_type(urgent.enqueue_sync(3), tenure.Handle[list[str]])
    assert_type(await plain_with_context.within(session).enqueue("ada"), tenure.Handle[dict[str, int]])
    assert_type(
        plain_with_context.options(queue="q").within(session).enqueue_sync("ada"), tenure.Handle[dict[str, int]]
    )


async def enqueue_many() -> None:
    """Calls of one kind keep their type; a mixture has what they share."""
    assert_type(plain_without_context.request(1), PreparedCall[int | None])
    same = await app.enqueue_many(plain_with_context.request(name) for name in ("ada", "bob"))
    assert_type(same, list[tenure.Handle[dict[str, int]]])
    mixed: list[PreparedCall[Any]] = [plain_with_context.request("ada"), async_without_context.request(1)]
    assert_type(await app.enqueue_many(mixed), list[tenure.Handle[Any]])
    await app.enqueue_many([plain_with_context.request("ada"), async_without_context.request(1)])
    app.enqueue_many_sync([plain_with_context.request("ada"), plain_with_nothing.request()])
    assert_type(await app.submit("plain_with_context", '{"name":"ada"}'), tenure.Handle[Any])


@app.job
async def bare_async(ctx: tenure.Context, n: int) -> int:
    assert_type(await async_without_context(n, loud=True), list[str])
    assert_type(plain_without_context(n), int | None)
    return n


@app.job
def bare_plain(name: str) -> str:
    return name


async def find_again(text: str, job_id: UUID) -> None:
    """Handles by id, as text or UUID; typed by the job that they are asked of."""
    assert_type(await app.get(text), tenure.Handle[Any])
    assert_type(await bare_async.get(job_id), tenure.Handle[int])
    assert_type(await (await bare_plain.get(text)).result(), str)
    assert_type(await app.retry(text), tenure.Handle[Any])
    assert_type(await app.redrive(job_id), tenure.Handle[Any])
    assert_type(await app.cancel(text), tenure.Job)
    tenure.JobFilter(statuses=["failed"], kinds=["mail"])
    tenure.JobFilter(statuses=(tenure.Status.FAILED,))


def without_a_loop(text: str) -> None:
    """The sync forms."""
    assert_type(bare_plain.enqueue_sync("ada").result_sync(10), str)
    assert_type(bare_async.get_sync(text), tenure.Handle[int])
    assert_type(app.get_sync(text), tenure.Handle[Any])
    assert_type(app.get_sync(text).wait_sync(), tenure.Job)
    assert_type(app.get_sync(text).cancel_sync(), tenure.Job)
    assert_type(app.cancel_sync(text), tenure.Job)
    assert_type(bare_plain("ada"), str)


def takes_any_job_of_a_name(job: Enqueuer[[str], dict[str, int]]) -> None:
    """What a job is can be written down, and so be passed on."""
    job.enqueue_sync("ada")


takes_any_job_of_a_name(plain_with_context)
takes_any_job_of_a_name(plain_with_context.options(priority=1))
assert_type(plain_with_context.function, Callable[..., Any])


async def test_on_a_bench() -> None:
    """Both ways onto a harness."""
    async with app.testing() as harness:
        assert_type(harness, Harness)
        assert_type(await harness.drain(raise_errors=True), HarnessReport)
    with app.testing("inline") as harness:
        assert_type(harness.drain_sync(), HarnessReport)
        handle = async_without_context.enqueue_sync(1)
        assert_type(harness.run(handle.result), list[str])
