"""Middleware: hooks around every enqueue and every attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenure.jobs.context import Context
from tenure.lifecycle.records import Origin


class Middleware:
    """Base class for `App(middleware=[…])`. Override one or both methods. The first middleware is the outermost.

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
