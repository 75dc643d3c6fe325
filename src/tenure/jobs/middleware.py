"""What a program wants to happen around every enqueue and every run: one class, two hooks, both optional."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenure.jobs.context import Context
from tenure.lifecycle.records import Origin


class Middleware:
    """Derive from it, override what you need, and give it to `App(middleware=[…])`. The first is the outermost.

    class Tenants(tenure.Middleware):
        def enqueue(self, origin, proceed):
            return proceed(msgspec.structs.replace(origin, submitted_by=tenant.get()))

        async def run(self, ctx, proceed):
            with tenant_of(ctx.job):
                return await proceed()
    """

    def enqueue(self, origin: Origin, proceed: Callable[[Origin], Origin]) -> Origin:
        """Around the making of a job: look at it, change it, or raise to refuse it. Nothing is queued yet."""
        return proceed(origin)

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Around the function's run, on the worker's event loop (for process jobs, in their process)."""
        return await proceed()


def around_enqueue(layers: Sequence[Middleware], origin: Origin) -> Origin:
    """The origin after every layer has had its say."""
    if not layers:
        return origin
    return layers[0].enqueue(origin, lambda changed: around_enqueue(layers[1:], changed))


async def around_run(layers: Sequence[Middleware], ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
    """What the function returns, through every layer."""
    if not layers:
        return await call()
    return await layers[0].run(ctx, lambda: around_run(layers[1:], ctx, call))
