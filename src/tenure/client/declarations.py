"""What the code of an app declares: jobs, workflows, skills of plans, endpoints and schedules. No store is needed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from tenure.client.job_decorators import (
    AsyncContextFunction,
    AsyncFunction,
    ContextFunction,
    JobDecorator,
    RemoteJobDecorator,
    WorkflowDecorator,
)
from tenure.client.job_function import AsyncJobFunction, JobFunction, SyncJobFunction
from tenure.client.job_options import JobOptions, RemoteJobOptions, declaration, remote_declaration
from tenure.client.schedules import GRACE_SECONDS, Call, Missed, Schedule, make_schedule
from tenure.errors import InvalidInput
from tenure.jobs.definition import JobDefinition, check_function
from tenure.jobs.settings import ContentLimits
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.json_text import check_text

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.outbox.role import CallableEndpoint
    from tenure.outbox.sinks import Delivery, Sink
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
ALL_QUEUES = "*"
"""In the queues of a worker: all that its app declares."""


class Declarations:
    """The part of an app that its code declares. Names are unique in each of its tables."""

    def __init__(self, limits: ContentLimits | None = None) -> None:
        self.limits = limits or ContentLimits()
        """The largest payload and result of its jobs."""
        self.kinds: dict[str, JobDefinition[..., Any]] = {}
        self.skills: dict[str, Skill] = {}
        """The skills that plans may use, by name."""
        self.declared_schedules: dict[str, Schedule] = {}
        """The schedules that the code declares, by name."""
        self.endpoints: dict[str, CallableEndpoint] = {}
        """The endpoints that the code declares, by name."""

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

        >>> from tenure import App
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
            return (AsyncJobFunction if definition.is_async else SyncJobFunction)(self._app, definition)

        return declare if function is None else declare(function)

    @overload
    def remote_job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def remote_job(self, /, **options: Unpack[RemoteJobOptions]) -> RemoteJobDecorator: ...
    def remote_job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a job that a remote engine runs, in any language: `tenure engines serve` dispatches it.

        The function is the signature: arguments and result are validated against it, and its body never runs.

        >>> from tenure import App
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
            return JobFunction(self._app, definition)

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
            return JobFunction(self._app, definition)

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

        >>> from tenure import App
        >>> app = App("sqlite:///jobs.db")
        >>> @app.job(queue="mail")
        ... def send(to: str) -> None: ...
        >>> app.declared_queues
        ['mail']
        """
        of_jobs = {definition.options.queue for definition in self.kinds.values()}
        return sorted(of_jobs | {schedule.queue for schedule in self.declared_schedules.values()})

    def served_queues(self, given: Sequence[str]) -> tuple[str, ...]:
        """The queues that a worker is asked to serve, in their order, each once."""
        declared = self.declared_queues or ["default"]  # The worker itself refuses an app without jobs.
        names = [name for one in given for name in (declared if one == ALL_QUEUES else [one])]
        return tuple(dict.fromkeys(names))

    @property
    def _app(self) -> App:
        """The app that these are the declarations of."""
        return cast("App", self)

    def _register(self, definition: JobDefinition[..., Any]) -> None:
        kinds = (definition.name, *definition.options.aliases)
        for kind in kinds:
            if kind in self.kinds:
                other = self.kinds[kind].function
                problem = f"{kind!r} is declared already, by {other.__module__}.{other.__qualname__}"
                raise InvalidInput("kind", f"{problem}; use another kind")
        definition.limits = self.limits
        self.kinds.update(dict.fromkeys(kinds, definition))
