"""Claimers that claim every due job: as tasks, in threads and in processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Barrier

from tenure.stores import Store, store_for
from tenure.testing.driver import Driver
from tests.support.waiting import retry_while_busy

READY_SECONDS = 60.0


async def claim_all(store: Store, worker: str) -> list[str]:
    """Claim a few at a time until no due jobs are left. Returns the ids in the order of the claims."""
    drive = Driver(store)
    won: list[str] = []
    while True:
        request = drive.claim_request(limit=3, worker=worker)
        jobs = await retry_while_busy(partial(store.claim, request))
        if not jobs:
            return won
        won += [str(job.id) for job in jobs]


async def claim_on_own_store(url: str, worker: str, *, ready: Callable[[], object]) -> list[str]:
    """The same with its own store, once all claimers are ready."""
    store = store_for(url)
    await retry_while_busy(store.open)
    try:
        ready()
        return await claim_all(store, worker)
    finally:
        await store.close()


def claim_in_process(barrier: Barrier, url: str, worker: str) -> list[str]:
    return asyncio.run(claim_on_own_store(url, worker, ready=lambda: barrier.wait(READY_SECONDS)))
