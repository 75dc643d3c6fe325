"""Concurrent claimers that drain a fixed number of jobs, and measure each claim.

Each claimer has its own store, as a worker process has. There is at most one process per core; more claimers are tasks
of these processes. All claimers have connected and warmed up before the first one begins.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

from benchmarks.filling import KIND
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.stores.contract import Applied, ClaimRequest, Request, Store

WARM_UP_CLAIMS = 8
"""PostgreSQL may choose a generic plan from the sixth execution of a statement on."""
READY_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Drain:
    """The jobs to drain, the number of claimers, and the time limit."""

    url: str
    queues: tuple[str, ...]
    jobs: int
    claimers: int
    batch: int
    seconds_max: float = 600.0


@dataclass(frozen=True, slots=True)
class Drained:
    """The time of each claim that returned jobs, and when the drain began and ended, by the clock that all processes
    share."""

    claims_ms: list[float]
    jobs: int
    began: float
    ended: float


class Share:
    """How many jobs are still to be claimed, counted across processes."""

    def __init__(self, left: Synchronized[int]) -> None:
        self._left = left

    def take(self, most: int) -> int:
        with self._left.get_lock():
            taken = min(most, self._left.value)
            self._left.value -= taken
            return taken

    def give_back(self, count: int) -> None:
        with self._left.get_lock():
            self._left.value += count


_shared: list[tuple[Synchronized[int], Barrier]] = []


def _share(left: Synchronized[int], start: Barrier) -> None:
    _shared.append((left, start))


def divided(claimers: int, processes: int) -> list[int]:
    """The number of claimers of each process.

    >>> divided(5, 2), divided(1, 2)
    ([3, 2], [1])
    """
    used = min(claimers, processes)
    return [claimers // used + (number < claimers % used) for number in range(used)]


def drain(work: Drain) -> Drained:
    """Claim, start and complete this many jobs."""
    shares = divided(work.claimers, os.cpu_count() or 1)
    context = get_context("spawn")
    left, start = context.Value("q", work.jobs), context.Barrier(len(shares))
    with ProcessPoolExecutor(len(shares), mp_context=context, initializer=_share, initargs=(left, start)) as pool:
        futures = [pool.submit(_process, work, share) for share in shares]
        return together([future.result() for future in futures])


def together(parts: Sequence[Drained]) -> Drained:
    """The results of all processes, from the first begin to the last end."""
    return Drained(
        [took for part in parts for took in part.claims_ms],
        sum(part.jobs for part in parts),
        min(part.began for part in parts),
        max(part.ended for part in parts),
    )


def _process(work: Drain, claimers: int) -> Drained:
    [(left, start)] = _shared
    return asyncio.run(_claimers(work, claimers, Share(left), start))


async def _claimers(work: Drain, claimers: int, share: Share, start: Barrier) -> Drained:
    stores = [store_for(work.url) for _ in range(claimers)]
    try:
        for store in stores:
            await store.open()
            for _ in range(WARM_UP_CLAIMS):
                await store.claim(_claim(("nothing-is-here",), limit=1, worker="warm-up"))
        await asyncio.to_thread(start.wait, READY_SECONDS_MAX)
        async with asyncio.timeout(work.seconds_max):
            return together(await asyncio.gather(*(_claimer(store, work, share) for store in stores)))
    finally:
        for store in stores:
            await store.close()


def _claim(queues: tuple[str, ...], *, limit: int, worker: str) -> ClaimRequest:
    token = SYSTEM.random.token()
    return ClaimRequest(
        queues=queues, kinds=(KIND,), limit=limit, worker=worker, token=token, request_id=f"claim-{token}"
    )


async def _claimer(store: Store, work: Drain, share: Share) -> Drained:
    worker, claims_ms, done = f"claimer-{SYSTEM.random.name()}", list[float](), 0
    began = time.monotonic()
    while wanted := share.take(work.batch):
        asked = _claim(work.queues, limit=wanted, worker=worker)
        sent = time.monotonic()
        jobs = await store.claim(asked)
        if jobs:
            claims_ms.append((time.monotonic() - sent) * 1000)
            await _complete(store, jobs, Actor(Role.RUNNER, worker, asked.token))
        # Other claimers have locked the remaining jobs, or they are quarantined: claim until none is left.
        share.give_back(wanted - len(jobs))
        done += len(jobs)
    return Drained(claims_ms, done, began, time.monotonic())


async def _complete(store: Store, jobs: Sequence[Job], runner: Actor) -> None:
    finish = (Complete("null"),)
    outcomes = await store.apply(
        [Request(job=job, operations=finish, actor=runner, request_id="complete", fresh=True) for job in jobs]
    )
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, Applied)]
    if wrong:
        raise RuntimeError(f"{len(wrong)} completions were not applied, the first one: {wrong[0]}")
