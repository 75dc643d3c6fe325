"""The enqueue API of a declared job, typed by the signature of its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, get_args

import msgspec

from tenure.client.handle import Handle
from tenure.client.job_id import JobId
from tenure.errors import InvalidInput, KeyUsed
from tenure.jobs.context import current_context
from tenure.jobs.middleware import around_enqueue
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.deadlines import DEADLINE_TAG
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.json_text import check_datetime, check_seconds, check_text
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.user_connections import UserTransaction, run_sync

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.definition import JobDefinition

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
DedupeScope = Literal["kind", "global"]
"""Whether a dedupe key belongs to the kind of its job, or is shared by all kinds."""


IfUsed = Literal["return", "refuse"]
"""What an enqueue does with a key that was used before: return its job, or raise KeyUsed."""


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one enqueue. None leaves the value of the declaration."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float = 0.0
    at: datetime | None = None
    max_attempts: int | None = None
    budget: Budget | None = None
    deadline_seconds: float | None = None
    dedupe_key: str | None = None
    scope: DedupeScope = "kind"
    request_id: str | None = None
    key: str | None = None
    if_used: IfUsed = "return"
    correlation_id: str | None = None
    trace: str | None = None
    submitted_by: str | None = None
    tags: Mapping[str, str] | None = None
    partition_key: str | None = None


class PreparedCall(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A validated call that is not enqueued yet. `app.enqueue_many` and `tx.enqueue` take such calls."""

    enqueue: EnqueueRequest
    definition: Any
    unused_key: str | None = None
    """A key that no earlier job may have."""

    def require_unused(self, result: EnqueueResult) -> None:
        """Raise KeyUsed if the result is an earlier job, and not one that a repetition of this call has found."""
        if self.unused_key is not None and not result.created and result.job.id != self.enqueue.origin.id:
            raise KeyUsed(self.unused_key, current=result.job)


class Enqueuer(Generic[P, R]):
    """Enqueues calls of one job with the same options."""

    def __init__(self, app: App, definition: JobDefinition[P, R], options: EnqueueOptions) -> None:
        self._app, self._definition, self._options = app, definition, options
        self._template: tuple[Origin, int] | None = None

    def request(self, *args: P.args, **kwargs: P.kwargs) -> PreparedCall[R]:
        """Validate a call against the signature of the function, to enqueue it together with others."""
        try:
            payload = self._definition.payload(*args, **kwargs)
        except InvalidInput as refusal:
            raise self._app.rejected(self._definition.name, refusal) from None
        return self._prepare(payload)

    def request_from_json(self, payload: str) -> PreparedCall[R]:
        """Validate a call whose arguments are JSON text, for example from the command line."""
        try:
            validated = self._definition.payload_from_json(payload)
        except InvalidInput as refusal:
            raise self._app.rejected(self._definition.name, refusal) from None
        return self._prepare(validated)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call. InvalidInput: it names the field, and nothing was enqueued."""
        prepared = self.request(*args, **kwargs)
        store = await self._app.store()
        return self.handle(prepared, await store.enqueue([prepared.enqueue]))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call from code without an event loop."""
        prepared = self.request(*args, **kwargs)
        handles: list[Handle[R]] = self._app.background.run(lambda: self._app.enqueue_many([prepared]))
        return handles[0]

    def within(self, connection: Any) -> TransactionEnqueuer[P, R]:
        """Enqueue in a transaction of the user: the job exists once that is committed.

        `connection` is one of psycopg, asyncpg, SQLAlchemy, sqlite3, aiosqlite or Django, to the app's own database.
        """
        return TransactionEnqueuer(self, self._app.user_transaction(connection))

    def handle(self, prepared: PreparedCall[R], results: Sequence[EnqueueResult]) -> Handle[R]:
        """Return the handle of a call that was enqueued alone."""
        [one] = results
        prepared.require_unused(one)
        return Handle(self._app, one.job, prepared.definition, created=one.created)

    def _prepare(self, payload: str) -> PreparedCall[R]:
        template, delay_ms = self._origin_template()
        origin = msgspec.structs.replace(template, id=self._app.seams.random.job_id(), payload=payload)
        context = current_context.get()
        if context is not None:
            origin = _inherit(context.job, origin)
        if self._app.middleware:
            origin = around_enqueue(self._app.middleware, origin)
        request = EnqueueRequest(origin, self._app.client, delay_ms, self._options.at)
        unused_key = self._options.key if self._options.if_used == "refuse" else None
        return PreparedCall(request, self._definition, unused_key)

    def _origin_template(self) -> tuple[Origin, int]:
        """Return the fields and the delay that all calls with these options share. Made with the first call."""
        if self._template is None:
            options, declared = self._options, self._definition.options
            if DEADLINE_TAG in (options.tags or {}):
                raise InvalidInput("tags", f"{DEADLINE_TAG} is set by the run that spawns a job; use deadline_seconds")
            origin = Origin(
                id=self._app.seams.random.job_id(),
                kind=self._definition.name,
                payload="null",
                policy=_policy(declared.policy, options),
                queue=declared.queue if options.queue is None else options.queue,
                priority=declared.priority if options.priority is None else options.priority,
                dedupe_key=stored_dedupe_key(self._definition.name, options.dedupe_key, options.scope),
                request_id=_request_id(self._definition.name, options),
                correlation_id=options.correlation_id,
                trace=options.trace,
                submitted_by=options.submitted_by,
                tags=options.tags,
                partition_key=options.partition_key,
            )
            self._template = origin, _delay_ms(options)
        return self._template


def _policy(declared: Policy, options: EnqueueOptions) -> Policy:
    replaced: dict[str, Any] = {}
    if options.max_attempts is not None:
        replaced["max_attempts"] = options.max_attempts
    if options.budget is not None:
        replaced["budget"] = options.budget
    if options.deadline_seconds is not None:
        replaced["deadline_seconds"] = options.deadline_seconds
    return msgspec.structs.replace(declared, **replaced) if replaced else declared


def _delay_ms(options: EnqueueOptions) -> int:
    if options.at is not None:
        check_datetime(options.at, "at")
        if options.delay_seconds:
            raise InvalidInput("at", "and delay_seconds exclude each other; give one of them")
    return milliseconds(check_seconds(options.delay_seconds, "delay_seconds"))


def _request_id(kind: str, options: EnqueueOptions) -> str | None:
    """The request id: the one that is given, or `kind:key`."""
    if options.if_used not in get_args(IfUsed):
        raise InvalidInput("if_used", f"is {options.if_used!r}, and must be one of {', '.join(get_args(IfUsed))}")
    if options.key is None:
        if options.if_used != "return":
            raise InvalidInput("if_used", "belongs to a key, which is missing")
        return options.request_id
    if options.request_id is not None:
        raise InvalidInput("key", "and request_id exclude each other; give one of them")
    check_text(options.key, "key")
    return _of_kind(kind, options.key)


def _of_kind(kind: str, key: str) -> str:
    return f"{kind.replace('%', '%25').replace(':', '%3A')}:{key}"


def stored_dedupe_key(kind: str, key: str | None, scope: DedupeScope) -> str | None:
    """The key as it is stored, which is unique among live jobs of all kinds.

    It is `kind:key`, with `%` and `:` in the kind as `%25` and `%3A`; with the scope `global` it is the key itself.

    >>> stored_dedupe_key("mail", "order:7", "kind")
    'mail:order:7'
    """
    if scope not in get_args(DedupeScope):
        raise InvalidInput("scope", f"is {scope!r}, and must be one of {', '.join(get_args(DedupeScope))}")
    if key is None:
        if scope != "kind":
            raise InvalidInput("scope", "belongs to a dedupe_key, which is missing")
        return None
    check_text(key, "dedupe_key")
    return key if scope == "global" else _of_kind(kind, key)


def _inherit(job: Job, origin: Origin) -> Origin:
    """Give the job that `job` enqueues its correlation id, trace and submitter, unless it has its own."""
    parent = job.origin
    return msgspec.structs.replace(
        origin,
        correlation_id=origin.correlation_id or job.correlation_id,
        trace=origin.trace or parent.trace,
        submitted_by=origin.submitted_by or parent.submitted_by,
    )


class TransactionEnqueuer(Generic[P, R]):
    """Enqueues calls in a transaction of the user, who commits it or rolls it back.

    Before the commit, only that transaction sees the job; `handle.refresh()` does not. No wake-up is sent: workers find
    the job at their next poll.
    """

    def __init__(self, enqueuer: Enqueuer[P, R], user: UserTransaction) -> None:
        self._enqueuer, self._user = enqueuer, user

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call. A synchronous connection is used on the calling thread, and blocks it."""
        prepared = self._enqueuer.request(*args, **kwargs)
        return self._enqueuer.handle(prepared, await self._user.enqueue([prepared.enqueue]))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call on a synchronous connection. InvalidInput: the connection is asynchronous."""
        prepared = self._enqueuer.request(*args, **kwargs)
        enqueued = run_sync(
            self._user.connection, self._user.enqueue([prepared.enqueue]), instead="await ….within(…).enqueue(…)"
        )
        return self._enqueuer.handle(prepared, enqueued)


class JobFunction(Enqueuer[P, R]):
    """A declared job. It is called as its function is; `enqueue` and the others enqueue it."""

    def __init__(self, app: App, definition: JobDefinition[P, R]) -> None:
        super().__init__(app, definition, EnqueueOptions())

    def __repr__(self) -> str:
        return f"<job {self._definition.name}>"

    @property
    def app(self) -> App:
        return self._app

    @property
    def definition(self) -> JobDefinition[P, R]:
        return self._definition

    @property
    def function(self) -> Callable[..., Any]:
        return self._definition.function

    async def get(self, job_id: JobId) -> Handle[R]:
        """Return the handle of a job of this kind, whose result has the type of the function: `await pay.get(id)`.

        JobNotFound: there is no such job. InvalidInput: it is a job of another kind.
        """
        job = await (await self._app.admin()).job(job_id)
        if self._app.kinds.get(job.kind) is not self._definition:
            raise InvalidInput("job_id", f"job {job.id} is of kind {job.kind!r}, not {self._definition.name!r}")
        return Handle(self._app, job, self._definition, created=False)

    def get_sync(self, job_id: JobId) -> Handle[R]:
        """Return the handle of a job of this kind, from code without an event loop."""
        return self._app.background.run(lambda: self.get(job_id))

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself. Nothing is enqueued. In a job, a function with a Context receives that job's."""
        if not self._definition.wants_context:
            return self.function(*args, **kwargs)
        context = current_context.get()
        if context is None:
            name = self._definition.name
            raise InvalidInput(
                name,
                f"has a Context, which a direct call outside of a job lacks; call {name}.function(ctx, …), or enqueue "
                f"it in `app.testing()`",
            )
        return self.function(context, *args, **kwargs)

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay_seconds: float = 0.0,
        at: datetime | None = None,
        max_attempts: int | None = None,
        budget: Budget | None = None,
        deadline_seconds: float | None = None,
        dedupe_key: str | None = None,
        scope: DedupeScope = "kind",
        request_id: str | None = None,
        key: str | None = None,
        if_used: IfUsed = "return",
        correlation_id: str | None = None,
        trace: str | None = None,
        submitted_by: str | None = None,
        tags: Mapping[str, str] | None = None,
        partition_key: str | None = None,
    ) -> Enqueuer[P, R]:
        """Return an enqueuer with options for its calls: `send.options(priority=5, delay_seconds=30).enqueue(…)`.

        A job is due at once, or after `delay_seconds`, or at the time `at`, with a time zone; a time that has passed is
        now. `max_attempts`, `deadline_seconds` and, for a workflow, `budget` replace those of the declaration.

        >>> from tenure import App
        >>> app = App("sqlite:///jobs.db")
        >>> @app.job()
        ... def remind(name: str) -> None: ...
        >>> remind.options(delay_seconds=30, max_attempts=3).request("ada").enqueue.delay_ms
        30000

        While a job with the `dedupe_key` is live, another enqueue with it returns that job. With `scope="global"` the
        key is shared by all kinds, and a live job of another kind is a DedupeKeyConflict.

        A `key` names one job of the kind for as long as it is kept: used again, also after its end, the enqueue returns
        that job, or raises KeyUsed with `if_used="refuse"`. With other arguments or options it is RequestIdReused. To
        run again after the end, use the dedupe key.
        """
        options = EnqueueOptions(
            queue=queue,
            priority=priority,
            delay_seconds=delay_seconds,
            at=at,
            max_attempts=max_attempts,
            budget=budget,
            deadline_seconds=deadline_seconds,
            dedupe_key=dedupe_key,
            scope=scope,
            request_id=request_id,
            key=key,
            if_used=if_used,
            correlation_id=correlation_id,
            trace=trace,
            submitted_by=submitted_by,
            tags=tags,
            partition_key=partition_key,
        )
        return Enqueuer(self._app, self._definition, options)


class SyncJobFunction(JobFunction[P, R]):
    """A declared job whose function is sync."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as in a test or in another job. Nothing is enqueued.

        >>> from tenure import App
        >>> app = App("sqlite:///jobs.db")
        >>> @app.job
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double(21)
        42
        """
        result: R = self._call(*args, **kwargs)
        return result


class AsyncJobFunction(JobFunction[P, R]):
    """A declared job whose function is async."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await the function itself, as in a test or in another job: `await send("ada")`. Nothing is enqueued."""
        result: R = await self._call(*args, **kwargs)
        return result
