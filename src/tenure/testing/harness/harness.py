"""What a test holds while its app is being tested: it runs jobs when told to, by a clock that it moves.

The roles are those of a real worker (see `crew`); only who calls them when is different. Jobs run one at a time, in the
order in which a worker would claim them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from tenure.lifecycle.json_text import check_seconds
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LIVE, READY
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import EnqueueResult, JobFilter, Store
from tenure.testing.harness.environment import AppClock, HarnessClock, HarnessSpawner, HarnessStore, HomeLoop
from tenure.testing.harness.report import JOBS_MAX, HarnessError, Ran, Report, Work
from tenure.testing.harness.roles import HarnessRoles
from tenure.workers.leases import Lease

if TYPE_CHECKING:
    from tenure.app import App

T = TypeVar("T")

Mode = Literal["drain", "inline"]

IDLE_MAX = 1000
"""How often somebody may wait in vain before the bench says so."""
IDLE_PAUSE_SECONDS = 0.001
PAGE = 1000
SQL_SECONDS = 5.0
TICK = timedelta(microseconds=1)


_inside: ContextVar[Harness | None] = ContextVar("tenure_bench", default=None)
"""The bench on which this code runs as part of a job: what it enqueues waits for its turn."""


class Harness:
    """Runs the jobs of one app on a database in memory, when it is told to.

    `clock` is the time of everything: of the database, the leases and the app. `ran` is all that was run so far.
    """

    def __init__(self, app: App, home: HomeLoop, *, mode: Mode, clock: HarnessClock) -> None:
        self.clock = clock
        self.ran: list[Ran] = []
        self.home = home
        self._app, self._inline = app, mode == "inline"
        self._spawner = HarnessSpawner(app.seams.spawn)
        self._seams = Seams(clock=clock, random=app.seams.random, spawn=self._spawner)
        self._opened: tuple[Store, HarnessRoles] | None = None
        self._closed = False
        self._turn = asyncio.Lock()
        self._queues = {kind.options.queue for kind in app.kinds.values()} | {"default"}
        self._idle = 0

    # What a test calls.

    async def drain(self, *, until_empty: bool = False, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """Run everything that is due now, and what that enqueues, until nothing is due.

        With `until_empty` the clock is moved from one due time to the next until no live job is left. With
        `raise_errors` the first error of a job is raised here, once its job is settled.
        """
        if until_empty:
            return await self.run_all(raise_errors=raise_errors, jobs_max=jobs_max)
        work = Work(jobs_max, raise_errors)
        async with self._my_turn():
            await self._run_due(work)
        return work.report()

    async def advance(self, seconds: float, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """Let time pass: at each moment at which something becomes due or overdue, recovery looks after it and what
        is due is run. A job that runs meanwhile keeps its lease, as it would in a worker that is alive.

        While another call is at work, it is that call which runs what becomes due.
        """
        check_seconds(seconds, "seconds")
        work = Work(jobs_max, raise_errors)
        if self._others_work:
            await self._pass(seconds, (await self._open())[1].scan)
            return work.report()
        async with self._my_turn():
            await self._pass(seconds, lambda: self._run_due(work))
        return work.report()

    async def run_all(self, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """Run until no live job is left, moving the clock from one due time to the next: retries, delays, snoozes."""
        work = Work(jobs_max, raise_errors)
        async with self._my_turn():
            await self._run_due(work)
            while live := await self._unheld():
                moment = min(self._moments_of(live), default=None)
                if moment is None:
                    raise _never_due(live)
                await self._move_to(moment)
                await self._run_due(work)
        return work.report()

    async def execute(self, sql: str, *values: Any) -> int:
        """Run a statement of the test's own on the database, such as making the tables that a commit writes to."""
        async with (await self.store()).transaction(deadline_seconds=SQL_SECONDS) as tx:
            return await tx.execute(sql, *values)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query of the test's own, by column name."""
        async with (await self.store()).transaction(deadline_seconds=SQL_SECONDS) as tx:
            return await tx.fetch(sql, *values)

    def drain_sync(self, *, until_empty: bool = False, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """`drain` for plain code."""
        return self.run(lambda: self.drain(until_empty=until_empty, raise_errors=raise_errors, jobs_max=jobs_max))

    def advance_sync(self, seconds: float, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """`advance` for plain code."""
        return self.run(lambda: self.advance(seconds, raise_errors=raise_errors, jobs_max=jobs_max))

    def run_all_sync(self, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> Report:
        """`run_all` for plain code."""
        return self.run(lambda: self.run_all(raise_errors=raise_errors, jobs_max=jobs_max))

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine returns, for plain code: `bench.run(lambda: handle.result())`.

        Code in other threads that meets the bench at work is taken for a part of the job that runs.
        """

        async def made() -> T:
            if self._turn.locked():
                _inside.set(self)
            return await make()

        return self.home.run(made)

    # What the app sees meanwhile.

    def app_seams(self) -> Seams:
        """Time as the app sees it: whoever waits for a job there has it run."""
        clock = AppClock(self.clock, self._wait)
        return Seams(clock=clock, random=self._seams.random, spawn=self._spawner)

    async def store(self) -> Store:
        """The database in memory, made when it is first asked for."""
        return (await self._open())[0]

    async def no_worker(self) -> Store:
        """A worker has nothing to do here."""
        raise HarnessError("the app is being tested, so no worker can be started; bench.drain() runs its jobs")

    async def added(self, added: list[EnqueueResult]) -> list[EnqueueResult]:
        """Inline: run what was added, unless a job did it, and answer with what became of it."""
        self._queues |= {one.job.queue for one in added}
        if not self._inline or _inside.get() is self:
            return added
        await self.drain()
        store = await self.store()
        jobs = await store.read([one.job.id for one in added])
        return [msgspec.structs.replace(one, job=jobs[one.job.id]) for one in added]

    async def changed(self) -> None:
        """A running job is told at once that somebody wants its end, or has ended it."""
        await (await self._open())[1].hear()

    async def close(self) -> None:
        """End what still runs and forget the database."""
        self._closed = True
        await self._spawner.end_all()
        if self._opened is not None:
            store, crew = self._opened
            await crew.close()
            await store.close()

    # How it works.

    async def _open(self) -> tuple[Store, HarnessRoles]:
        if self._closed:
            raise HarnessError("this bench is closed: its test is over, and its jobs with it")
        if not self.home.is_here:
            raise HarnessError(
                "this bench lives on another event loop; enter it where it is used: `async with app.testing()` inside "
                "the code that awaits, `with app.testing()` where enqueue_sync and drain_sync are called"
            )
        if self._opened is None:
            app, store = self._app, HarnessStore(self._seams, self)
            await store.migrate()
            await store.open()
            crew = HarnessRoles(store, self._seams, kinds=app.kinds, layers=app.middleware, version=app.version)
            self._opened = store, crew
        return self._opened

    @property
    def _others_work(self) -> bool:
        return self._turn.locked() and _inside.get() is not self

    @asynccontextmanager
    async def _my_turn(self) -> AsyncIterator[None]:
        """One at a time; but a job that waits for others may have them run."""
        await self._open()
        if _inside.get() is self:
            yield
            return
        async with self._turn:
            yield

    async def _run_due(self, work: Work) -> None:
        """Recovery first: what is overdue was so before anybody came for it."""
        _, crew = await self._open()
        while True:
            changed = await crew.scan()
            ran = len(work.ran)
            while (held := await self._next(work)) is not None:
                await self._run_one(held, work)
            if not changed and len(work.ran) == ran and not await self._met_new_queues():
                return

    async def _next(self, work: Work) -> Lease | None:
        """Claim the next job. At the limit of the work nothing is claimed that would then be left lying about."""
        _, crew = await self._open()
        if work.full and any(self._is_due(job) for job in await self._unheld()):
            raise work.too_much()
        return await crew.claim(sorted(self._queues))

    def _is_due(self, job: Job) -> bool:
        due = job.status in READY and job.due_at is not None and job.due_at <= self.clock.now()
        return due and job.kind in self._app.kinds

    async def _run_one(self, held: Lease, work: Work) -> None:
        store, crew = await self._open()
        with self._as_job():
            job = await crew.run(held)
        record = job or (await store.read([held.job.id]))[held.job.id]
        ran = Ran(record, crew.witness.error_of(record.id), recorded=job is not None)
        self.ran.append(ran)
        work.note(ran)

    @contextmanager
    def _as_job(self) -> Iterator[None]:
        token = _inside.set(self)
        try:
            yield
        finally:
            _inside.reset(token)

    async def _pass(self, seconds: float, look: Callable[[], Awaitable[object]]) -> None:
        until = self.clock.now() + timedelta(seconds=seconds)
        while True:
            moments = (*self._moments_of(await self._unheld()), *await self._moments_of_held())
            moment = min((one for one in moments if one < until), default=until)
            await self._move_to(moment)
            await look()
            if moment >= until:
                return

    async def _move_to(self, moment: datetime) -> None:
        self.clock.advance(max(0.0, (moment - self.clock.now()).total_seconds()))
        await (await self._open())[1].beat()

    async def _wait(self, seconds: float) -> None:
        """Somebody in the app waits. First what is due gets its turn; only if there is nothing does time pass."""
        if self._others_work:
            await SYSTEM.clock.sleep(IDLE_PAUSE_SECONDS)
            return
        work = Work()
        async with self._my_turn():
            await self._run_due(work)
            if work.ran:
                self._idle = 0
            else:
                moments = [*self._moments_of(await self._unheld())]
                until = self.clock.now() + max(TICK, timedelta(seconds=seconds))
                await self._move_to(min((until, *moments, *await self._moments_of_held())))
                self._idle = 0 if moments else self._idle + 1
        if self._idle > IDLE_MAX:
            self._idle = 0
            raise HarnessError("somebody waits for a job, but nothing is due and nothing ever will be")
        await SYSTEM.clock.sleep(IDLE_PAUSE_SECONDS if self._idle else 0)

    async def _unheld(self) -> list[Job]:
        """The live jobs that do not run here just now."""
        store, crew = await self._open()
        ours = {held.job.id for held in crew.held.all()}
        found: list[Job] = []
        page = await store.find(JobFilter(statuses=tuple(LIVE)), limit=PAGE)
        found += page.jobs
        while page.after is not None:
            page = await store.find(JobFilter(statuses=tuple(LIVE)), after=page.after, limit=PAGE)
            found += page.jobs
        return [job for job in found if job.id not in ours]

    def _moments_of(self, jobs: list[Job]) -> Iterator[datetime]:
        """When something will be due or overdue that is not yet."""
        now = self.clock.now()
        for job in jobs:
            for moment in (job.due_at, job.timeout_at, job.lease_expires_at, job.heartbeat_deadline_at):
                if moment is not None and moment > now:
                    yield moment

    async def _moments_of_held(self) -> list[datetime]:
        """When the jobs that run here just now want their heartbeats, and when they will have run for too long."""
        _, crew = await self._open()
        now, here = self.clock.now(), self.clock.monotonic_seconds()
        held = [one for one in crew.held.all() if not one.lost]
        beats = [now + max(TICK, timedelta(seconds=one.next_beat_at_seconds - here)) for one in held]
        return beats + [
            one.job.timeout_at for one in held if one.job.timeout_at is not None and one.job.timeout_at > now
        ]

    async def _met_new_queues(self) -> bool:
        """Whether jobs wait in queues that nobody told us of: a commit may have put them there."""
        met = {job.queue for job in await self._unheld()} - self._queues
        self._queues |= met
        return bool(met)


def _never_due(live: list[Job]) -> HarnessError:
    kinds = ", ".join(f"{kind} ({status})" for kind, status in sorted({(job.kind, job.status) for job in live}))
    return HarnessError(
        f"{len(live)} jobs are left and none of them will ever be due: {kinds}. Either their kind is not declared in "
        f"this app, or they wait for something that a test must do, such as sending a signal"
    )
