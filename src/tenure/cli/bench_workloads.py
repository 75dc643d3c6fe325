"""The workloads of `tenure bench`: each runs through the public API, in one process, on a queue of its own.

Only the work itself is timed: connections are open before it starts, and its jobs are read back after it ends. This
module neither compares stores nor starts processes; `benchmarks/` of the repository does both.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

import msgspec

from tenure import __version__
from tenure.app import App
from tenure.client.handle import Handle
from tenure.errors import TenureError
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM
from tenure.stores.contract import JobFilter

LIMIT_SECONDS, LIMIT_JOBS_PER_SECOND = 60.0, 50.0
"""A round fails after this long, plus a second per this many jobs."""
LOOK_SECONDS, GRACE_SECONDS = 0.02, 5.0
READ_BATCH = 1000
PAUSE_SECONDS = 0.05
"""Between two samples of latency, with jitter, so that samples do not fall into step with polling."""

Handles = list[Handle[Any]]


class Workload(StrEnum):
    """What `tenure bench` can measure."""

    ENQUEUE_ONE = "enqueue-one"
    ENQUEUE_MANY = "enqueue-many"
    DRAIN = "drain"
    LATENCY = "latency"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each workload makes one round."""

    jobs: int = 10_000
    samples: int = 100
    """Jobs of the latency workload, one at a time."""
    concurrency: int = 1_000
    """Jobs that the worker runs at a time."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one workload: its figures, or the problem because of which it has none."""

    workload: Workload
    jobs: int = 0
    figures: dict[str, float] = {}
    problem: str | None = None


class RoundFailed(TenureError):
    """A round has no figure, because a job of it did not succeed or did not end in time."""


class Benchmark:
    """Measures one database. Its jobs are in a queue whose name no other run has."""

    def __init__(self, database: str, effort: Effort) -> None:
        self.database, self.effort = database, effort
        self.queue = f"bench-{SYSTEM.random.name()}"
        self._app = App(database, name="bench", version=__version__)

        @self._app.job(kind="tenure-bench-nothing", queue=self.queue, max_attempts=1)
        async def nothing(number: int) -> None: ...

        @self._app.job(kind="tenure-bench-stamp", queue=self.queue, max_attempts=1)
        async def stamp(number: int) -> float:
            return _now()

        self._nothing, self._stamp = nothing, stamp

    async def run(self, workload: Workload) -> Round:
        """One round. Jobs that a failed or interrupted round leaves in the queue are cancelled."""
        run: Callable[[], Awaitable[Round]] = {
            Workload.ENQUEUE_ONE: self._enqueue_one,
            Workload.ENQUEUE_MANY: self._enqueue_many,
            Workload.DRAIN: self._drain,
            Workload.LATENCY: self._latency,
        }[workload]
        async with self._app:
            try:
                return await run()
            except RoundFailed as problem:
                await self._cancel_the_rest()
                return Round(workload=workload, problem=str(problem))
            except BaseException:
                await self._cancel_the_rest()
                raise

    async def _enqueue_one(self) -> Round:
        """A tenth of the jobs, since each call waits for its own commit."""
        handles: Handles = [await self._nothing.enqueue(0)]
        began = _now()
        handles += [await self._nothing.enqueue(number) for number in range(max(1, self.effort.jobs // 10))]
        seconds = _now() - began
        await self._succeeded(handles)
        return _rate(Workload.ENQUEUE_ONE, len(handles) - 1, seconds)

    async def _enqueue_many(self) -> Round:
        handles: Handles = [await self._nothing.enqueue(0)]
        began = _now()
        handles += await self._app.enqueue_many(map(self._nothing.request, range(self.effort.jobs)))
        seconds = _now() - began
        await self._succeeded(handles)
        return _rate(Workload.ENQUEUE_MANY, len(handles) - 1, seconds)

    async def _drain(self) -> Round:
        """From the first start to the last end, both by the database's clock."""
        handles: Handles = [*await self._app.enqueue_many(map(self._nothing.request, range(self.effort.jobs)))]
        jobs = await self._succeeded(handles)
        began = min(job.started_at for job in jobs if job.started_at is not None)
        ended = max(job.finished_at for job in jobs if job.finished_at is not None)
        return _rate(Workload.DRAIN, len(jobs), (ended - began).total_seconds())

    async def _latency(self) -> Round:
        """From the enqueue call to the first line of the job, with an idle worker in the same process."""
        called: list[float] = []
        handles: Handles = [await self._stamp.enqueue(0)]
        async with self._worker() as have_succeeded:
            await have_succeeded(1)
            for number in range(self.effort.samples):
                await SYSTEM.clock.sleep(PAUSE_SECONDS * (0.5 + SYSTEM.random.fraction()))
                called.append(_now())
                handles.append(await self._stamp.enqueue(number))
                await have_succeeded(len(handles))
        jobs = await self._checked(handles)
        began = [msgspec.json.decode(job.result or "", type=float) for job in jobs[1:]]
        waits_ms = [(start - call) * 1000 for call, start in zip(called, began, strict=True)]
        figures = {f"p{share}_ms": percentile(waits_ms, share / 100) for share in (50, 95, 99)}
        return Round(workload=Workload.LATENCY, jobs=len(waits_ms), figures=figures)

    async def _succeeded(self, handles: Handles) -> list[Job]:
        """Run these jobs; their records, once all have succeeded."""
        async with self._worker() as have_succeeded:
            await have_succeeded(len(handles))
        return await self._checked(handles)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """A running worker, as a function that waits until this many of its jobs have succeeded."""
        worker = self._app.worker(
            queues=(self.queue,), concurrency=self.effort.concurrency, grace_seconds=GRACE_SECONDS
        )
        working = SYSTEM.spawn.task(worker.run(), name="tenure-bench-worker")

        async def have_succeeded(jobs: int) -> None:
            limit_seconds = LIMIT_SECONDS + jobs / LIMIT_JOBS_PER_SECOND
            ends = _now() + limit_seconds
            while worker.counts[SUCCEEDED] < jobs and not working.done():
                if _now() > ends:
                    done = worker.counts[SUCCEEDED]
                    raise RoundFailed(f"after {limit_seconds:.0f} s, {done:,} of {jobs:,} jobs had succeeded")
                await SYSTEM.clock.sleep(LOOK_SECONDS)

        try:
            yield have_succeeded
        finally:
            worker.stop()
            await working

    async def _checked(self, handles: Handles) -> list[Job]:
        """The records in the order of the handles; RoundFailed unless the database holds all of them as succeeded."""
        store = await self._app.store()
        jobs: list[Job] = []
        for start in range(0, len(handles), READ_BATCH):
            ids = [handle.id for handle in handles[start : start + READ_BATCH]]
            records = await store.read(ids)
            jobs += [records[job_id] for job_id in ids if job_id in records]
        others = [job for job in jobs if job.status is not SUCCEEDED]
        if others or len(jobs) < len(handles):
            missing = len(handles) - len(jobs) + len(others)
            raise RoundFailed(f"{missing:,} of {len(handles):,} jobs did not succeed")
        return jobs

    async def _cancel_the_rest(self) -> None:
        limit = max(self.effort.jobs, self.effort.samples) + 1
        try:
            await self._app.cancel_many(
                JobFilter(queues=(self.queue,)), hard=True, reason="the benchmark was stopped", limit=limit
            )
        except TenureError:
            return  # The database is probably unavailable; no other worker serves this queue.


def medians(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """For each figure, the median of its rounds.

    >>> medians([{"per_second": 10.0}, {"per_second": 90.0}, {"per_second": 20.0}])
    {'per_second': 20.0}
    """
    found = list(rounds)
    return {name: statistics.median(one[name] for one in found) for name in (found[0] if found else ())}


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    place = -(-len(ordered) * round(share * 1000) // 1000) - 1
    return ordered[max(0, place)]


def _rate(workload: Workload, jobs: int, seconds: float) -> Round:
    return Round(workload=workload, jobs=jobs, figures={"jobs_per_second": jobs / seconds})


def _now() -> float:
    return SYSTEM.clock.monotonic_seconds()
