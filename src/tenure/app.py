"""The App: declare jobs and schedules, enqueue, cancel and redrive jobs, run workers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

import msgspec

from tenure.client.admin import MANY, CancelReport, JobAdmin, PruneReport, RedriveReport
from tenure.client.handle import Handle
from tenure.client.job_function import (
    AsyncJobFunction,
    EnqueueOptions,
    Enqueuer,
    JobFunction,
    PreparedCall,
    SyncJobFunction,
)
from tenure.client.job_id import JobId, job_id_of
from tenure.client.job_options import JobOptions, RemoteJobOptions, declaration, remote_declaration
from tenure.client.queues import AppQueues
from tenure.client.schedules import GRACE_SECONDS, AppSchedules, Call, Missed, Schedule, make_schedule
from tenure.client.sync import BackgroundLoop
from tenure.errors import InvalidInput, StoreError, UnknownKind
from tenure.jobs.context import Context, inside_commit
from tenure.jobs.definition import JobDefinition, check_function
from tenure.jobs.middleware import Middleware
from tenure.jobs.settings import ContentLimits, database_url
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import check_text, encode
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.retention import Retention
from tenure.seams import SYSTEM, Seams
from tenure.stores import Store, store_for
from tenure.stores.contract import DeadLetterFilter, EnqueueResult, JobFilter, JobPage, MigrationRecord
from tenure.stores.user_connections import UserTransaction

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from tenure.engines.gateway import Gateway
    from tenure.observe.snapshot import MetricsSnapshot
    from tenure.outbox.processor import ProcessorOptions
    from tenure.outbox.role import CallableEndpoint
    from tenure.outbox.sinks import Delivery, Sink
    from tenure.testing.harness.harness import Mode
    from tenure.testing.harness.mode import HarnessMode
    from tenure.workers.execution.process.child import LoadJob
    from tenure.workers.worker import Worker, WorkerRole
    from tenure.workflow.plan import Plan
    from tenure.workflow.plan_run import PlanDefinition
    from tenure.workflow.policy import RunPolicy
    from tenure.workflow.run import Run
    from tenure.workflow.skills import Skill

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
PolicyT = TypeVar("PolicyT", bound="RunPolicy")
ReceiverT = TypeVar("ReceiverT", bound="Callable[[Delivery], Any] | Sink")

GOAL_LENGTH_MAX = 10_000
ENQUEUE_BATCH = 1000
ALL_QUEUES = "*"
"""In the queues of a worker: all that its app declares."""
UNKNOWN = "(unknown)"
"""The kind under which rejections of undeclared kinds are counted."""

log = logging.getLogger("tenure")


AsyncFunction = Callable[P, Coroutine[Any, Any, R]]
AsyncContextFunction = Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
ContextFunction = Callable[Concatenate[Context, P], R]


class JobDecorator(Protocol):
    """Declares a function as a job: async or sync, with or without a Context as first parameter."""

    # Overlaps are resolved by the order: an async function is also a function that returns a coroutine.
    @overload
    def __call__(self, function: AsyncContextFunction[P, R]) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: AsyncFunction[P, R]) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: ContextFunction[P, R]) -> SyncJobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncJobFunction[P, R]: ...


class RemoteJobDecorator(Protocol):
    """Declares a function as the signature of a job that a remote engine runs."""

    def __call__(self, function: Callable[P, R]) -> JobFunction[P, R]: ...


class WorkflowDecorator(Protocol):
    """Declares an async function with a Run as first parameter as a workflow."""

    def __call__(self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...


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
        version: str | None = None,
        middleware: Sequence[Middleware] = (),
        retention: Retention | None = None,
        limits: ContentLimits | None = None,
        seams: Seams = SYSTEM,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.database = database_url(database, environment)
        self.seams = seams
        self.version = version
        """The version of this program, for the provenance of its jobs. None if it is not known."""
        self.middleware = tuple(middleware)
        self.retention = retention or Retention()
        self.limits = limits or ContentLimits()
        """The largest payload and result of its jobs."""
        self.client = Actor(Role.CLIENT, name)
        self.background = BackgroundLoop(seams.spawn)
        self.kinds: dict[str, JobDefinition[..., Any]] = {}
        self.skills: dict[str, Skill] = {}
        """The skills that plans may use, by name."""
        self.declared_schedules: dict[str, Schedule] = {}
        """The schedules that the code declares, by name."""
        self.endpoints: dict[str, CallableEndpoint] = {}
        """The endpoints that the code declares, by name."""
        self.rejections: Counter[str] = Counter()
        """The number of rejected enqueues by kind; undeclared kinds are counted together."""
        self._stores: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Store]] = WeakKeyDictionary()

    @overload
    def job(self, function: AsyncContextFunction[P, R], /) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, function: AsyncFunction[P, R], /) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, function: ContextFunction[P, R], /) -> SyncJobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> SyncJobFunction[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a job: `@app.job`, or with options `@app.job(queue="mail", max_attempts=3)`.

        Its kind is the name of the function, unless `kind` is given. The options are those of `JobOptions`.

        >>> app = App("sqlite:///jobs.db")
        >>> @app.job(queue="mail", retry_on=OSError)
        ... def send(to: str) -> str:
        ...     return f"sent to {to}"
        >>> send("ada")
        'sent to ada'
        """
        declared = declaration(cast(JobOptions, options))

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            check_function(function)
            definition: JobDefinition[..., Any] = JobDefinition(
                function, name=options.get("kind") or function.__name__, options=declared
            )
            self._register(definition)
            return (AsyncJobFunction if definition.is_async else SyncJobFunction)(self, definition)

        return declare if function is None else declare(function)

    @overload
    def remote_job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def remote_job(self, /, **options: Unpack[RemoteJobOptions]) -> RemoteJobDecorator: ...
    def remote_job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a job that a remote engine runs, in any language: `tenure engines serve` dispatches it.

        The function is the signature: arguments and result are validated against it, and its body never runs.

        >>> app = App("sqlite:///jobs.db")
        >>> @app.remote_job(queue="render")
        ... def render(scene: str, frames: int) -> str: ...
        >>> render.request("intro", 24).enqueue.origin.payload
        '{"scene":"intro","frames":24}'
        """
        declared = remote_declaration(cast(RemoteJobOptions, options))

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            check_function(function)
            definition: JobDefinition[..., Any] = JobDefinition(
                function, name=options.get("kind") or function.__name__, options=declared
            )
            if definition.wants_context:
                raise InvalidInput(definition.name, "has a Context, which no engine receives; remove the parameter")
            self._register(definition)
            return JobFunction(self, definition)

        return declare if function is None else declare(function)

    @overload
    def workflow(self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        errors: Iterable[type[Exception]] = (),
        budget: Budget | None = None,
        policy: RunPolicy | None = None,
        **options: Unpack[JobOptions],
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        errors: Iterable[type[Exception]] = (),
        budget: Budget | None = None,
        policy: RunPolicy | None = None,
        **options: Any,
    ) -> Any:
        """Declare a workflow: an async function whose steps are recorded (`Run`). It is enqueued like a job.

        @app.workflow
        async def research(run: tenure.Run, topic: str) -> str:
            pages = await run.step(search, topic)
            return await run.step(summarise, pages)

        The options are those of a job. `max_attempts` and `backoff` apply to errors of the function itself; a step has
        its own (`run.using`). A step's recorded error is raised again as its own class if that is one of `errors`, and
        else as StepFailed.

        `budget` limits what a run may spend together with its children; beyond a limit it is halted. `policy` is called
        with each step before it is executed, and returns a PolicyDecision: allow, halt, or require a signal.
        """
        from tenure.workflow.definition import WorkflowDefinition

        declared = declaration(cast(JobOptions, options))
        if budget is not None:
            declared = msgspec.structs.replace(declared, policy=msgspec.structs.replace(declared.policy, budget=budget))

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            check_function(function)
            definition: WorkflowDefinition[..., Any] = WorkflowDefinition(
                function, name=options.get("kind") or function.__name__, options=declared, errors=errors, policy=policy
            )
            self._register(definition)
            return JobFunction(self, definition)

        return declare if function is None else declare(function)

    @overload
    def skill(self, function: F, /) -> F: ...
    @overload
    def skill(self, /, *, name: str | None = None) -> Callable[[F], F]: ...
    def skill(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Register a function, async or plain, as a skill that the steps of plans call by its name (`run_plan`).

        @app.skill
        async def search(topic: str) -> list[str]: ...

        It stays an ordinary function. This worker then serves the runs of plans.
        """
        from tenure.workflow.skills import Skill

        def register(function: F) -> F:
            check_function(function)
            skill = Skill(function, name=name or function.__name__)
            if skill.name in self.skills:
                raise InvalidInput("skill", f"{skill.name!r} is registered already; use another name")
            self.skills[skill.name] = skill
            self._plan_definition()
            return function

        return register if function is None else register(function)

    def plan_policy(self, policy: PolicyT, /) -> PolicyT:
        """Declare the policy of the runs of plans, async or plain. It is called with each step before it is executed.

        @app.plan_policy
        def careful(call: tenure.PolicyCall) -> tenure.PolicyDecision:
            if call.name == "pay" and call.kwargs["cents"] > 10_000:
                return tenure.PolicyDecision.require_signal("approved")
            return tenure.PolicyDecision.allow()

        `call.name` is the skill, `call.key` the id of the step, and `call.kwargs` are its arguments.
        """
        check_function(policy)
        definition = self._plan_definition()
        if definition.policy is not None:
            raise InvalidInput("policy", "of plans is declared already; an app has one")
        definition.policy = policy
        return policy

    def _plan_definition(self) -> PlanDefinition:
        """The definition of the runs of plans, which is registered with the first skill."""
        from tenure.workflow.plan_run import PLAN_KIND, PlanDefinition

        if PLAN_KIND not in self.kinds:
            self._register(PlanDefinition(self.skills))
        return cast(PlanDefinition, self.kinds[PLAN_KIND])

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

    def check_plan(self, *, goal: str, plan: Mapping[str, Any]) -> Plan:
        """Validate a plan against the registered skills, as `run_plan` does, and enqueue nothing."""
        from tenure.workflow.plan import check_plan, decode_plan

        check_text(goal, "goal", length_max=GOAL_LENGTH_MAX)
        decoded = decode_plan(plan)
        check_plan(decoded, self.skills)
        return decoded

    def endpoint(
        self,
        name: str,
        *,
        topics: Sequence[str],
        filters: Mapping[str, Any] | None = None,
        block_seconds: float | None = None,
    ) -> Callable[[ReceiverT], ReceiverT]:
        """Declare a function that receives outbox messages, async or plain. A message is delivered when it returns.

        @app.endpoint("crm", topics=["mail.*"])
        async def notify(delivery: tenure.outbox.Delivery) -> None: ...

        `topics` are whole topics or beginnings (`mail.*`, `*`); `filters` are fields of the body and their values. A
        message may hold up the later ones of its aggregate for `block_seconds`. The endpoint receives what is committed
        after a worker of this app has first started. `app.endpoint("lake", topics=["*"])(sink)` declares a sink of your
        own instead of a function: an object with `deliver` and `close` (`tenure.outbox.sinks.Sink`).
        """
        from tenure.outbox.role import callable_endpoint

        def declare(function: ReceiverT) -> ReceiverT:
            if name in self.endpoints:
                raise InvalidInput("endpoint", f"{name!r} is declared already; use another name")
            facts = {"topics": topics, "filters": filters, "block_seconds": block_seconds}
            self.endpoints[name] = callable_endpoint(name, function, **facts)  # type: ignore[arg-type]
            return function

        return declare

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

    def _register(self, definition: JobDefinition[..., Any]) -> None:
        kinds = (definition.name, *definition.options.aliases)
        for kind in kinds:
            if kind in self.kinds:
                other = self.kinds[kind].function
                problem = f"{kind!r} is declared already, by {other.__module__}.{other.__qualname__}"
                raise InvalidInput("kind", f"{problem}; use another kind")
        definition.limits = self.limits
        self.kinds.update(dict.fromkeys(kinds, definition))

    async def enqueue_many(self, requests: Iterable[PreparedCall[R]]) -> list[Handle[R]]:
        """Enqueue many calls in batches of a thousand, each in one transaction.

        A generator makes the next batch while the previous one is written. KeyUsed: one of the calls refuses its used
        key; the others of its batch are enqueued.
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
        for result, prepared in zip(added, batch, strict=True):
            prepared.require_unused(result)
        return [Handle(self, a.job, p.definition, created=a.created) for a, p in zip(added, batch, strict=True)]

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
        """Go on with an ended or parked run as a new run, which reuses its recorded steps and pays for none again.

        The steps that were recorded before `from_step`, a key or a name, are reused; it and all later ones are
        executed. By default the new run goes on where the old one ended: from the step that failed, or was undone.
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

    # The same for code without an event loop.

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
        from tenure.workers.worker import Worker, WorkerOptions

        options = WorkerOptions(
            queues=self._served_queues(queues),
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
            open_store=self._store_for_work,
            seams=self.seams,
            options=options,
            middleware=self.middleware,
            user_transactions=self.user_transaction,
            load_job=self.job_loader(),
            schedules=tuple(self.declared_schedules.values()),
            retention=self.retention,
            roles=self._outbox_roles() if outbox else (),
        )

    def _outbox_roles(self) -> list[WorkerRole]:
        """What a worker runs beside its jobs: it publishes events and delivers messages."""
        from tenure.outbox.event_publisher import publisher_role

        return [publisher_role(self.seams), self.outbox_role()]

    def outbox_role(self, options: ProcessorOptions | None = None) -> WorkerRole:
        """Return what delivers messages to the endpoints of this app, beside a worker or on its own."""
        from tenure.outbox.role import outbox_role

        return outbox_role(self.endpoints, self.seams, actor=self.client, options=options)

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
            queues=self._served_queues(queues),
            heartbeat_seconds=heartbeat_seconds,
            silence_seconds=silence_seconds,
            grace_seconds=grace_seconds,
            poll_seconds=poll_seconds,
            scan_seconds=scan_seconds,
        )
        return Gateway(
            definitions=self.remote_kinds,
            open_store=self._store_for_work,
            seams=self.seams,
            settings=settings,
            version=self.version,
            schedules=tuple(self.declared_schedules.values()),
        )

    @property
    def local_kinds(self) -> dict[str, JobDefinition[..., Any]]:
        """The kinds that workers run: all but the remote ones."""
        return {kind: one for kind, one in self.kinds.items() if not one.options.remote}

    @property
    def remote_kinds(self) -> dict[str, JobDefinition[..., Any]]:
        """The kinds that remote engines run."""
        return {kind: one for kind, one in self.kinds.items() if one.options.remote}

    @property
    def declared_queues(self) -> list[str]:
        """The queues of the declared jobs and schedules.

        >>> app = App("sqlite:///jobs.db")
        >>> @app.job(queue="mail")
        ... def send(to: str) -> None: ...
        >>> app.declared_queues
        ['mail']
        """
        of_jobs = {definition.options.queue for definition in self.kinds.values()}
        return sorted(of_jobs | {schedule.queue for schedule in self.declared_schedules.values()})

    def _served_queues(self, given: Sequence[str]) -> tuple[str, ...]:
        """The queues that a worker is asked to serve, in their order, each once."""
        declared = self.declared_queues or ["default"]  # The worker itself refuses an app without jobs.
        names = [name for one in given for name in (declared if one == ALL_QUEUES else [one])]
        return tuple(dict.fromkeys(names))

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
            await self._close_stores_of_closed_loops()
            store = await self.open_store()
            self._stores[loop] = (os.getpid(), store)
        return store

    async def _close_stores_of_closed_loops(self) -> None:
        """Repeated `asyncio.run` without `app.close()` must leave no threads and no connections behind."""
        for loop in [loop for loop in self._stores if loop.is_closed()]:
            pid, store = self._stores.pop(loop)
            if pid == os.getpid():
                await store.close()

    async def migrate(self) -> list[MigrationRecord]:
        """Apply the pending migrations of the app's database, and return them. Several processes may call it at once.

        >>> import asyncio
        >>> asyncio.run(App("sqlite://:memory:").migrate())[0].name
        'initial'
        """
        store = store_for(self.database, seams=self.seams)
        try:
            return await store.migrate()
        finally:
            await store.close()

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
