"""OpenTelemetry spans: one trace from an enqueue to the job's attempts, and to the jobs that these enqueue.

The W3C trace context is stored as `origin.trace`, which never changes: each attempt, and a redrive, is a child of the
same enqueue. Without a tracer provider nothing is recorded, and an incoming context is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from tenure.errors import CancelRequested, Snooze
from tenure.jobs.context import Context
from tenure.jobs.middleware import MessageAttempt, Middleware, RemoteAttempt, StepAttempt
from tenure.lifecycle.records import Origin
from tenure.observe.optional_packages import missing

try:
    from opentelemetry import trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as absent:
    raise missing("tracing", "opentelemetry", "otel") from absent

KEY = "traceparent"
NO_FAILURE = (Snooze, CancelRequested, asyncio.CancelledError)
"""Errors that end an attempt without a failure."""

_w3c = TraceContextTextMapPropagator()


class Tracing(Middleware):
    """Middleware for `App(middleware=[Tracing()])`. It should be the first, so that its spans contain the others.

    The default provider is the global one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    def enqueue(self, origin: Origin, proceed: Callable[[Origin], Origin]) -> Origin:
        """The producer span, whose context is stored with the job."""
        parent, link = _parent(origin)
        with self._tracer().start_as_current_span(
            f"enqueue {origin.kind}",
            context=parent,
            kind=SpanKind.PRODUCER,
            attributes=_attributes(origin),
            links=[link] if link is not None else [],
        ) as span:
            return proceed(msgspec.structs.replace(origin, trace=_stored_context(origin, span)))

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """The span of one attempt. It is the current span of the function's code, in threads too."""
        job = ctx.job
        with (
            self._tracer().start_as_current_span(
                f"run {job.kind}",
                context=_extracted(job.origin.trace),
                kind=SpanKind.CONSUMER,
                attributes={**_attributes(job.origin), "tenure.job.attempt": job.attempt},
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _errors_in(span),
        ):
            return await proceed()

    @contextmanager
    def step(self, ctx: Context, step: StepAttempt) -> Iterator[None]:
        """The span of one execution of a step, within the span of the attempt."""
        with (
            self._tracer().start_as_current_span(
                f"step {step.name}",
                attributes={
                    **_attributes(ctx.job.origin),
                    "tenure.step.key": step.key,
                    "tenure.step.attempt": step.attempt,
                },
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _errors_in(span),
        ):
            yield

    @contextmanager
    def deliver(self, message: MessageAttempt) -> Iterator[None]:
        """The span of one attempt to deliver a message, a child of what wrote the message."""
        facts = {
            "messaging.system": "tenure",
            "messaging.destination.name": message.topic,
            "messaging.message.id": str(message.id),
            "messaging.message.conversation_id": message.correlation_id,
            "tenure.endpoint": message.endpoint,
            "tenure.aggregate": message.aggregate,
            "tenure.delivery.attempt": message.attempt,
            "tenure.job.id": None if message.job_id is None else str(message.job_id),
        }
        with (
            self._tracer().start_as_current_span(
                f"deliver {message.topic}",
                context=_extracted(message.trace),
                kind=SpanKind.PRODUCER,
                attributes={name: value for name, value in facts.items() if value is not None},
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _errors_in(span),
        ):
            yield

    def remote(self, attempt: RemoteAttempt) -> None:
        """The gateway's span of an attempt of a remote engine, from start to end by the database's clock. It links to
        the engine's own span, if the engine has reported one."""
        job, reported = attempt.job, _span_context(attempt.trace)
        span = self._tracer().start_span(
            f"run {job.kind}",
            context=_extracted(job.origin.trace),
            kind=SpanKind.CLIENT,
            attributes={
                **_attributes(job.origin),
                "tenure.job.attempt": job.attempt,
                "tenure.job.status": attempt.ended_as.value,
                "tenure.engine.id": attempt.engine,
            },
            links=[Link(reported)] if reported.is_valid else [],
            start_time=_nanoseconds(attempt.started_at),
        )
        if attempt.error_type is not None:
            span.set_status(Status(StatusCode.ERROR, attempt.error_type))
        span.end(_nanoseconds(attempt.ended_at))

    @contextmanager
    def engine_run(self, *, kind: str, job_id: str, attempt: int, trace: str | None) -> Iterator[str | None]:
        """The span of an attempt in a remote engine, a child of the enqueue's; yields its traceparent. For
        `tenure.engines.client.Engine(tracing=Tracing())`."""
        with (
            self._tracer().start_as_current_span(
                f"run {kind}",
                context=_extracted(trace),
                kind=SpanKind.CONSUMER,
                attributes={
                    "messaging.system": "tenure",
                    "messaging.message.id": job_id,
                    "tenure.job.kind": kind,
                    "tenure.job.attempt": attempt,
                },
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _errors_in(span),
        ):
            yield _injected(span)

    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer("tenure", tracer_provider=self._provider)


@contextmanager
def _errors_in(span: Span) -> Iterator[None]:
    """Record in the span the error with which this block is left, if it is a failure."""
    try:
        yield
    except NO_FAILURE:
        raise
    except BaseException as error:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
        raise


def _parent(origin: Origin) -> tuple[TraceContext | None, Link | None]:
    """The parent of an enqueue's span: the trace given for this job, else the current span.

    A job with a request id must be the same when the request is repeated, including its trace. Its trace is therefore
    derived from the request id, and the span only links to it.
    """
    if origin.request_id is not None and origin.trace is None:
        return None, Link(_span_context(_derived_context(origin)))
    given, current = _span_context(origin.trace), trace.get_current_span().get_span_context()
    if given.is_valid and given.trace_id != current.trace_id:
        return _extracted(origin.trace), None
    return None, None


def _stored_context(origin: Origin, span: Span) -> str | None:
    """The context that is stored with the job."""
    if origin.request_id is not None:
        return origin.trace or _derived_context(origin)
    return _injected(span) or origin.trace


def _injected(span: Span) -> str | None:
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(KEY)


def _extracted(traceparent: str | None) -> TraceContext:
    """A context with this remote parent; an empty one where it is missing or invalid."""
    return _w3c.extract({KEY: traceparent} if traceparent else {}, TraceContext())


def _span_context(traceparent: str | None) -> SpanContext:
    return trace.get_current_span(_extracted(traceparent)).get_span_context()


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1000


def _derived_context(origin: Origin) -> str:
    name = sha256(f"tenure\x00{origin.kind}\x00{origin.request_id}".encode()).hexdigest()
    return f"00-{name[:32]}-{name[32:48]}-01"


def _attributes(origin: Origin) -> dict[str, str]:
    found = {
        "messaging.system": "tenure",
        "messaging.destination.name": origin.queue,
        "messaging.message.id": str(origin.id),
        "messaging.message.conversation_id": origin.correlation_id or str(origin.id),
        "tenure.job.kind": origin.kind,
    }
    return {name: value for name, value in found.items() if value is not None}
