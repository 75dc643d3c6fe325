"""A worker that takes jobs through the whole lifecycle. A job's payload states its path.

Every worker also recovers: a job whose owner abandoned it is stalled and requeued by the first worker that finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.synchronize import Barrier

from tenure.errors import Refused
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Operation,
    Progress,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
)
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LIVE
from tenure.stores import store_for
from tenure.stores.contract import Applied, EnqueueRequest, Failure, JobFilter, Repeated, Request
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner
from tests.support.waiting import retry_while_busy

READY_SECONDS = 60.0
BATCH = 100
DEAD_LETTER = DeadLetter(ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, ERROR)

SHORT = {"lease_seconds": 0.5, "heartbeat_seconds": 0.5, "max_attempts": 30_000, "on_exhausted": "fail"}

ENDS: dict[str, tuple[str, int]] = {
    # path: the status in which the job must end, and how many claims that takes
    "complete": ("succeeded", 1),
    "commit": ("succeeded", 1),
    "report": ("succeeded", 1),
    "retry": ("succeeded", 2),
    "release": ("succeeded", 2),
    "suspend": ("succeeded", 2),
    "abandon": ("succeeded", 2),
    "vanish": ("succeeded", 1),
    "fail": ("failed", 1),
    "halt": ("halted", 1),
    "bury": ("dead_lettered", 1),
    "cancel": ("cancelled", 1),
}
"""The paths that a job can take."""

ONCE: dict[str, tuple[Operation, ...]] = {
    "complete": (Complete("1"),),
    "commit": (Commit('{"paid":true}'), Complete('{"paid":true}')),
    "report": (Progress(50, "half"), Progress(90), Complete("1")),
    "retry": (Retry(ERROR, delay_seconds=0),),
    "release": (Release(),),
    "suspend": (Suspend(delay_seconds=0),),
    "fail": (Fail(ERROR),),
    "halt": (Halt("limit", "[1]"),),
    "bury": (DEAD_LETTER,),
}


def enqueues(drive: Driver, first: int, count: int) -> list[EnqueueRequest]:
    """New jobs over all paths. Those that lose their owner have a short lease and many attempts: on a busy machine
    leases expire more often, and how often is not tested."""
    ways = list(ENDS)
    found: list[EnqueueRequest] = []
    for number in range(first, first + count):
        way = ways[number % len(ways)]
        policy = SHORT if way in ("abandon", "vanish") else {}
        found.append(drive.enqueue(payload=encode({"way": way, "number": number}), policy=policy))
    return found


def run_lifecycle_worker(barrier: Barrier, url: str, worker: str, first: int, count: int, seconds: float) -> int:
    return asyncio.run(_run_lifecycle_worker(barrier, url, worker, first, count, seconds))


async def _run_lifecycle_worker(barrier: Barrier, url: str, worker: str, first: int, count: int, seconds: float) -> int:
    """Enqueue this worker's jobs, then work on all jobs until none is live. Returns how many changes were applied."""
    store = store_for(url)
    await store.open()
    try:
        barrier.wait(READY_SECONDS)
        drive = Driver(store)
        for begin in range(first, first + count, 1000):
            await retry_while_busy(partial(store.enqueue, enqueues(drive, begin, min(1000, first + count - begin))))
        # Wait until every worker has enqueued its jobs.
        barrier.wait(seconds)
        return await _until_done(drive, worker, time.monotonic() + seconds)
    finally:
        await store.close()


async def _until_done(drive: Driver, worker: str, deadline: float) -> int:
    applied = 0
    while time.monotonic() < deadline:
        request = drive.claim_request(limit=BATCH, worker=worker, start=False)
        jobs = await retry_while_busy(partial(drive.store.claim, request))
        applied += await _apply_next_steps(drive, jobs)
        applied += await _recover(drive)
        if not jobs and not (await drive.store.find(JobFilter(statuses=tuple(LIVE)), limit=1)).jobs:
            return applied
    raise TimeoutError(f"{worker} was not done in time")


async def _apply_next_steps(drive: Driver, jobs: Sequence[Job]) -> int:
    started = await _applied(drive, [drive.request(job, Start(), fresh=True) for job in jobs])
    called = [job for job in started if path_of(job) == "cancel"]
    signals = [drive.request(job.id, Signal("go", "[1]"), RequestCancel(), actor=CLIENT) for job in called]
    signalled = {job.id: job for job in await _applied(drive, signals)}
    steps = [(job, next_step(job)) for job in started]
    requests = [drive.request(signalled.get(job.id, job), *step, actor=runner(job)) for job, step in steps if step]
    return len(started) + len(signalled) + len(await _applied(drive, requests))


def next_step(job: Job) -> tuple[Operation, ...]:
    """The owner's operations on a running job; none if the job is to lose its owner."""
    way = path_of(job)
    if way == "cancel":
        return (Cancel("as asked"),)
    if way == "vanish":
        return (Commit("1"),)
    if job.attempt >= ENDS[way][1]:
        return ONCE.get(way, (Complete("1"),)) if ENDS[way][1] == 1 else (Complete("1"),)
    return () if way == "abandon" else ONCE[way]


def path_of(job: Job) -> str:
    return str(load(job.origin.payload)["way"])


async def _recover(drive: Driver) -> int:
    requests: list[Request] = []
    for job in await drive.store.recoverable(limit=BATCH):
        stall = (Stall(),) if job.leased else ()
        rest = Reconcile() if job.committed else Requeue()
        requests.append(drive.request(job, *stall, rest, actor=RECOVERY))
    return len(await _applied(drive, requests))


async def _applied(drive: Driver, requests: Sequence[Request]) -> list[Job]:
    """The jobs that were changed. Refusals are expected: another worker was faster, or the lease expired."""
    outcomes = await retry_while_busy(partial(drive.store.apply, requests)) if requests else []
    for outcome in outcomes:
        if isinstance(outcome, Failure) and not isinstance(outcome.error, Refused):
            raise outcome.error
    return [outcome.job for outcome in outcomes if isinstance(outcome, Applied | Repeated)]
