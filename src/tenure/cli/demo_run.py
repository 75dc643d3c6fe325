"""Runs the demo, and checks every job, effect and event afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import UUID

import msgspec

from tenure.cli import demo_app
from tenure.cli.logging_setup import log_to_file
from tenure.cli.output import NoProgress, ProgressDisplay, counted
from tenure.cli.verify import verify_store
from tenure.cli.worker import WorkerCommandOptions
from tenure.cli.worker_processes import worker_command
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED, RUNNING, SUCCEEDED, TERMINAL
from tenure.seams import SYSTEM
from tenure.stores import JobFilter
from tenure.workers.supervisor.process import WorkerProcess
from tenure.workers.supervisor.supervisor import Ending, ProcessSlot, StartProcess, Supervisor

if TYPE_CHECKING:
    from tenure.stores.contract import Store

PROCESSES, CONCURRENCY, GRACE_SECONDS = 2, 5, 5.0
LIMIT_SECONDS, LIMIT_JOBS_PER_SECOND = 60.0, 10.0
"""The demo ends after this time, plus a second per so many jobs, on any machine."""
POLL_SECONDS = 0.05
KILL_AT_FRACTION = 0.2
"""The fraction of jobs that has ended when a worker is killed."""
LEASED_MIN = 2
PAGE_JOBS = 500
LISTED_MAX = 5


class KilledWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The killed worker, and when its jobs were recovered and ended. Seconds count from the kill."""

    pid: int
    running: int
    recovered_seconds: float
    ended_seconds: float


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo, successful if there are no problems."""

    jobs: int
    processes: int
    seconds: float
    ended: dict[str, int]
    retried: int
    killed: KilledWorker | None
    effects: int
    events: int
    problems: list[str]


class Demo:
    """One run of the demo, in its own folder."""

    def __init__(self, folder: Path, *, jobs: int, display: ProgressDisplay, verbose: bool) -> None:
        self._jobs, self._display, self._verbose = jobs, display, verbose
        self._log = folder / "workers.log"
        self._limit_seconds = LIMIT_SECONDS + jobs / LIMIT_JOBS_PER_SECOND
        self._problems: list[str] = []
        self._victim: tuple[int, datetime, list[UUID]] | None = None
        demo_app.app.database = f"sqlite:///{folder / 'jobs.db'}"

    async def run(self) -> DemoResult:
        """Run the jobs, then check the result. A timeout is one of the problems."""
        log_to_file(self._log)
        async with demo_app.app as app:
            store = await app.store()
            async with store.transaction(deadline_seconds=5) as tx:
                await tx.execute(demo_app.EFFECTS)
            started_at_seconds = SYSTEM.clock.monotonic_seconds()
            queued: list[Job] = []
            try:
                async with asyncio.timeout(self._limit_seconds), self._workers() as supervisor:
                    calls = [demo_app.call(number) for number in range(1, self._jobs + 1)]
                    queued = [handle.job for handle in await app.enqueue_many(calls)]
                    self._print(f"{counted(len(queued), 'job')} enqueued")
                    await self._watch(store, supervisor)
            except TimeoutError:
                self._problems.append(f"not finished within {self._limit_seconds:.0f} s")
            return await self._result(store, queued, SYSTEM.clock.monotonic_seconds() - started_at_seconds)

    @asynccontextmanager
    async def _workers(self) -> AsyncIterator[Supervisor]:
        """The started worker processes. They end with the block, also on an error."""
        with self._log.open("ab") as log:
            supervisor = Supervisor(
                start_worker(demo_app.app.database, log),
                lambda _number, _report: None,
                processes=PROCESSES,
                grace_seconds=GRACE_SECONDS,
                seams=SYSTEM,
            )
            running = SYSTEM.spawn.task(supervisor.run(), name="tenure-demo-workers")
            try:
                while not running.done() and any(slot.report is None for slot in supervisor.slots):
                    await SYSTEM.clock.sleep(POLL_SECONDS)
                yield supervisor
                supervisor.stop()
                result = await running
                if result.ending is not Ending.STOPPED:
                    self._problems.append(f"the worker processes did not stop: {result.ending}")
            finally:
                running.cancel()
                await asyncio.wait({running})

    async def _watch(self, store: Store, supervisor: Supervisor) -> None:
        """Wait until all jobs have ended, and kill a worker meanwhile."""
        while not supervisor.stopping:
            stats = await store.stats()
            ended = sum(tally.jobs for tally in stats.tallies if tally.status in TERMINAL)
            self._display.show(f"{ended:,} of {self._jobs:,} jobs have ended", ended / self._jobs)
            if ended >= self._jobs:
                return
            if self._victim is None and ended >= KILL_AT_FRACTION * self._jobs:
                await self._kill_one(store, supervisor)
            await SYSTEM.clock.sleep(POLL_SECONDS)

    async def _kill_one(self, store: Store, supervisor: Supervisor) -> None:
        """Kill the worker with the most running jobs. Only the leases that it still has afterwards count."""
        by_owner = Counter(job.owner for job in await running_jobs(store))
        slot = max(supervisor.slots, key=lambda slot: by_owner[_worker_name(slot)])
        if slot.report is None or by_owner[_worker_name(slot)] < LEASED_MIN:
            return
        pid, owner, now = slot.report.pid, slot.report.worker, await store.now()
        os.kill(pid, signal.SIGKILL)
        running = [job.id for job in await running_jobs(store) if job.owner == owner]
        if running:
            self._victim = (pid, now, running)
            self._print(f"worker {pid} killed with SIGKILL while it ran {counted(len(running), 'job')}")

    async def _result(self, store: Store, queued: Sequence[Job], seconds: float) -> DemoResult:
        jobs: dict[UUID, Job] = {}
        for start in range(0, len(queued), PAGE_JOBS):
            jobs |= await store.read([job.id for job in queued[start : start + PAGE_JOBS]])
        async with store.transaction(deadline_seconds=30) as tx:
            rows = await tx.fetch("select job, count(*) as times from effects group by job")
        effects = {UUID(row["job"]): int(row["times"]) for row in rows}
        verified = await verify_store(store, NoProgress(), problems_max=LISTED_MAX)
        self._problems += [*job_problems(queued, jobs), *effect_problems(jobs, effects)]
        self._problems += [f"verify: {problem}" for problem in verified.problems]
        if self._victim is None:
            self._problems.append("no worker could be killed while it ran jobs")
        retried = sum(max(0, job.attempt - 1 - job.losses) for job in jobs.values())
        return DemoResult(
            jobs=len(queued),
            processes=PROCESSES,
            seconds=seconds,
            ended=dict(Counter(str(job.status) for job in jobs.values())),
            retried=retried,
            killed=await self._killed(store, jobs),
            effects=sum(effects.values()),
            events=verified.events,
            problems=self._problems,
        )

    async def _killed(self, store: Store, jobs: dict[UUID, Job]) -> KilledWorker | None:
        if self._victim is None:
            return None
        pid, at, running = self._victim
        histories = await store.history(running)
        recovered = [time for history in histories.values() if (time := _recovered_at(history, since=at))]
        ended = [job.finished_at for job_id in running if (job := jobs.get(job_id)) and job.finished_at]
        return KilledWorker(
            pid=pid,
            running=len(running),
            recovered_seconds=max(((time - at).total_seconds() for time in recovered), default=0.0),
            ended_seconds=max(((time - at).total_seconds() for time in ended), default=0.0),
        )

    def _print(self, line: str) -> None:
        if self._verbose:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def start_worker(database: str, log: IO[bytes]) -> StartProcess:
    """Starts a worker process as `tenure worker` does, with short intervals and its log in a file."""
    options = WorkerCommandOptions(
        target="tenure.cli.demo_app:app",
        queues=demo_app.QUEUE,
        concurrency=CONCURRENCY,
        grace_seconds=GRACE_SECONDS,
        poll_seconds=0.2,
        scan_seconds=0.4,
        database=database,
        wait_for_database=False,
        log_level="info",
        as_json=False,
    )
    return lambda _number, again: WorkerProcess(
        lambda channel: worker_command(options, channel=channel, again=again), output=log, errors=log
    )


async def running_jobs(store: Store) -> list[Job]:
    return (await store.find(JobFilter(statuses=(RUNNING,)), limit=PAGE_JOBS)).jobs


def job_problems(queued: Sequence[Job], jobs: dict[UUID, Job]) -> list[str]:
    """Jobs that are missing, or did not end as their kind must."""
    lost = [job.id for job in queued if job.id not in jobs]
    wrong = [
        f"{job.kind} {job.id} is {job.status}"
        for job in jobs.values()
        if job.status is not (DEAD_LETTERED if job.kind == demo_app.DOOMED else SUCCEEDED)
    ]
    problems = [f"{counted(len(lost), 'job')} lost: {_some(lost)}"] if lost else []
    return problems + ([f"{counted(len(wrong), 'job')} with a wrong status: {_some(wrong)}"] if wrong else [])


def effect_problems(jobs: dict[UUID, Job], effects: dict[UUID, int]) -> list[str]:
    """Effects that are missing, were applied twice, or are of a job that did not succeed."""
    due = {job.id for job in jobs.values() if job.status is SUCCEEDED}
    found = {
        "succeeded without an effect": sorted(due - effects.keys()),
        "had more than one effect": sorted(job_id for job_id, times in effects.items() if times > 1),
        "had an effect and did not succeed": sorted(effects.keys() - due),
    }
    return [f"{counted(len(ids), 'job')} {problem}: {_some(ids)}" for problem, ids in found.items() if ids]


def _some(names: Sequence[object]) -> str:
    more = f" and {len(names) - LISTED_MAX:,} more" if len(names) > LISTED_MAX else ""
    return ", ".join(str(name) for name in names[:LISTED_MAX]) + more


def _recovered_at(history: Sequence[Event], *, since: datetime) -> datetime | None:
    return next((event.at for event in history if event.type is EventType.STALLED and event.at >= since), None)


def _worker_name(slot: ProcessSlot) -> str | None:
    return None if slot.report is None else slot.report.worker
