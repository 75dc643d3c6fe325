"""The test harness: runs an app's jobs in memory when a test asks for it, by a clock that the test moves.

The roles are those of a real worker (`roles.py`); the harness decides when they run. Jobs run one at a time, in the
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
from tenure.testing.harness.environment import AppClock, HarnessClock, HarnessLoop, HarnessSpawner, HarnessStore
from tenure.testing.harness.report import JOBS_MAX, HarnessError, HarnessReport, Ran, Work
from tenure.testing.harness.roles import HarnessRoles
from tenure.workers.leases import Lease

if TYPE_CHECKING:
    from tenure.app import App

T = TypeVar("T")

Mode = Literal["drain", "inline"]

IDLE_MAX = 1000
"""How many waits in a row may find nothing due before HarnessError is raised."""
IDLE_PAUSE_SECONDS = 0.001
PAGE = 1000
SQL_SECONDS = 5.0
TICK = timedelta(microseconds=1)


_inside: ContextVar[Harness | None] = ContextVar("tenure_harness", default=None)
"""The harness whose job this code is part of. Jobs that it enqueues run after it, also in inline mode."""


class Harness:
    """Runs the jobs of one app on a database in memory, on demand.

    `clock` is the clock of the database, the leases and the app. `ran` has all attempts so far.
    """

    def __init__(self, app: App, home: HarnessLoop, *, mode: Mode, clock: HarnessClock) -> None:
        self.clock = clock
        self.ran: list[Ran] = []
        self.home = home
        self._app, self._inline = app, mode == "inline"
        self._spawner = HarnessSpawner(app.seams.spawn)
        self._seams = Seams(clock=clock, random=app.seams.random, spawn=self._spawner)
        self._opened: tuple[Store, HarnessRoles] | None = None
        self._closed = False
        self._call_lock = asyncio.Lock()
        self._queues = {kind.options.queue for kind in app.kinds.values()} | {"default"}
        self._idle = 0
        self._stubs: dict[Callable[..., Any], Callable[..., Any]] = {}

    # What a test calls.

    async def drain(
        self, *, until_empty: bool = False, raise_errors: bool = False, jobs_max: int = JOBS_MAX
    ) -> HarnessReport:
        """Run everything that is due now, and what that enqueues, until nothing is due.

        With `until_empty` the clock is moved from one due time to the next until no live job is left. With
        `raise_errors` the first error of a job is raised here, once its outcome is written.
        """
        if until_empty:
            return await self.run_all(raise_errors=raise_errors, jobs_max=jobs_max)
        work = Work(jobs_max, raise_errors)
        async with self._exclusively():
            await self._run_due(work)
        return work.report()

    async def advance(self, seconds: float, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> HarnessReport:
        """Let time pass. Each time that a job becomes due or overdue, recovery scans and due jobs run. A job that runs
        meanwhile keeps its lease by heartbeats.

        While another call of the harness is active, that call runs what becomes due.
        """
        check_seconds(seconds, "seconds")
        work = Work(jobs_max, raise_errors)
        if self._others_work:
            await self._pass(seconds, (await self._open())[1].scan)
            return work.report()
        async with self._exclusively():
            await self._pass(seconds, lambda: self._run_due(work))
        return work.report()

    async def run_all(self, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> HarnessReport:
        """Run until no live job is left, moving the clock from one due time to the next: retries, delays, snoozes."""
        work = Work(jobs_max, raise_errors)
        async with self._exclusively():
            await self._run_due(work)
            while live := await self._live_not_running():
                at = min(self._times_of(live), default=None)
                if at is None:
                    raise _never_due(live)
                await self._move_to(at)
                await self._run_due(work)
        return work.report()

    def stub(self, function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        """From now on call another function, async or plain, wherever this one is the function of a step.

        harness.stub(search, lambda topic: [f"a page about {topic}"])

        The step is recorded under its own name, and the result passes through the return type of its own function.
        """
        self._stubs[function] = replacement

    async def execute(self, sql: str, *values: Any) -> int:
        """Run a statement of the test on the database, for example to create tables that a commit writes to."""
        async with (await self.store()).transaction(deadline_seconds=SQL_SECONDS) as tx:
            return await tx.execute(sql, *values)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query of the test, by column name."""
        async with (await self.store()).transaction(deadline_seconds=SQL_SECONDS) as tx:
            return await tx.fetch(sql, *values)

    def drain_sync(
        self, *, until_empty: bool = False, raise_errors: bool = False, jobs_max: int = JOBS_MAX
    ) -> HarnessReport:
        """`drain` for plain code."""
        return self.run(lambda: self.drain(until_empty=until_empty, raise_errors=raise_errors, jobs_max=jobs_max))

    def advance_sync(self, seconds: float, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> HarnessReport:
        """`advance` for plain code."""
        return self.run(lambda: self.advance(seconds, raise_errors=raise_errors, jobs_max=jobs_max))

    def run_all_sync(self, *, raise_errors: bool = False, jobs_max: int = JOBS_MAX) -> HarnessReport:
        """`run_all` for plain code."""
        return self.run(lambda: self.run_all(raise_errors=raise_errors, jobs_max=jobs_max))

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine returns, for plain code: `harness.run(lambda: handle.result())`.

        While a job runs, calls from other threads count as part of that job.
        """

        async def made() -> T:
            if self._call_lock.locked():
                _inside.set(self)
            return await make()

        return self.home.run(made)

    # What the app uses instead of its own runtime.

    def app_seams(self) -> Seams:
        """The app's seams: waiting on its clock runs due jobs."""
        clock = AppClock(self.clock, self._wait)
        return Seams(clock=clock, random=self._seams.random, spawn=self._spawner)

    async def store(self) -> Store:
        """The database in memory, created on first use."""
        return (await self._open())[0]

    async def no_worker(self) -> Store:
        """Raises HarnessError: an app under test has no worker."""
        raise HarnessError("the app is under test, so no worker can be started; harness.drain() runs its jobs")

    async def added(self, added: list[EnqueueResult]) -> list[EnqueueResult]:
        """In inline mode, run the new jobs, unless a job enqueued them, and return their records as they are then."""
        self._queues |= {one.job.queue for one in added}
        if not self._inline or _inside.get() is self:
            return added
        await self.drain()
        store = await self.store()
        jobs = await store.read([one.job.id for one in added])
        return [msgspec.structs.replace(one, job=jobs[one.job.id]) for one in added]

    async def changed(self) -> None:
        """Pass cancellations on to running jobs at once."""
        await (await self._open())[1].refresh()

    async def close(self) -> None:
        """Cancel running tasks and discard the database."""
        self._closed = True
        await self._spawner.end_all()
        if self._opened is not None:
            store, roles = self._opened
            await roles.close()
            await store.close()

    # Internals.

    async def _open(self) -> tuple[Store, HarnessRoles]:
        if self._closed:
            raise HarnessError("this harness is closed: its test has ended")
        if not self.home.is_here:
            raise HarnessError(
                "this harness belongs to another event loop; enter it where it is used: `async with app.testing()` in "
                "async code, `with app.testing()` where enqueue_sync and drain_sync are called"
            )
        if self._opened is None:
            app, store = self._app, HarnessStore(self._seams, self)
            await store.migrate()
            await store.open()
            roles = HarnessRoles(
                store,
                self._seams,
                definitions=app.kinds,
                middleware=app.middleware,
                version=app.version,
                stubs=self._stubs,
            )
            self._opened = store, roles
        return self._opened

    @property
    def _others_work(self) -> bool:
        return self._call_lock.locked() and _inside.get() is not self

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """One call at a time, except that a job may wait for other jobs, which then run."""
        await self._open()
        if _inside.get() is self:
            yield
            return
        async with self._call_lock:
            yield

    async def _run_due(self, work: Work) -> None:
        """Recovery scans first: overdue jobs must not be claimed before."""
        _, roles = await self._open()
        while True:
            changed = await roles.scan()
            ran = len(work.ran)
            while (held := await self._next(work)) is not None:
                await self._run_one(held, work)
            if not changed and len(work.ran) == ran and not await self._met_new_queues():
                return

    async def _next(self, work: Work) -> Lease | None:
        """Claim the next job. At the limit of the work nothing is claimed, since it would stay leased."""
        _, roles = await self._open()
        if work.full and any(self._is_due(job) for job in await self._live_not_running()):
            raise work.too_much()
        return await roles.claim(sorted(self._queues))

    def _is_due(self, job: Job) -> bool:
        due = job.status in READY and job.due_at is not None and job.due_at <= self.clock.now()
        return due and job.kind in self._app.local_kinds

    async def _run_one(self, held: Lease, work: Work) -> None:
        store, roles = await self._open()
        with self._as_job():
            job = await roles.run(held)
        record = job or (await store.read([held.job.id]))[held.job.id]
        ran = Ran(record, roles.errors.error_of(record.id), recorded=job is not None)
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
            times = (*self._times_of(await self._live_not_running()), *await self._times_of_running())
            at = min((one for one in times if one < until), default=until)
            await self._move_to(at)
            await look()
            if at >= until:
                return

    async def _move_to(self, at: datetime) -> None:
        self.clock.advance(max(0.0, (at - self.clock.now()).total_seconds()))
        await (await self._open())[1].renew()

    async def _wait(self, seconds: float) -> None:
        """The app waits: run due jobs, and move the clock only if none is due."""
        if self._others_work:
            await SYSTEM.clock.sleep(IDLE_PAUSE_SECONDS)
            return
        work = Work()
        async with self._exclusively():
            await self._run_due(work)
            if work.ran:
                self._idle = 0
            else:
                times = [*self._times_of(await self._live_not_running())]
                until = self.clock.now() + max(TICK, timedelta(seconds=seconds))
                await self._move_to(min((until, *times, *await self._times_of_running())))
                self._idle = 0 if times else self._idle + 1
        if self._idle > IDLE_MAX:
            self._idle = 0
            raise HarnessError("the app waits for a job, but no job is due and none will become due")
        await SYSTEM.clock.sleep(IDLE_PAUSE_SECONDS if self._idle else 0)

    async def _live_not_running(self) -> list[Job]:
        """The live jobs that are not running in this harness."""
        store, roles = await self._open()
        ours = {held.job.id for held in roles.leases.all()}
        found: list[Job] = []
        page = await store.find(JobFilter(statuses=tuple(LIVE)), limit=PAGE)
        found += page.jobs
        while page.after is not None:
            page = await store.find(JobFilter(statuses=tuple(LIVE)), after=page.after, limit=PAGE)
            found += page.jobs
        return [job for job in found if job.id not in ours]

    def _times_of(self, jobs: list[Job]) -> Iterator[datetime]:
        """The future times at which one of these jobs becomes due or overdue."""
        now = self.clock.now()
        for job in jobs:
            for at in (job.due_at, job.timeout_at, job.lease_expires_at, job.heartbeat_deadline_at):
                if at is not None and at > now:
                    yield at

    async def _times_of_running(self) -> list[datetime]:
        """When running jobs are due for a heartbeat, and when they reach their timeout or their deadline."""
        _, roles = await self._open()
        now, here = self.clock.now(), self.clock.monotonic_seconds()
        held = [one for one in roles.leases.all() if not one.lost]
        beats = [now + max(TICK, timedelta(seconds=one.next_renewal_at_seconds - here)) for one in held]
        ends = [
            now + timedelta(seconds=one.overdue_at_seconds - here)
            for one in held
            if one.at_deadline and here < one.overdue_at_seconds < float("inf")
        ]
        return [
            *beats,
            *ends,
            *(one.job.timeout_at for one in held if one.job.timeout_at is not None and one.job.timeout_at > now),
        ]

    async def _met_new_queues(self) -> bool:
        """Whether jobs are in queues not seen so far; a commit may have enqueued them."""
        met = {job.queue for job in await self._live_not_running()} - self._queues
        self._queues |= met
        return bool(met)


def _never_due(live: list[Job]) -> HarnessError:
    kinds = ", ".join(f"{kind} ({status})" for kind, status in sorted({(job.kind, job.status) for job in live}))
    return HarnessError(
        f"{len(live)} jobs are left and none of them will ever be due: {kinds}. Either their kind is not declared in "
        f"this app, or they wait for something that a test must do, such as sending a signal"
    )
