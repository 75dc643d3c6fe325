"""The App: enqueue, cancel and redrive jobs, run workers. What it declares is in `client/declarations.py`."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenure.client.admin import MANY, CancelReport, JobAdmin, PruneReport, RedriveReport
from tenure.client.app_stores import AppStores
from tenure.client.declarations import ALL_QUEUES, Declarations
from tenure.client.enqueue_many import enqueue_in_batches
from tenure.client.handle import Handle
from tenure.client.job_function import EnqueueOptions, Enqueuer, PreparedCall
from tenure.client.job_id import JobId, job_id_of
from tenure.client.queues import AppQueues
from tenure.client.schedules import AppSchedules
from tenure.client.sync import BackgroundLoop
from tenure.errors import InvalidInput, UnknownKind
from tenure.jobs.middleware import Middleware
from tenure.jobs.settings import ContentLimits, check_type, database_url
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.retention import Retention
from tenure.seams import SYSTEM, Seams
from tenure.stores import Store
from tenure.stores.contract import DeadLetterFilter, JobFilter, JobPage, MigrationRecord
from tenure.stores.user_connections import UserTransaction

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from tenure.engines.gateway import Gateway
    from tenure.observe.snapshot import MetricsSnapshot
    from tenure.outbox.processor import ProcessorOptions
    from tenure.testing.harness.harness import Mode
    from tenure.testing.harness.mode import HarnessMode
    from tenure.workers.execution.process.child import LoadJob
    from tenure.workers.worker import Worker, WorkerRole

R = TypeVar("R")
UNKNOWN = "(unknown)"
"""The kind under which rejections of undeclared kinds are counted."""

log = logging.getLogger("tenure")


class App(Declarations):
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
        version: str | None = None,
        middleware: Sequence[Middleware] = (),
        retention: Retention | None = None,
        limits: ContentLimits | None = None,
        outbox_options: ProcessorOptions | None = None,
        seams: Seams = SYSTEM,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        check_type(limits, ContentLimits, "limits", "tenure.ContentLimits(…)")
        check_type(retention, Retention, "retention", "tenure.Retention(…)")
        check_type(name, str, "name", "text")
        check_type(version, str, "version", "text")
        check_type(middleware, Sequence, "middleware", "a list of tenure.Middleware")
        for one in middleware:
            check_type(one, Middleware, "middleware", "a list of instances of tenure.Middleware")
        super().__init__(limits)
        self.database = database_url(database, environment)
        self.seams = seams
        self.version = version
        """The version of this program, for the provenance of its jobs. None if it is not known."""
        self.middleware = tuple(middleware)
        self.retention = retention or Retention()
        self.outbox_options = outbox_options
        self.client = Actor(Role.CLIENT, name)
        self.background = BackgroundLoop(seams.spawn)
        self.rejections: Counter[str] = Counter()
        """The number of rejected enqueues by kind; undeclared kinds are counted together."""
        self._stores = AppStores(self)

    async def run_plan(self, *, goal: str, plan: Mapping[str, Any], **options: Any) -> Handle[Any]:
        """Enqueue a run that executes a plan: steps that call skills, with references to the results of other steps.

        plan = {
            "steps": [
                {"id": "found", "skill": "search", "arguments": {"topic": "cats"}},
                {"id": "text", "skill": "read", "arguments": {"title": {"$ref": "steps.found.result[0]"}}},
            ]
        }
        handle = await app.run_plan(goal="read about cats", plan=plan)

        InvalidInput names the step and what is wrong with it, and nothing was enqueued. The options are those of an
        enqueue: `budget`, `queue`, `priority`, `request_id` and others.
        """
        from tenure.workflow.plan_run import PLAN_KIND

        payload = encode(
            {"goal": goal, "plan": msgspec.to_builtins(self.check_plan(goal=goal, plan=plan))}, where="plan"
        )
        return await self.submit(PLAN_KIND, payload, options=EnqueueOptions(**options))

    async def outbox(
        self,
        topic: str,
        body: Any,
        *,
        aggregate: str | None = None,
        headers: Mapping[str, str] | None = None,
        within: Any = None,
    ) -> UUID:
        """Write a message in the caller's transaction on the connection `within`, or in one of its own.

        Messages of one aggregate are delivered in the order of commits. Returns the id of the message.
        """
        from tenure.jobs.message import new_message

        id_ = self.seams.random.job_id()
        message = new_message(topic, body, id=id_, aggregate=aggregate, headers=headers)
        if within is not None:
            await self.user_transaction(within).write_messages([message])
        else:
            async with (await self.store()).transaction(deadline_seconds=30.0) as tx:
                await tx.post([message])
        return message.id

    async def enqueue_many(self, requests: Iterable[PreparedCall[R]]) -> list[Handle[R]]:
        """Enqueue many calls in batches of a thousand, each in one transaction.

        A generator makes the next batch while the previous one is written. KeyUsed: one of the calls refuses its used
        key; the others of its batch are enqueued.
        """
        written = await enqueue_in_batches(await self.store(), requests, self.seams)
        return [Handle(self, result.job, call.definition, created=result.created) for call, result in written]

    def _handle(self, job: Job, *, created: bool) -> Handle[Any]:
        return Handle(self, job, self.kinds.get(job.kind), created=created)

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

    async def get(self, job_id: JobId) -> Handle[Any]:
        """Return the handle of a job, by its id or the text of it: `await (await app.get(id)).result()`.

        The result is decoded by the function of the job's kind, if this app declares it. JobNotFound: there is no such
        job. `await pay.get(id)` has the type of the function's result.
        """
        return self._handle((await (await self.admin()).job(job_id)), created=False)

    async def cancel(self, job_id: JobId, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel a job: at once if it is not leased, otherwise by a request to its worker. `hard` revokes the lease."""
        return await (await self.admin()).cancel(job_id, hard=hard, reason=reason)

    async def cancel_many(
        self, wanted: JobFilter, *, hard: bool = False, reason: str = "requested", limit: int = MANY
    ) -> CancelReport:
        """Cancel every live job that matches, each as `cancel` does. The report lists the skipped jobs with reasons."""
        return await (await self.admin()).cancel_many(wanted, hard=hard, reason=reason, limit=limit)

    async def signal(self, job_id: JobId, name: str, value: Any = None, *, request_id: str | None = None) -> Job:
        """Send a live job a signal with a value, for `run.wait_for(name)`. It is kept until it is received.

        With a `request_id` a repeated call sends one signal. IllegalTransition: the job has ended.
        """
        return await (await self.admin()).signal(job_id, name, value, request_id=request_id)

    async def unpin(self, job_id: JobId) -> Job:
        """Let workers with any version of the code continue a run that is pinned to one, since the code now fits it.

        IllegalTransition: the run is neither pinned nor parked, or has ended.
        """
        return await (await self.admin()).unpin(job_id)

    async def retry(self, job_id: JobId) -> Handle[Any]:
        """Run a failed, dead-lettered or halted job again, as a new job that is linked to it, and return its handle.

        Repeated, it returns the same new job. The old record stays as it is; a dead letter is resolved as redriven.
        """
        result = await (await self.admin()).redrive(job_id)
        return self._handle(result.job, created=result.created)

    async def fork(
        self,
        job_id: JobId,
        *,
        from_step: str | None = None,
        replace: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        request_id: str | None = None,
    ) -> Handle[Any]:
        """Continue an ended or parked run as a new run, which reuses its recorded steps and pays for none again.

        The steps that were recorded before `from_step`, a key or a name, are reused; it and all later ones are
        executed. By default the new run continues where the old one ended: from the step that failed, or was undone.
        `replace` has other results for recorded steps; by default all steps after the first of them are executed. The
        old run stays as it is: cancel one that is parked. The new run has spent nothing; `budget` replaces the limits
        of the old one.
        """
        from tenure.client.forks import fork_run

        job, store = await (await self.admin()).job(job_id), await self.store()
        result = await fork_run(
            store,
            job,
            actor=self.client,
            seams=self.seams,
            from_step=from_step,
            replace=replace,
            budget=budget,
            request_id=request_id,
            step_bytes_max=self.limits.step_bytes_max,
        )
        return self._handle(result.job, created=result.created)

    async def retry_many(self, wanted: JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Retry every failed, dead-lettered or halted job that matches, except discarded dead letters."""
        return await (await self.admin()).retry_many(wanted, limit=limit)

    async def redrive(self, job_id: JobId) -> Handle[Any]:
        """Enqueue the work of a dead letter as a new job, as `retry` does, and return its handle."""
        return await self.retry(job_id)

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        return await (await self.admin()).redrive_many(wanted, limit=limit)

    async def discard(self, job_id: JobId) -> DeadLetterRecord:
        """Resolve a dead letter as discarded. Nothing is removed."""
        return await (await self.admin()).discard(job_id)

    async def prune(self, retention: Retention | None = None, *, dry_run: bool = False) -> PruneReport:
        """Remove at once what the app's retention, or the given one, no longer keeps; in a dry run, count it."""
        return await (await self.admin()).prune(retention or self.retention, dry_run=dry_run)

    async def find(self, wanted: JobFilter, *, after: JobId | None = None, limit: int = 100) -> JobPage:
        """Return a page of the jobs that match, oldest first: `await app.find(JobFilter(statuses=["failed"]))`."""
        cursor = None if after is None else job_id_of(after)
        return await (await self.store()).find(wanted, after=cursor, limit=limit)

    def get_sync(self, job_id: JobId) -> Handle[Any]:
        """Return the handle of a job, as `get` does."""
        return self.background.run(lambda: self.get(job_id))

    def enqueue_many_sync(self, requests: Iterable[PreparedCall[R]]) -> list[Handle[R]]:
        """Enqueue many calls, as `enqueue_many` does: `app.enqueue_many_sync(send.request(to) for to in names)`."""
        return self.background.run(lambda: self.enqueue_many(requests))

    def cancel_sync(self, job_id: JobId, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel a job, as `cancel` does."""
        return self.background.run(lambda: self.cancel(job_id, hard=hard, reason=reason))

    def signal_sync(self, job_id: JobId, name: str, value: Any = None, *, request_id: str | None = None) -> Job:
        """Send a live job a signal, as `signal` does."""
        return self.background.run(lambda: self.signal(job_id, name, value, request_id=request_id))

    def retry_sync(self, job_id: JobId) -> Handle[Any]:
        """Run an ended job again, as `retry` does."""
        return self.background.run(lambda: self.retry(job_id))

    @property
    def queues(self) -> AppQueues:
        """Pauses and limits of queues: `await app.queues.put("mail", concurrency_max=10)`."""
        return AppQueues(self.store, self.client)

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
        queues: Sequence[str] = (ALL_QUEUES,),
        concurrency: int | None = None,
        grace_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        scan_seconds: float = 5.0,
        metrics: bool = False,
        wait_for_database: bool = False,
        outbox: bool = True,
    ) -> Worker:
        """Return a worker for this app's jobs on the running event loop: `await app.worker().run()`.

        It serves every queue that the app declares, which `*` stands for: `queues=["mail"]` serves one, and
        `queues=["*", "urgent"]` serves another besides, which calls name by `options(queue="urgent")`.

        It runs up to `concurrency` jobs at a time: by default 100, or 10 if any of them runs in a thread or a process.

        With `metrics` it counts what `worker.metrics()` returns. With `wait_for_database` it waits for a database that
        cannot be reached at the start. Unless `outbox` is off, it also delivers messages to the endpoints that the app
        declares. On the command line: `tenure worker module:app`.
        """
        from tenure.outbox.event_publisher import publisher_role
        from tenure.workers.worker import Worker, WorkerOptions

        options = WorkerOptions(
            queues=self.served_queues(queues),
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            poll_seconds=poll_seconds,
            scan_seconds=scan_seconds,
            metrics=metrics,
            wait_for_database=wait_for_database,
            version=self.version,
        )
        return Worker(
            definitions=self.local_kinds,
            open_store=self._stores.open_for_work,
            seams=self.seams,
            options=options,
            middleware=self.middleware,
            user_transactions=self.user_transaction,
            load_job=self.job_loader(),
            schedules=tuple(self.declared_schedules.values()),
            retention=self.retention,
            roles=[publisher_role(self.seams), self.outbox_role()] if outbox else (),
        )

    def outbox_role(self) -> WorkerRole:
        """Return what delivers messages to the endpoints of this app, beside a worker or on its own."""
        from tenure.outbox.role import outbox_role

        options, actor = self.outbox_options, self.client
        return outbox_role(self.endpoints, self.seams, actor=actor, options=options, middleware=self.middleware)

    def job_loader(self) -> LoadJob:
        """The module-level function by which a child process loads a job of this app."""
        from tenure.client.load_job import load_job

        return load_job

    def gateway(
        self,
        *,
        queues: Sequence[str] = (ALL_QUEUES,),
        heartbeat_seconds: float = 5.0,
        silence_seconds: float = 15.0,
        grace_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        scan_seconds: float = 1.0,
    ) -> Gateway:
        """Return a gateway that dispatches this app's remote jobs to engines, on the running event loop.

        On the command line: `tenure engines serve module:app`.
        """
        from tenure.engines.gateway import Gateway
        from tenure.engines.settings import GatewaySettings

        settings = GatewaySettings(
            queues=self.served_queues(queues),
            heartbeat_seconds=heartbeat_seconds,
            silence_seconds=silence_seconds,
            grace_seconds=grace_seconds,
            poll_seconds=poll_seconds,
            scan_seconds=scan_seconds,
        )
        return Gateway(
            definitions=self.remote_kinds,
            open_store=self._stores.open_for_work,
            seams=self.seams,
            settings=settings,
            version=self.version,
            schedules=tuple(self.declared_schedules.values()),
            middleware=self.middleware,
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
        return await self._stores.current()

    async def migrate(self) -> list[MigrationRecord]:
        """Apply the pending migrations of the app's database, and return them. Several processes may call it at once.

        >>> import asyncio
        >>> asyncio.run(App("sqlite://:memory:").migrate())[0].name
        'initial'
        """
        return await self._stores.migrate()

    def user_transaction(self, connection: Any) -> UserTransaction:
        """Return the transaction of a user's connection to this app's database."""
        return UserTransaction(connection, self.database, seams=self.seams)

    async def open_store(self) -> Store:
        """Open a new store, which the caller closes. A new SQLite file is migrated."""
        return await self._stores.open()

    async def close(self) -> None:
        """Close the store of the running event loop."""
        await self._stores.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
