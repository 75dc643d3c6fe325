"""Enqueueing many calls: in batches, of which the next is made while the previous one is written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from tenure.client.job_function import PreparedCall
from tenure.seams import Seams
from tenure.stores import Store
from tenure.stores.contract import EnqueueResult

R = TypeVar("R")

BATCH = 1000
Written = tuple[PreparedCall[R], EnqueueResult]


async def enqueue_in_batches(store: Store, requests: Iterable[PreparedCall[R]], seams: Seams) -> list[Written[R]]:
    """Enqueue the calls, a thousand in a transaction. Returns each with its result."""
    remaining = iter(requests)
    written: list[Written[R]] = []
    # The first is being written; the second waits for it.
    writing: deque[tuple[list[PreparedCall[R]], asyncio.Task[Sequence[EnqueueResult]]]] = deque()
    try:
        while batch := list(islice(remaining, BATCH)):
            if len(batch) < BATCH and not writing:
                return _paired(batch, await store.enqueue([one.enqueue for one in batch]))
            before = writing[-1][1] if writing else None
            adding = store.enqueue([one.enqueue for one in batch], after=before)
            writing.append((batch, seams.spawn.task(adding, name="tenure-enqueue")))
            await _let_it_be_sent(seams)
            if before is not None:
                await before
                await _let_it_be_sent(seams)
                written += _paired(writing[0][0], before.result())
                writing.popleft()
        for batch, task in writing:
            written += _paired(batch, await task)
        return written
    except BaseException:
        # The generator may have failed. Batches that were sent are awaited.
        await _ended([task for _, task in writing])
        raise


async def _let_it_be_sent(seams: Seams) -> None:
    """One iteration of the event loop, so that the write starts before the next requests are made; and a second one,
    because uvloop sends at the end of an iteration."""
    for _ in range(2):
        await seams.clock.sleep(0)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    if tasks:
        done, _ = await asyncio.wait(tasks)
        for task in done:
            # Retrieved, so that asyncio does not log it: the first error is raised.
            task.cancelled() or task.exception()


def _paired(batch: Sequence[PreparedCall[R]], results: Sequence[EnqueueResult]) -> list[Written[R]]:
    for result, prepared in zip(results, batch, strict=True):
        prepared.require_unused(result)
    return list(zip(batch, results, strict=True))
