"""Putting jobs into the queue: what a decorated function offers its callers, typed by its own signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from tenure.client.handle import Handle
from tenure.errors import InvalidInput
from tenure.jobs.context import current_context
from tenure.jobs.middleware import around_enqueue
from tenure.lifecycle.json_text import check_seconds
from tenure.lifecycle.records import Job, Origin, milliseconds
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.user_connections import UserTransaction, run_sync

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.definition import JobDefinition

P = ParamSpec("P")
R = TypeVar("R")


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one enqueue says beyond its arguments. None leaves what the declaration says."""

    queue: str | None = None
    priority: int | None = None
    delay_seconds: float = 0.0
    dedupe_key: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    trace: str | None = None
    submitted_by: str | None = None
    tags: Mapping[str, str] | None = None
    partition_key: str | None = None


class Prepared(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A checked call that is not queued yet; `app.enqueue_many` takes a lot of them."""

    enqueue: EnqueueRequest
    kind: Any


class Enqueuer(Generic[P, R]):
    """Queues calls of one function with the same options."""

    def __init__(self, app: App, kind: JobDefinition[P, R], options: EnqueueOptions) -> None:
        self._app, self._kind, self._options = app, kind, options
        self._shared: tuple[Origin, int] | None = None

    def request(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """The call, checked against the function's signature, to be queued together with others."""
        try:
            payload = self._kind.payload(*args, **kwargs)
        except InvalidInput as refusal:
            raise self._app.rejected(self._kind.name, refusal) from None
        return self._prepared(payload)

    def request_of(self, payload: str) -> Prepared[R]:
        """The same for a call whose arguments came as JSON text, from the command line or the network."""
        try:
            checked = self._kind.parsed(payload)
        except InvalidInput as refusal:
            raise self._app.rejected(self._kind.name, refusal) from None
        return self._prepared(checked)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Queue the call. A refusal names the field, and nothing was queued."""
        handles: list[Handle[R]] = await self._app.enqueue_many([self.request(*args, **kwargs)])
        return handles[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same for code without an event loop."""
        prepared = self.request(*args, **kwargs)
        handles: list[Handle[R]] = self._app.background.run(lambda: self._app.enqueue_many([prepared]))
        return handles[0]

    def within(self, connection: Any) -> Within[P, R]:
        """The same inside a transaction of the caller's own: it is queued when that commits, and never if it does not.

        `connection` is one of psycopg, asyncpg, SQLAlchemy, sqlite3, aiosqlite or Django, to the app's own database.
        """
        return Within(self, self._app.user_transaction(connection))

    def handle(self, prepared: Prepared[R], added: Sequence[EnqueueResult]) -> Handle[R]:
        """What the caller gets for a call that was queued alone."""
        [one] = added
        return Handle(self._app, one.job, prepared.kind, created=one.created)

    def _prepared(self, payload: str) -> Prepared[R]:
        template, delay_ms = self._template()
        origin = msgspec.structs.replace(template, id=self._app.seams.random.job_id(), payload=payload)
        around = current_context.get()
        if around is not None:
            origin = _belonging_to(around.job, origin)
        if self._app.middleware:
            origin = around_enqueue(self._app.middleware, origin)
        return Prepared(EnqueueRequest(origin, self._app.client, delay_ms), self._kind)

    def _template(self) -> tuple[Origin, int]:
        """What all calls with these options have in common; made when the first is."""
        if self._shared is None:
            options, declared = self._options, self._kind.options
            origin = Origin(
                id=self._app.seams.random.job_id(),
                kind=self._kind.name,
                payload="null",
                policy=declared.policy,
                queue=declared.queue if options.queue is None else options.queue,
                priority=declared.priority if options.priority is None else options.priority,
                dedupe_key=options.dedupe_key,
                request_id=options.request_id,
                correlation_id=options.correlation_id,
                trace=options.trace,
                submitted_by=options.submitted_by,
                tags=options.tags,
                partition_key=options.partition_key,
            )
            self._shared = origin, milliseconds(check_seconds(options.delay_seconds, "delay_seconds"))
        return self._shared


def _belonging_to(job: Job, origin: Origin) -> Origin:
    """What a job enqueues is part of the same story, unless it says otherwise."""
    story = job.origin
    return msgspec.structs.replace(
        origin,
        correlation_id=origin.correlation_id or story.correlation_id or str(job.id),
        trace=origin.trace or story.trace,
        submitted_by=origin.submitted_by or story.submitted_by,
    )


class Within(Generic[P, R]):
    """Queues calls inside a transaction that somebody else commits or rolls back.

    Until then the handle's job is there for nobody else, not even for the handle's own look at it. Workers are not told
    of it: they find it when they look, as they do every few moments.
    """

    def __init__(self, enqueuer: Enqueuer[P, R], user: UserTransaction) -> None:
        self._enqueuer, self._user = enqueuer, user

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Queue the call. A connection that is not asynchronous is used here, on the caller's thread, and blocks it."""
        prepared = self._enqueuer.request(*args, **kwargs)
        return self._enqueuer.handle(prepared, await self._user.enqueue([prepared.enqueue]))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same for code without an event loop. An asynchronous connection is refused."""
        prepared = self._enqueuer.request(*args, **kwargs)
        enqueued = run_sync(
            self._user.connection, self._user.enqueue([prepared.enqueue]), instead="await ….within(…).enqueue(…)"
        )
        return self._enqueuer.handle(prepared, enqueued)


class JobFunction(Enqueuer[P, R]):
    """A declared job. Call `.function` to run it here and now; everything else goes through the queue."""

    def __init__(self, app: App, kind: JobDefinition[P, R]) -> None:
        super().__init__(app, kind, EnqueueOptions())

    @property
    def app(self) -> App:
        return self._app

    @property
    def kind(self) -> JobDefinition[P, R]:
        return self._kind

    @property
    def function(self) -> Callable[..., Any]:
        return self._kind.function

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay_seconds: float = 0.0,
        dedupe_key: str | None = None,
        request_id: str | None = None,
        correlation_id: str | None = None,
        trace: str | None = None,
        submitted_by: str | None = None,
        tags: Mapping[str, str] | None = None,
        partition_key: str | None = None,
    ) -> Enqueuer[P, R]:
        """The same job with options for the next calls: `send.options(priority=5, delay_seconds=30).enqueue(…)`."""
        options = EnqueueOptions(
            queue=queue,
            priority=priority,
            delay_seconds=delay_seconds,
            dedupe_key=dedupe_key,
            request_id=request_id,
            correlation_id=correlation_id,
            trace=trace,
            submitted_by=submitted_by,
            tags=tags,
            partition_key=partition_key,
        )
        return Enqueuer(self._app, self._kind, options)
