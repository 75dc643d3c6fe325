"""The workloads. Each runs through the public API, on a queue of its own, with workers in processes of their own.

Only the work itself is timed: processes are up and connections open before it, and the jobs are checked after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import tenure
from benchmarks.measuring import jobs as bench_jobs
from benchmarks.measuring.channel import WorkerOptions
from benchmarks.measuring.jobs import HEARTBEAT_SECONDS, app
from benchmarks.measuring.records import (
    SHARED_BY_WORKERS,
    Effort,
    Gauge,
    Measured,
    NotMeasured,
    Workload,
    moved,
    no_gauge,
)
from benchmarks.measuring.worker_processes import WorkerProcesses, worker_processes
from tenure.cli.bench_workloads import percentile
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM

LIMIT_SECONDS, LIMIT_JOBS_PER_SECOND = 60.0, 50.0
"""A round ends after so many seconds, and one more for each so many jobs."""
CYCLE_BATCH = 100
READ_BATCH = 1000
WARM_UP_JOBS = 10
PAUSE_SECONDS = 0.05
"""About the time between two samples of the latency. It varies, so as not to be in step with polling."""
BEATS = 4
"""The heartbeats are counted over so many of their intervals."""
LOOK_SECONDS = 0.02
CLOCK_LOOKS = 10

Handles = list[tenure.Handle[Any]]


class Benchmark:
    """Measures on one database, in a queue of its own."""

    def __init__(self, database: str, *, effort: Effort, folder: Path, gauge: Gauge = no_gauge) -> None:
        """`folder` is for the log of the worker processes."""
        self.database, self.effort = database, effort
        self.queue = f"bench-{SYSTEM.random.name()}"
        self._log = folder / f"{self.queue}.log"
        self._gauge = gauge
        self._nothing = bench_jobs.nothing.options(queue=self.queue)
        self._stamp = bench_jobs.stamp.options(queue=self.queue)
        self._hold = bench_jobs.hold.options(queue=self.queue)

    async def measure(self, workload: Workload, *, processes: int = 1) -> Measured:
        """One round of the workload; NotMeasured unless all of its jobs have succeeded."""
        assert processes == 1 or workload in SHARED_BY_WORKERS, f"{workload} has one worker"
        app.database = self.database
        try:
            match workload:
                case Workload.ENQUEUE_ONE:
                    return await self._enqueue_one()
                case Workload.ENQUEUE_MANY:
                    return await self._enqueue_many()
                case Workload.DRAIN:
                    return await self._drain(processes)
                case Workload.CYCLE:
                    return await self._cycle(processes)
                case Workload.LATENCY:
                    return await self._latency()
                case Workload.HEARTBEATS:
                    return await self._heartbeats()
        except BaseException:
            await self._give_up()
            raise
        finally:
            await app.close()

    async def _enqueue_one(self) -> Measured:
        handles: Handles = [await self._nothing.enqueue(0)]
        before = await self._gauged()
        began = _now()
        handles += [await self._nothing.enqueue(number) for number in range(self.effort.one_by_one)]
        seconds = _now() - began
        after = await self._gauged()
        await self._run_to_the_end(handles)
        return self._rate(Workload.ENQUEUE_ONE, len(handles) - 1, seconds, before=before, after=after)

    async def _enqueue_many(self) -> Measured:
        handles: Handles = [await self._nothing.enqueue(0)]
        before = await self._gauged()
        began = _now()
        handles += await app.enqueue_many(map(self._nothing.request, range(self.effort.jobs)))
        seconds = _now() - began
        after = await self._gauged()
        await self._run_to_the_end(handles)
        return self._rate(Workload.ENQUEUE_MANY, len(handles) - 1, seconds, before=before, after=after)

    async def _drain(self, processes: int) -> Measured:
        """From the first claim, by the database's clock, to the last success that a worker reported."""
        handles: Handles = [*await app.enqueue_many(map(self._nothing.request, range(self.effort.jobs)))]
        before = await self._gauged()
        done_at_seconds = await self._run(handles, processes=processes)
        after = await self._gauged()
        ran = await self._verified(handles)
        began = min(job.started_at.timestamp() for job in ran if job.started_at) + await self._ahead_seconds()
        seconds = done_at_seconds - began
        return self._rate(Workload.DRAIN, len(ran), seconds, processes=processes, before=before, after=after)

    async def _cycle(self, processes: int) -> Measured:
        before = await self._gauged()
        async with self._warm_workers(processes) as (workers, handles):
            began = _now()
            for start in range(0, self.effort.jobs, CYCLE_BATCH):
                numbers = range(start, min(start + CYCLE_BATCH, self.effort.jobs))
                handles += await app.enqueue_many(map(self._nothing.request, numbers))
            await workers.wait_until_succeeded(len(handles), seconds=_limit_seconds(len(handles)))
            seconds = workers.last_success_seconds - began
        after = await self._gauged()
        await self._verified(handles)
        return self._rate(Workload.CYCLE, self.effort.jobs, seconds, processes=processes, before=before, after=after)

    async def _latency(self) -> Measured:
        began: list[float] = []
        async with self._warm_workers(1) as (workers, handles):
            warm = len(handles)
            for number in range(self.effort.samples):
                await SYSTEM.clock.sleep(PAUSE_SECONDS * (0.5 + SYSTEM.random.fraction()))
                began.append(_now())
                handles.append(await self._stamp.enqueue(number))
                await workers.wait_until_succeeded(len(handles), seconds=_limit_seconds(1))
        ran = (await self._verified(handles))[warm:]
        starts = [msgspec.json.decode(job.result or "", type=float) for job in ran]
        waits_ms = [(start - since) * 1000 for start, since in zip(starts, began, strict=True)]
        figures = {f"p{share}_ms": percentile(waits_ms, share / 100) for share in (50, 95, 99)}
        return Measured(
            workload=Workload.LATENCY, processes=1, jobs=len(ran), seconds=sum(waits_ms) / 1000, figures=figures
        )

    async def _heartbeats(self) -> Measured:
        """Each heartbeat raises its job's revision, so that the records have their number."""
        running = self.effort.running
        limit = _limit_seconds(running)
        handles: Handles = [*await app.enqueue_many(map(self._hold.request, range(running)))]
        async with self._workers(1, concurrency=running) as workers:
            workers.go()
            await workers.wait_until_running(running, seconds=limit)
            await SYSTEM.clock.sleep(HEARTBEAT_SECONDS)
            began, revs = _now(), await self._revs(handles)
            await SYSTEM.clock.sleep(BEATS * HEARTBEAT_SECONDS)
            ended, later_revs = _now(), await self._revs(handles)
            if workers.running != running:
                raise NotMeasured(f"only {workers.running:,} of {running:,} jobs still ran: heartbeats came too late")
            rss_bytes = workers.rss_bytes
            workers.release()
            await workers.wait_until_succeeded(running, seconds=limit)
        await self._verified(handles)
        figures = {
            "heartbeats_per_second": (later_revs - revs) / (ended - began),
            "due_per_second": running / HEARTBEAT_SECONDS,
            "rss_bytes": float(rss_bytes),
        }
        return Measured(workload=Workload.HEARTBEATS, processes=1, jobs=running, seconds=ended - began, figures=figures)

    def _workers(
        self, processes: int, *, concurrency: int | None = None
    ) -> AbstractAsyncContextManager[WorkerProcesses]:
        slots = self.effort.concurrency if concurrency is None else concurrency
        options = WorkerOptions(database=self.database, queue=self.queue, concurrency=slots)
        return worker_processes(processes, options, log=self._log)

    @asynccontextmanager
    async def _warm_workers(self, processes: int) -> AsyncIterator[tuple[WorkerProcesses, Handles]]:
        """Workers that are up and have done their first jobs, and the handles of these."""
        async with self._workers(processes) as workers:
            workers.go()
            await self._registered(processes)
            handles: Handles = [*await app.enqueue_many(map(self._nothing.request, range(WARM_UP_JOBS)))]
            await workers.wait_until_succeeded(len(handles), seconds=_limit_seconds(len(handles)))
            yield workers, handles

    async def _registered(self, processes: int) -> None:
        """Wait until so many workers are registered for the queue."""
        store = await app.store()
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                while sum(self.queue in worker.queues for worker in await store.workers()) < processes:
                    await SYSTEM.clock.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise NotMeasured(f"after {LIMIT_SECONDS:.0f} s the workers are not registered") from None

    async def _run(self, handles: Handles, *, processes: int = 1) -> float:
        """Run these jobs. Returns when the last one succeeded."""
        async with self._workers(processes) as workers:
            workers.go()
            await workers.wait_until_succeeded(len(handles), seconds=_limit_seconds(len(handles)))
            return workers.last_success_seconds

    async def _run_to_the_end(self, handles: Handles) -> None:
        await self._run(handles)
        await self._verified(handles)

    async def _verified(self, handles: Handles) -> list[tenure.Job]:
        """The records, in the order of the handles; NotMeasured unless all exist and have succeeded."""
        records = await self._read(handles)
        if len(records) < len(handles):
            raise NotMeasured(f"{len(handles) - len(records):,} of {len(handles):,} jobs are missing")
        wrong = [job for job in records if job.status is not SUCCEEDED]
        if wrong:
            count = f"{len(wrong):,} of {len(handles):,} jobs did not succeed"
            raise NotMeasured(f"{count}: job {wrong[0].id} is {wrong[0].status}")
        return records

    async def _revs(self, handles: Handles) -> int:
        return sum(job.rev for job in await self._read(handles))

    async def _read(self, handles: Handles) -> list[tenure.Job]:
        store = await app.store()
        found: list[tenure.Job] = []
        for start in range(0, len(handles), READ_BATCH):
            ids = [handle.id for handle in handles[start : start + READ_BATCH]]
            records = await store.read(ids)
            found += [records[job_id] for job_id in ids if job_id in records]
        return found

    async def _gauged(self) -> Mapping[str, float]:
        """The database's counters. They are complete once the app has disconnected."""
        if self._gauge is no_gauge:
            return {}
        await app.close()
        seen = await self._gauge()
        await (await app.store()).now()
        return seen

    async def _ahead_seconds(self) -> float:
        """What to add to the database's time for the machine's monotonic time."""
        store, looks = await app.store(), []
        for _ in range(CLOCK_LOOKS):
            asked = _now()
            theirs = (await store.now()).timestamp()
            answered = _now()
            looks.append((answered - asked, (asked + answered) / 2 - theirs))
        return min(looks)[1]

    async def _give_up(self) -> None:
        """Cancel what is left in the queue: no worker will run it."""
        wanted = tenure.JobFilter(queues=(self.queue,))
        try:
            await app.cancel_many(wanted, hard=True, reason="the benchmark was ended", limit=self._jobs_most())
        except tenure.TenureError:
            return  # The database is unavailable, probably the cause; what is left is in this queue alone.

    def _jobs_most(self) -> int:
        return WARM_UP_JOBS + max(self.effort.jobs, self.effort.running, self.effort.samples)

    @staticmethod
    def _rate(
        workload: Workload,
        jobs: int,
        seconds: float,
        *,
        processes: int = 1,
        before: Mapping[str, float],
        after: Mapping[str, float],
    ) -> Measured:
        return Measured(
            workload=workload,
            processes=processes,
            jobs=jobs,
            seconds=seconds,
            figures={"jobs_per_second": jobs / seconds},
            gauged=moved(before, after, jobs=jobs),
        )


def _now() -> float:
    return SYSTEM.clock.monotonic_seconds()


def _limit_seconds(jobs: int) -> float:
    return LIMIT_SECONDS + jobs / LIMIT_JOBS_PER_SECOND
