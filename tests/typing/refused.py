"""What a type checker must refuse, each mistake on a line of its own. Checked by tests/project/test_typing.py.

The comment on a line names the error that it must be; a comment on a line that has none is an error too.
"""

from __future__ import annotations

import tenure
from tenure.client.job_function import Enqueuer

app = tenure.App("sqlite:///never.db")


@app.job()
async def async_with_context(ctx: tenure.Context, to: str, weight: float = 1.0) -> int:
    return len(to)


@app.job()
async def async_without_context(n: int, *, loud: bool = False) -> str:
    return str(n)


@app.job()
def plain_with_context(ctx: tenure.Context, name: str) -> list[str]:
    return [name]


@app.job()
def plain_without_context(n: int) -> int:
    return n


async def missing_arguments(ctx: tenure.Context) -> None:
    await async_with_context.enqueue()  # type: ignore[call-arg]
    await async_without_context.enqueue(loud=True)  # type: ignore[call-arg]
    plain_with_context.enqueue_sync()  # type: ignore[call-arg]
    plain_without_context.request()  # type: ignore[call-arg]
    await plain_without_context.options(priority=1).enqueue()  # type: ignore[call-arg]
    await plain_without_context.within(object()).enqueue()  # type: ignore[call-arg]


async def wrong_types(ctx: tenure.Context) -> None:
    await async_with_context.enqueue(7)  # type: ignore[arg-type]
    await async_with_context.enqueue("ada", weight="heavy")  # type: ignore[arg-type]
    await async_without_context.enqueue("seven")  # type: ignore[arg-type]
    plain_with_context.enqueue_sync(b"ada")  # type: ignore[arg-type]
    plain_without_context.request(None)  # type: ignore[arg-type]
    await async_without_context.options(delay_seconds=1).enqueue([1])  # type: ignore[arg-type]
    plain_with_context.within(object()).enqueue_sync(7)  # type: ignore[arg-type]


async def extra_arguments(ctx: tenure.Context) -> None:
    await async_with_context.enqueue("ada", 1.0, 2)  # type: ignore[call-arg]
    await async_without_context.enqueue(1, True)  # type: ignore[call-arg] # noqa: FBT003
    await async_without_context.enqueue(1, colour="red")  # type: ignore[call-arg]
    plain_without_context.enqueue_sync(1, 2)  # type: ignore[call-arg]
    plain_without_context.request(1, m=2)  # type: ignore[call-arg]
    await async_with_context.enqueue(ctx, "ada")  # type: ignore[arg-type]


async def wrong_use_of_results() -> None:
    number: str = await (await async_with_context.enqueue("ada")).result()  # type: ignore[assignment]
    names: list[int] = await plain_with_context.enqueue_sync("ada").result()  # type: ignore[assignment]
    (await (await async_without_context.enqueue(1)).result()).append(2)  # type: ignore[attr-defined]
    handle: tenure.Handle[str] = await plain_without_context.enqueue(1)  # type: ignore[assignment]
    handles = await app.enqueue_many([plain_without_context.request(1)])
    (await handles[0].result()).upper()  # type: ignore[attr-defined]
    text: str = await (await plain_without_context.get("id")).result()  # type: ignore[assignment]
    plain_without_context.enqueue_sync(1).result_sync().upper()  # type: ignore[attr-defined]
    await app.get(7)  # type: ignore[arg-type]
    tenure.JobFilter(statuses=[7])  # type: ignore[list-item]
    del text
    del number, names, handle


async def wrong_options() -> None:
    app.job(max_attempts="three")  # type: ignore[call-overload]
    app.job(on_lost="forget")  # type: ignore[call-overload]
    app.job(isolation="container")  # type: ignore[call-overload]
    app.job(retries=3)  # type: ignore[call-overload]
    plain_without_context.options(prio=1)  # type: ignore[call-arg]
    plain_without_context.options(at="noon")  # type: ignore[arg-type]
    app.testing("at once")  # type: ignore[arg-type]
    await app.enqueue_many([plain_without_context])  # type: ignore[arg-type]


def takes_any_job_of_a_number(job: Enqueuer[[int], int]) -> None: ...


takes_any_job_of_a_number(plain_with_context)  # type: ignore[arg-type]
app.job()(7)  # type: ignore[call-overload]
plain_without_context("one")  # type: ignore[arg-type]
bare: str = plain_without_context(1)  # type: ignore[assignment]
