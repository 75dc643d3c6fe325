"""Middleware: hooks around every enqueue and every attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tenure.jobs.context import Context, current_context
from tenure.lifecycle.records import Origin


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
