"""The App: declare jobs and schedules, enqueue, cancel and redrive jobs, run workers."""

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

from tenure.client.admin import MANY, CancelReport, JobAdmin, RedriveReport
from tenure.client.handle import Handle
from tenure.client.job_function import EnqueueOptions, Enqueuer, JobFunction, PreparedCall
from tenure.client.queues import AppQueues
from tenure.client.schedules import GRACE_SECONDS, AppSchedules, Call, Missed, Schedule, make_schedule
from tenure.client.sync import BackgroundLoop
from tenure.errors import InvalidInput, StoreError, UnknownKind
from tenure.jobs.context import Context, inside_commit
from tenure.jobs.definition import ErrorClasses, Isolation, JobDefinition, Options, Upgrade, error_classes
from tenure.jobs.middleware import Middleware
from tenure.jobs.settings import database_url
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import Actor, Job, OnExhausted, OnLost, Policy, Role, Timeouts
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
"""The kind under which rejections of undeclared kinds are counted."""

log = logging.getLogger("tenure")


class JobDecorator(Protocol):
    """Declares a function as a job: async or sync, with or without a Context as first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> JobFunction[P, R]: ...


class App:
    """The jobs of one program on one database.

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
        """The version of this program, for the provenance of its jobs."""
        self.middleware = tuple(middleware)
        self.client = Actor(Role.CLIENT, name)
        self.background = BackgroundLoop(seams.spawn)
        self.kinds: dict[str, JobDefinition[..., Any]] = {}
        self.declared_schedules: dict[str, Schedule] = {}
        """The schedules that the code declares, by name."""
        self.rejections: Counter[str] = Counter()
        """The number of rejected enqueues by kind; undeclared kinds are counted together."""
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
    ) -> JobDecorator:
        """Declare a job. Its kind is the name of the function, unless `kind` is given.

        Jobs that were enqueued under one of the `aliases` run too; `upgrade` converts their arguments, and others that
        no longer validate. Errors of `fail_on` are not retried, errors of `retry_on` are, whatever their class implies.
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
            definition: JobDefinition[..., Any] = JobDefinition(
                function, name=kind or function.__name__, options=options
            )
            self._register(definition)
            return JobFunction(self, definition)

        return cast(JobDecorator, declare)

    def _register(self, definition: JobDefinition[..., Any]) -> None:
        kinds = (definition.name, *definition.options.aliases)
        for kind in kinds:
            if kind in self.kinds:
                other = self.kinds[kind].function
                problem = f"{kind!r} is declared already, by {other.__module__}.{other.__qualname__}"
                raise InvalidInput("kind", f"{problem}; use another kind")
        self.kinds.update(dict.fromkeys(kinds, definition))

    async def enqueue_many(self, requests: Iterable[PreparedCall[R]]) -> list[Handle[R]]:
        """Enqueue many calls in batches of a thousand, each in one transaction.

        A generator makes the next batch while the previous one is written.
        """
        store = await self.store()
        remaining = iter(requests)
        handles: list[Handle[R]] = []
        # The first is being written; the second waits for it.
        writing: deque[tuple[list[PreparedCall[R]], asyncio.Task[Sequence[EnqueueResult]]]] = deque()
        try:
            while batch := list(islice(remaining, ENQUEUE_BATCH)):
                if len(batch) < ENQUEUE_BATCH and not writing:
                    return self._handles(batch, await store.enqueue([one.enqueue for one in batch]))
                before = writing[-1][1] if writing else None
                adding = store.enqueue([one.enqueue for one in batch], after=before)
                writing.append((batch, self.seams.spawn.task(adding, name="tenure-enqueue")))
                # One iteration of the event loop, so that the write starts before the next requests are made; and a
                # second one, because uvloop sends at the end of an iteration.
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
            # The generator may have failed. Batches that were sent are awaited.
            if writing:
                done, _ = await asyncio.wait([task for _, task in writing])
                for task in done:
                    # Retrieved, so that asyncio does not log it: the first error is raised.
                    task.cancelled() or task.exception()
            raise

    def _handles(self, batch: Sequence[PreparedCall[R]], added: Sequence[EnqueueResult]) -> list[Handle[R]]:
        return [Handle(self, a.job, p.definition, created=a.created) for a, p in zip(added, batch, strict=True)]

    async def submit(self, kind: str, payload: str, *, options: EnqueueOptions | None = None) -> Handle[Any]:
        """Enqueue a call by kind and JSON text, for example from the command line."""
        definition = self.kinds.get(kind)
        if definition is None:
            raise self.rejected(kind, UnknownKind(kind, self.kinds))
        enqueuer: Enqueuer[..., Any] = Enqueuer(self, definition, options or EnqueueOptions())
        [handle] = await self.enqueue_many([enqueuer.request_from_json(payload)])
        return handle

    def rejected(self, kind: str, refusal: InvalidInput) -> InvalidInput:
        """Count and log a rejection: nothing was enqueued."""
        self.rejections[kind if kind in self.kinds else UNKNOWN] += 1
        log.warning("enqueue of %s rejected: %s", kind, refusal)
        return refusal

    def metrics(self) -> MetricsSnapshot:
        """Return the counts of rejected enqueues of this program."""
        from tenure.observe.meter import rejections

        return rejections(self.rejections, self.kinds)

    async def cancel(self, job_id: UUID, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel a job: at once if it is not leased, otherwise by a request to its worker. `hard` revokes the lease."""
        return await (await self.admin()).cancel(job_id, hard=hard, reason=reason)

    async def cancel_many(
        self, wanted: JobFilter, *, hard: bool = False, reason: str = "requested", limit: int = MANY
    ) -> CancelReport:
        """Cancel every live job that matches, each as `cancel` does. The report lists the skipped jobs with reasons."""
        return await (await self.admin()).cancel_many(wanted, hard=hard, reason=reason, limit=limit)

    async def redrive(self, job_id: UUID) -> EnqueueResult:
        """Enqueue the work of a dead-lettered, failed or halted job as a new job. Repeated, it returns that job."""
        return await (await self.admin()).redrive(job_id)

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        return await (await self.admin()).redrive_many(wanted, limit=limit)

    async def discard(self, job_id: UUID) -> DeadLetterRecord:
        """Resolve a dead letter as discarded. Nothing is removed."""
        return await (await self.admin()).discard(job_id)

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        """Return a page of the jobs that match, oldest first."""
        return await (await self.store()).find(wanted, after=after, limit=limit)

    @property
    def queues(self) -> AppQueues:
        """Pauses and limits of queues: `await app.queues.put("mail", concurrency_max=10)`."""
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
        """Declare a schedule of a call: `app.schedule(send.request("ada"), "0 9 * * 1-5")`.

        `cron` is a cron expression on the wall clock of `timezone`, or an interval such as `every 30s`. A worker writes
        the schedule at its start, unless it was changed at run time. Its name is the job's kind, unless `name` is
        given. `missed` determines the jobs for due times at which no worker ran: `one` for all of them, `all`, or
        `skip` those that are older than `grace_seconds`.
        """
        schedule = make_schedule(
            call, cron, name=name, timezone=timezone, missed=missed, grace_seconds=grace_seconds, source="code"
        )
        if schedule.name in self.declared_schedules:
            raise InvalidInput("name", f"schedule {schedule.name!r} is declared already; use another name")
        self.declared_schedules[schedule.name] = schedule
        return schedule

    @property
    def schedules(self) -> AppSchedules:
        """Administration of schedules: put, edit, pause, resume, trigger, remove."""
        return AppSchedules(self.store, self.client, seams=self.seams)

    async def admin(self) -> JobAdmin:
        """Administration of jobs under the name of this app."""
        return JobAdmin(await self.store(), actor=self.client, seams=self.seams)

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
        """Return a worker for this app's jobs on the running event loop: `await app.worker().run()`.

        With `metrics` it counts what `worker.metrics()` returns. On the command line: `tenure worker module:app`.
        """
        from tenure.client.load_job import load_job
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
            definitions=self.kinds,
            open_store=self._store_for_work,
            seams=self.seams,
            options=options,
            middleware=self.middleware,
            user_transactions=self.user_transaction,
            load_job=load_job,
            schedules=tuple(self.declared_schedules.values()),
        )

    def testing(self, mode: Mode = "drain", *, now: datetime | None = None) -> HarnessMode:
        """Return a test harness: jobs are in memory, and run when the test calls for it, on a manual clock.

        async with app.testing() as harness:
            handle = await send.enqueue("ada")
            await harness.drain()

        In sync tests: `with app.testing() as harness:`, `enqueue_sync` and `harness.drain_sync()`. With mode `inline`
        each job runs before its enqueue returns. At the end the app uses its own database again.
        """
        from tenure.testing.harness.mode import HarnessMode

        return HarnessMode(self, mode=mode, now=now)

    async def store(self) -> Store:
        """Return the open store of the running event loop."""
        if inside_commit.get() is not None:
            raise StoreError(
                "inside `ctx.commit()` this call would not be part of the transaction; use `tx.execute(…)`, "
                "`tx.fetch(…)`, `tx.enqueue(job.request(…))` or `tx.outbox(…)`, and with a connection of your own "
                "also `job.within(conn).enqueue(…)`"
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
        """Open a new store, which the caller closes. A new SQLite file is migrated."""
        store = store_for(self.database, seams=self.seams)
        if self.database.startswith("sqlite") and not (await store.schema()).applied:
            await store.migrate()
        await store.open()
        return store

    async def _store_for_work(self) -> Store:
        """Open a store for a worker. A worker opens several, so a database in memory is refused."""
        store = await self.open_store()
        if ":memory:" in self.database:
            await store.close()
            raise InvalidInput(
                "database",
                "is in the memory of one store, and a worker opens others; use a file such as sqlite:///jobs.db, or "
                "`app.testing()` in tests",
            )
        return store

    async def close(self) -> None:
        """Close the store of the running event loop."""
        pid, store = self._stores.pop(asyncio.get_running_loop(), (0, None))
        if store is not None and pid == os.getpid():
            await store.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
