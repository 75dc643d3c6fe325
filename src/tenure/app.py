"""The front door: declare jobs, put them into the queue, look at them and cancel them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from tenure.client.admin import MANY, CancelReport, Operator, RedriveReport
from tenure.client.handle import Handle
from tenure.client.job_function import EnqueueOptions, Enqueuer, JobFunction, Prepared
from tenure.client.queues import AppQueues
from tenure.client.schedules import GRACE_SECONDS, AppSchedules, Call, Missed, Schedule, schedule_of
from tenure.client.sync import BackgroundLoop
from tenure.errors import InvalidInput, StoreError, UnknownKind
from tenure.jobs.context import Context, inside_commit
from tenure.jobs.definition import ErrorClasses, Isolation, JobDefinition, Options, Upgrade, error_classes
from tenure.jobs.middleware import Middleware
from tenure.jobs.settings import database_url
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import Actor, DeadLetter, Job, OnExhausted, OnLost, Policy, Role, Timeouts
from tenure.seams import SYSTEM, Seams
from tenure.stores import Store, store_for
from tenure.stores.contract import DeadLetterFilter, EnqueueResult, JobFilter, JobPage
from tenure.stores.user_connections import UserTransaction

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.observe.snapshot import MetricsSnapshot
    from tenure.testing.harness.harness import Mode
    from tenure.testing.harness.mode import HarnessMode
    from tenure.workers.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

ENQUEUE_BATCH = 1000
UNKNOWN = "(unknown)"
"""What stands for all names that are no kind's, where refusals are counted."""

log = logging.getLogger("tenure")


class Declares(Protocol):
    """Turns a function into a job: async or plain, with its run as first parameter or without."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> JobFunction[P, R]: ...


class App:
    """Jobs of one program on one database.

    >>> app = App("sqlite:///jobs.db")
    >>> @app.job(max_attempts=3)
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double.request(21).enqueue.origin.payload
    '{"number":21}'
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        name: str = "app",
        version: str = "unknown",
        middleware: Sequence[Middleware] = (),
        seams: Seams = SYSTEM,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.database = database_url(database, environment)
        self.seams = seams
        self.version = version
        """The version of this program, which the provenance of its jobs names."""
        self.middleware = tuple(middleware)
        self.client = Actor(Role.CLIENT, name)
        self.background = BackgroundLoop(seams.spawn)
        self.kinds: dict[str, JobDefinition[..., Any]] = {}
        self.declared: dict[str, Schedule] = {}
        """The schedules that the code declares, by name."""
        self.rejections: Counter[str] = Counter()
        """Enqueues that were refused before anything was queued, by kind; names that are no kind's, all in one."""
        self._stores: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Store]] = WeakKeyDictionary()

    def job(
        self,
        *,
        kind: str | None = None,
        aliases: Iterable[str] = (),
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 5,
        lease_seconds: float = 60.0,
        heartbeat_seconds: float | None = None,
        backoff: Backoff | None = None,
        timeouts: Timeouts | None = None,
        on_lost: OnLost = "requeue",
        on_exhausted: OnExhausted = "fail",
        retry_on: ErrorClasses = (),
        fail_on: ErrorClasses = (),
        isolation: Isolation | None = None,
        memory_bytes_max: int | None = None,
        upgrade: Upgrade | None = None,
    ) -> Declares:
        """Declare a job. Its kind is the function's name unless `kind` gives another.

        Jobs that were queued under one of the `aliases` are run too; `upgrade` turns their arguments, and any that no
        longer fit, into those of today. Errors in `fail_on` are not tried again, those in `retry_on` are, whatever
        else their class says.
        """
        policy = Policy(
            max_attempts=max_attempts,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            backoff=backoff or Backoff(),
            timeouts=timeouts or Timeouts(),
            on_lost=on_lost,
            on_exhausted=on_exhausted,
        )
        options = Options(
            queue=queue,
            priority=priority,
            policy=policy,
            aliases=tuple(aliases),
            upgrade=upgrade,
            retry_on=error_classes(retry_on, "retry_on"),
            fail_on=error_classes(fail_on, "fail_on"),
            isolation=isolation,
            memory_bytes_max=memory_bytes_max,
        )

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            declared: JobDefinition[..., Any] = JobDefinition(function, name=kind or function.__name__, options=options)
            self._register(declared)
            return JobFunction(self, declared)

        return cast(Declares, declare)

    def _register(self, kind: JobDefinition[..., Any]) -> None:
        for name in (kind.name, *kind.options.aliases):
            if name in self.kinds:
                other = self.kinds[name].function
                raise InvalidInput("kind", f"{name!r} is declared already, by {other.__module__}.{other.__qualname__}")
        self.kinds.update(dict.fromkeys((kind.name, *kind.options.aliases), kind))

    async def enqueue_many(self, requests: Iterable[Prepared[R]]) -> list[Handle[R]]:
        """Queue many calls, a thousand in one round trip; each thousand is taken whole or not at all.

        A generator is asked for the next thousand while the one before is being written.
        """
        store = await self.store()
        left = iter(requests)
        handles: list[Handle[R]] = []
        # The oldest is being written; the other waits for it, ready to be.
        writing: deque[tuple[list[Prepared[R]], asyncio.Task[Sequence[EnqueueResult]]]] = deque()
        try:
            while batch := list(islice(left, ENQUEUE_BATCH)):
                if len(batch) < ENQUEUE_BATCH and not writing:
                    return self._handles(batch, await store.enqueue([one.enqueue for one in batch]))
                before = writing[-1][1] if writing else None
                adding = store.enqueue([one.enqueue for one in batch], after=before)
                writing.append((batch, self.seams.spawn.task(adding, name="tenure-enqueue")))
                # Around the loop, so that it sets out before the next requests are made; and once more, since uvloop
                # hands to the system at the end of a turn what was written in it.
                for _ in range(2):
                    await self.seams.clock.sleep(0)
                if before is not None:
                    await before
                    for _ in range(2):
                        await self.seams.clock.sleep(0)
                    handles += self._handles(writing[0][0], before.result())
                    writing.popleft()
            for batch, task in writing:
                handles += self._handles(batch, await task)
            return handles
        except BaseException:
            # Whoever makes the requests may have failed. What was sent before that is seen to its end.
            if writing:
                done, _ = await asyncio.wait([task for _, task in writing])
                for task in done:
                    # What it says is said already, or comes second.
                    task.cancelled() or task.exception()
            raise

    def _handles(self, batch: Sequence[Prepared[R]], added: Sequence[EnqueueResult]) -> list[Handle[R]]:
        return [Handle(self, a.job, p.kind, created=a.created) for a, p in zip(added, batch, strict=True)]

    async def submit(self, kind: str, payload: str, *, options: EnqueueOptions | None = None) -> Handle[Any]:
        """Queue a call that came as a name and JSON text, from the command line or the network."""
        known = self.kinds.get(kind)
        if known is None:
            raise self.rejected(kind, UnknownKind(kind, self.kinds))
        enqueuer: Enqueuer[..., Any] = Enqueuer(self, known, options or EnqueueOptions())
        [handle] = await self.enqueue_many([enqueuer.request_of(payload)])
        return handle

    def rejected(self, kind: str, refusal: InvalidInput) -> InvalidInput:
        """A refusal before anything was queued, which is counted and logged."""
        self.rejections[kind if kind in self.kinds else UNKNOWN] += 1
        log.warning("a job was refused before it was queued: %s", refusal)
        return refusal

    def metrics(self) -> MetricsSnapshot:
        """What this program has counted at its front door: the enqueues that were refused."""
        from tenure.observe.meter import rejections

        return rejections(self.rejections, self.kinds)

    async def cancel(self, job_id: UUID, *, hard: bool = False, reason: str = "requested") -> Job:
        """End a job. Softly: one that nobody holds ends at once, a running one is told. Hard: now, whoever holds it."""
        return await (await self.operator()).cancel(job_id, hard=hard, reason=reason)

    async def cancel_many(
        self, wanted: JobFilter, *, hard: bool = False, reason: str = "requested", limit: int = MANY
    ) -> CancelReport:
        """Cancel every live job that matches, each as `cancel` does. What is left as it was is said, and why."""
        return await (await self.operator()).cancel_many(wanted, hard=hard, reason=reason, limit=limit)

    async def redrive(self, job_id: UUID) -> EnqueueResult:
        """A new job that does again what a dead-lettered, failed or halted one was to do; asked twice, the same one."""
        return await (await self.operator()).redrive(job_id)

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        return await (await self.operator()).redrive_many(wanted, limit=limit)

    async def discard(self, job_id: UUID) -> DeadLetter:
        """Note that a dead letter needs no more attention. Nothing is removed."""
        return await (await self.operator()).discard(job_id)

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        """A page of the jobs that match, oldest first."""
        return await (await self.store()).find(wanted, after=after, limit=limit)

    @property
    def queues(self) -> AppQueues:
        """Pausing queues, and their rules: `await app.queues.put("mail", concurrency_max=10)`."""
        return AppQueues(self.store, self.client)

    def schedule(
        self,
        call: Call,
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        missed: Missed = "one",
        grace_seconds: float = GRACE_SECONDS,
    ) -> Schedule:
        """Declare that a call is to be enqueued again and again: `app.schedule(send.request("ada"), "0 9 * * 1-5")`.

        `cron` is a cron expression on the wall clock of `timezone`, or an interval such as `every 30s`. It is written
        down when a worker starts, unless somebody has changed it at run time. It is named after the job's kind, unless
        it is given a `name`. `missed` says what becomes of due times at which no worker was there: `one` job for all
        of them, `all`, or `skip` those that are over for longer than `grace_seconds`.
        """
        schedule = schedule_of(
            call, cron, name=name, timezone=timezone, missed=missed, grace_seconds=grace_seconds, source="code"
        )
        if schedule.name in self.declared:
            raise InvalidInput("name", f"there is a schedule {schedule.name!r} already; give this one another name")
        self.declared[schedule.name] = schedule
        return schedule

    @property
    def schedules(self) -> AppSchedules:
        """Schedules at run time: put, edit, pause, resume, trigger and remove them."""
        return AppSchedules(self.store, self.client, seams=self.seams)

    async def operator(self) -> Operator:
        """What operators do, in this app's name."""
        return Operator(await self.store(), actor=self.client, seams=self.seams)

    def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        grace_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        scan_seconds: float = 5.0,
        metrics: bool = False,
    ) -> Worker:
        """A worker for this app's jobs, to be run on the running event loop: `await app.worker().run()`.

        With `metrics` it counts what `worker.metrics()` shows. On the command line: `tenure worker module:app`.
        """
        from tenure.workers.worker import Worker, WorkerOptions

        options = WorkerOptions(
            queues=tuple(queues),
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            poll_seconds=poll_seconds,
            scan_seconds=scan_seconds,
            metrics=metrics,
            version=self.version,
        )
        return Worker(
            kinds=self.kinds,
            open_store=self._store_for_work,
            seams=self.seams,
            options=options,
            layers=self.middleware,
            user_transactions=self.user_transaction,
            schedules=tuple(self.declared.values()),
        )

    def testing(self, mode: Mode = "drain", *, now: datetime | None = None) -> HarnessMode:
        """For tests: jobs live in memory and run when told to, by a clock that moves only when told to.

        async with app.testing() as harness:
            handle = await send.enqueue("ada")
            await harness.drain()

        In plain tests: `with app.testing() as harness:`, `enqueue_sync` and `harness.drain_sync()`. With mode `inline`
        each job is run before its enqueue returns. Afterwards the app is as it was before.
        """
        from tenure.testing.harness.mode import HarnessMode

        return HarnessMode(self, mode=mode, now=now)

    async def store(self) -> Store:
        """The open store of the running event loop."""
        if inside_commit.get() is not None:
            raise StoreError(
                "inside `ctx.commit()` everything must go through its transaction, or it would not take effect with "
                "it: use `tx.execute(…)`, `tx.fetch(…)`, `tx.enqueue(job.request(…))` or `tx.outbox(…)`; with a "
                "connection of your own also `job.within(conn).enqueue(…)`"
            )
        loop = asyncio.get_running_loop()
        pid, store = self._stores.get(loop, (0, None))
        if store is None or pid != os.getpid():
            store = await self.open_store()
            self._stores[loop] = (os.getpid(), store)
        return store

    def user_transaction(self, connection: Any) -> UserTransaction:
        """Return the transaction of a user's connection to this app's database."""
        return UserTransaction(connection, self.database, seams=self.seams)

    async def open_store(self) -> Store:
        """A new store, opened; whoever asked for it closes it. A new SQLite file is given its schema."""
        store = store_for(self.database, seams=self.seams)
        if self.database.startswith("sqlite") and not (await store.schema()).applied:
            await store.migrate()
        await store.open()
        return store

    async def _store_for_work(self) -> Store:
        """A store for a worker, which has several: each would have a memory of its own."""
        store = await self.open_store()
        if ":memory:" in self.database:
            await store.close()
            raise InvalidInput(
                "database",
                "is in the memory of one store, where a worker would see none of the jobs; use a file, "
                "sqlite:///jobs.db, or `app.testing()` in tests",
            )
        return store

    async def close(self) -> None:
        """Let go of the running event loop's store."""
        pid, store = self._stores.pop(asyncio.get_running_loop(), (0, None))
        if store is not None and pid == os.getpid():
            await store.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
