"""What `tenure demo` does, and how it counts what came of it: every job, every effect, every event."""

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
from tenure.cli.logging_setup import log_to
from tenure.cli.output import Progress, Silent, counted
from tenure.cli.verify import audit
from tenure.cli.worker import Wishes
from tenure.cli.worker_processes import command
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED, RUNNING, SUCCEEDED, TERMINAL
from tenure.seams import SYSTEM
from tenure.stores import JobFilter
from tenure.workers.supervisor.process import WorkerProcess
from tenure.workers.supervisor.supervisor import Ending, Slot, Start, Supervisor

if TYPE_CHECKING:
    from tenure.stores.contract import Store

PROCESSES, CONCURRENCY, GRACE_SECONDS = 2, 5, 5.0
LIMIT_SECONDS, LIMIT_JOBS_PER_SECOND = 60.0, 10.0
"""However slow the machine is, it ends: after so long, and a second more for so many jobs."""
LOOK_SECONDS = 0.05
KILL_FROM = 0.2
"""The share of the jobs that has ended when a worker is killed."""
HELD_LEAST = 2
PAGE = 500
NAMED_MOST = 5


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that was killed, and how what it ran came back. Seconds count from the kill."""

    pid: int
    held: int
    taken_back_seconds: float
    ended_seconds: float


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo saw. All is well if there are no problems."""

    jobs: int
    processes: int
    seconds: float
    ended: dict[str, int]
    retried: int
    killed: Killed | None
    effects: int
    events: int
    problems: list[str]


class Play:
    """One run of the demo, in a folder of its own."""

    def __init__(self, folder: Path, *, jobs: int, shown: Progress, speaks: bool) -> None:
        self._jobs, self._shown, self._speaks = jobs, shown, speaks
        self._log = folder / "workers.log"
        self._limit_seconds = LIMIT_SECONDS + jobs / LIMIT_JOBS_PER_SECOND
        self._problems: list[str] = []
        self._victim: tuple[int, datetime, list[UUID]] | None = None
        demo_app.app.database = f"sqlite:///{folder / 'jobs.db'}"

    async def run(self) -> Findings:
        """Play, then count. What did not end in time is among the problems."""
        log_to(self._log)
        async with demo_app.app as app:
            store = await app.store()
            async with store.transaction(deadline_seconds=5) as tx:
                await tx.execute(demo_app.EFFECTS)
            since = SYSTEM.clock.monotonic_seconds()
            queued: list[Job] = []
            try:
                async with asyncio.timeout(self._limit_seconds), self._staff() as supervisor:
                    calls = [demo_app.call(number) for number in range(1, self._jobs + 1)]
                    queued = [handle.job for handle in await app.enqueue_many(calls)]
                    self._say(f"{counted(len(queued), 'job')} queued")
                    await self._watch(store, supervisor)
            except TimeoutError:
                self._problems.append(f"it was not done within {self._limit_seconds:.0f} s, and was ended")
            return await self._findings(store, queued, SYSTEM.clock.monotonic_seconds() - since)

    @asynccontextmanager
    async def _staff(self) -> AsyncIterator[Supervisor]:
        """The worker processes, all up. However this is left, none of them is left behind."""
        with self._log.open("ab") as log:
            supervisor = Supervisor(
                starting(demo_app.app.database, log),
                lambda _number, _report: None,
                processes=PROCESSES,
                grace_seconds=GRACE_SECONDS,
                seams=SYSTEM,
            )
            running = SYSTEM.spawn.task(supervisor.run(), name="tenure-demo-workers")
            try:
                while not running.done() and any(slot.report is None for slot in supervisor.slots):
                    await SYSTEM.clock.sleep(LOOK_SECONDS)
                yield supervisor
                supervisor.stop()
                outcome = await running
                if outcome.ending is not Ending.STOPPED:
                    self._problems.append(f"the workers did not stop as they should: {outcome.ending}")
            finally:
                running.cancel()
                await asyncio.wait({running})

    async def _watch(self, store: Store, supervisor: Supervisor) -> None:
        """Until all jobs have ended; a worker is killed on the way."""
        while not supervisor.stopping:
            stats = await store.stats()
            ended = sum(tally.jobs for tally in stats.tallies if tally.status in TERMINAL)
            self._shown.show(f"{ended:,} of {self._jobs:,} jobs have ended", ended / self._jobs)
            if ended >= self._jobs:
                return
            if self._victim is None and ended >= KILL_FROM * self._jobs:
                await self._kill_one(store, supervisor)
            await SYSTEM.clock.sleep(LOOK_SECONDS)

    async def _kill_one(self, store: Store, supervisor: Supervisor) -> None:
        """Kill a worker that is in the middle of some jobs. Only what it still holds afterwards counts."""
        running = Counter(job.owner for job in await running_jobs(store))
        slot = max(supervisor.slots, key=lambda slot: running[_name(slot)])
        if slot.report is None or running[_name(slot)] < HELD_LEAST:
            return
        pid, owner, now = slot.report.pid, slot.report.worker, await store.now()
        os.kill(pid, signal.SIGKILL)
        held = [job.id for job in await running_jobs(store) if job.owner == owner]
        if held:
            self._victim = (pid, now, held)
            self._say(f"worker {pid} was killed with SIGKILL while it ran {counted(len(held), 'job')}")

    async def _findings(self, store: Store, queued: Sequence[Job], seconds: float) -> Findings:
        jobs: dict[UUID, Job] = {}
        for start in range(0, len(queued), PAGE):
            jobs |= await store.read([job.id for job in queued[start : start + PAGE]])
        async with store.transaction(deadline_seconds=30) as tx:
            rows = await tx.fetch("select job, count(*) as times from effects group by job")
        effects = {UUID(row["job"]): int(row["times"]) for row in rows}
        tally = await audit(store, Silent(), problems_max=NAMED_MOST)
        self._problems += [*job_problems(queued, jobs), *effect_problems(jobs, effects)]
        self._problems += [f"verify: {problem}" for problem in tally.problems]
        if self._victim is None:
            self._problems.append("no worker could be killed in the middle of its work, so nothing was shown")
        retried = sum(max(0, job.attempt - 1 - job.losses) for job in jobs.values())
        return Findings(
            jobs=len(queued),
            processes=PROCESSES,
            seconds=seconds,
            ended=dict(Counter(str(job.status) for job in jobs.values())),
            retried=retried,
            killed=await self._killed(store, jobs),
            effects=sum(effects.values()),
            events=tally.events,
            problems=self._problems,
        )

    async def _killed(self, store: Store, jobs: dict[UUID, Job]) -> Killed | None:
        if self._victim is None:
            return None
        pid, at, held = self._victim
        histories = await store.history(held)
        taken_back = [moment for history in histories.values() if (moment := _taken_back(history, since=at))]
        ended = [job.finished_at for job_id in held if (job := jobs.get(job_id)) and job.finished_at]
        return Killed(
            pid=pid,
            held=len(held),
            taken_back_seconds=max(((moment - at).total_seconds() for moment in taken_back), default=0.0),
            ended_seconds=max(((moment - at).total_seconds() for moment in ended), default=0.0),
        )

    def _say(self, line: str) -> None:
        if self._speaks:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def starting(database: str, log: IO[bytes]) -> Start:
    """How the workers are started: as `tenure worker` does it, with short waits and a log of their own."""
    wishes = Wishes(
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
        lambda line: command(wishes, line=line, again=again), output=log, errors=log
    )


async def running_jobs(store: Store) -> list[Job]:
    return (await store.find(JobFilter(statuses=(RUNNING,)), limit=PAGE)).jobs


def job_problems(queued: Sequence[Job], jobs: dict[UUID, Job]) -> list[str]:
    """Jobs that are gone, or did not end as their kind does."""
    lost = [job.id for job in queued if job.id not in jobs]
    wrong = [
        f"{job.kind} {job.id} is {job.status}"
        for job in jobs.values()
        if job.status is not (DEAD_LETTERED if job.kind == demo_app.DOOMED else SUCCEEDED)
    ]
    problems = [f"{counted(len(lost), 'job')} lost: {_some(lost)}"] if lost else []
    return problems + ([f"{counted(len(wrong), 'job')} not ended as they should: {_some(wrong)}"] if wrong else [])


def effect_problems(jobs: dict[UUID, Job], effects: dict[UUID, int]) -> list[str]:
    """Effects that are missing, were applied more than once, or belong to no job that succeeded."""
    due = {job.id for job in jobs.values() if job.status is SUCCEEDED}
    found = {
        "succeeded without an effect": sorted(due - effects.keys()),
        "had more than one effect": sorted(job_id for job_id, times in effects.items() if times > 1),
        "had an effect and did not succeed": sorted(effects.keys() - due),
    }
    return [f"{counted(len(ids), 'job')} {says}: {_some(ids)}" for says, ids in found.items() if ids]


def _some(names: Sequence[object]) -> str:
    more = f" and {len(names) - NAMED_MOST:,} more" if len(names) > NAMED_MOST else ""
    return ", ".join(str(name) for name in names[:NAMED_MOST]) + more


def _taken_back(history: Sequence[Event], *, since: datetime) -> datetime | None:
    return next((event.at for event in history if event.type is EventType.STALLED and event.at >= since), None)


def _name(slot: Slot) -> str | None:
    return None if slot.report is None else slot.report.worker
