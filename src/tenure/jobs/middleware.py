"""Middleware: hooks around every enqueue and every attempt."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from tenure.jobs.context import Context, current_context
from tenure.lifecycle.records import Job, Origin
from tenure.lifecycle.statuses import Status

log = logging.getLogger("tenure.jobs")


class StepAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An execution of a step that begins. `key` identifies the step within its job, `attempt` counts from 1."""

    key: str
    name: str
    attempt: int = 1


class MessageAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to deliver a message of the outbox that begins. `trace` is the W3C traceparent under which the message
    was written, `job_id` the job that wrote it.

    attempt.endpoint, attempt.topic, attempt.attempt    # ("crm", "mail.sent", 2)
    """

    endpoint: str
    id: UUID
    topic: str
    attempt: int
    correlation_id: str
    aggregate: str | None = None
    job_id: UUID | None = None
    trace: str | None = None


class RemoteAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that a remote engine ran and that has ended. `job` is the record before the end, `ended_as` the status
    after it, `error_type` the class of the error that was recorded. `trace` is the W3C traceparent of the engine's own
    span, if the engine has reported one. Times are by the database's clock.

    attempt.engine, attempt.ended_as, attempt.error_type    # ("render-1", Status.RETRY, "BadAsset")
    """

    job: Job
    engine: str
    started_at: datetime
    ended_at: datetime
    ended_as: Status
    error_type: str | None = None
    trace: str | None = None


class Middleware:
    """Base class for `App(middleware=[…])`. Override what is needed. The first middleware is the outermost.

    class Tenants(tenure.Middleware):
        def enqueue(self, origin, proceed):
            return proceed(msgspec.structs.replace(origin, submitted_by=tenant.get()))

        async def run(self, ctx, proceed):
            with tenant_of(ctx.job):
                return await proceed()
    """

    def enqueue(self, origin: Origin, proceed: Callable[[Origin], Origin]) -> Origin:
        """Called before a job is enqueued. Return the origin, changed or not, or raise to refuse it."""
        return proceed(origin)

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Called around the function, on the worker's event loop, or in the process of a job with process isolation."""
        return await proceed()

    def run_sync(self, ctx: Context, proceed: Callable[[], Any]) -> Any:
        """Called around a sync function, also around a sync step of a workflow, on the thread that runs it.

        For state that belongs to a thread, such as a database connection. It runs inside of `run`.
        """
        return proceed()

    def step(self, ctx: Context, step: StepAttempt) -> AbstractContextManager[Any]:
        """Called before each execution of a step. What it returns is entered around the execution: errors of the step
        leave through it. A step that returns its recorded result is not executed.

        def step(self, ctx, step):
            return timings.measured(ctx.job.kind, step.name)
        """
        return nullcontext()

    def deliver(self, message: MessageAttempt) -> AbstractContextManager[Any]:
        """Called before each attempt to deliver a message of the outbox. What it returns is entered around the attempt:
        one that fails leaves through it with an error.

        def deliver(self, message):
            return timings.measured(message.endpoint, message.topic)
        """
        return nullcontext()

    def remote(self, attempt: RemoteAttempt) -> None:
        """Called by a gateway once the end of a remote engine's attempt is recorded. Not called for an engine that was
        lost: recovery ends its jobs.

        def remote(self, attempt):
            usage.add(attempt.engine, attempt.ended_at - attempt.started_at)
        """


def report_remote(layers: Sequence[Middleware], attempt: RemoteAttempt) -> None:
    """Call `remote` of every layer. The end is recorded, so that an error is only logged."""
    for layer in layers:
        try:
            layer.remote(attempt)
        except Exception:
            log.exception("%s.remote failed for job %s (%s)", type(layer).__name__, attempt.job.id, attempt.job.kind)


def around_enqueue(layers: Sequence[Middleware], origin: Origin) -> Origin:
    """Pass the origin through every layer."""
    if not layers:
        return origin
    return layers[0].enqueue(origin, lambda changed: around_enqueue(layers[1:], changed))


async def around_run(layers: Sequence[Middleware], ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
    """Call the function through every layer, and return its result."""
    if not layers:
        return await call()
    return await layers[0].run(ctx, lambda: around_run(layers[1:], ctx, call))


def on_thread(layers: Sequence[Middleware], call: Callable[[], Any]) -> Callable[[], Any]:
    """The call of a sync function, with `run_sync` of every layer around it on the thread that makes the call."""
    context = current_context.get()
    inner = [layer for layer in layers if type(layer).run_sync is not Middleware.run_sync]
    if context is None or not inner:
        return call
    for layer in reversed(inner):
        call = partial(layer.run_sync, context, call)
    return call


def around_step(layers: Sequence[Middleware], step: StepAttempt) -> AbstractContextManager[None]:
    """Enter `step` of every layer around the execution of a step."""
    context = current_context.get()
    inner = [layer for layer in layers if type(layer).step is not Middleware.step] if layers else None
    return _NO_LAYER if context is None or not inner else _around_step(inner, context, step)


_NO_LAYER = nullcontext()


@contextmanager
def _around_step(inner: Sequence[Middleware], context: Context, step: StepAttempt) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in inner:
            stack.enter_context(layer.step(context, step))
        yield


def delivering(layers: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The layers that have a `deliver` of their own."""
    return tuple(layer for layer in layers if type(layer).deliver is not Middleware.deliver)


@contextmanager
def around_delivery(layers: Sequence[Middleware], message: MessageAttempt) -> Iterator[None]:
    """Enter `deliver` of every layer around an attempt."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.deliver(message))
        yield
