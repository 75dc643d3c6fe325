"""The jobs of the simulation: each kind is one way in which a function can behave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from simulation.invariants import InvariantViolated
from tenure.app import App
from tenure.errors import PermanentError, Snooze, TransientError
from tenure.jobs.context import Context
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import Job
from tenure.lifecycle.timeouts import Timeouts

if TYPE_CHECKING:
    from simulation.random_streams import RandomStream
    from tenure.client.job_function import PreparedCall

LEASE_SECONDS = 6.0
Sleep = Callable[[float], Awaitable[None]]


def declare(app: App, sleep: Sleep) -> None:
    """Declare the jobs in the app."""
    backoff = Backoff(base_seconds=0.5, factor=2.0, max_seconds=5.0)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff)
    async def effect(of: str) -> str:
        return of

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8, on_exhausted="fail")
    async def work(seconds: float) -> float:
        await sleep(seconds)
        return seconds

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8, on_exhausted="fail")
    async def commits(ctx: Context, before: float, inside: float, after: float, fails: bool) -> str:
        await sleep(before)
        async with ctx.commit(result=str(ctx.id)) as tx:
            tx.enqueue(app_effect(app, str(ctx.id)))
            await sleep(inside / ctx.attempt**2)
        await sleep(after)
        if fails:
            raise RuntimeError("after the fact")
        return str(ctx.id)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=4, on_exhausted="dead_letter")
    async def flaky(ctx: Context, failures: int) -> int:
        await sleep(0.3)
        if ctx.job.failures < failures:
            raise TransientError(f"failure {ctx.job.failures + 1}")
        return ctx.attempt

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff)
    async def refuses() -> None:
        raise PermanentError("never")

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8, on_exhausted="fail")
    async def snoozes(ctx: Context, times: int) -> int:
        if ctx.attempt <= times:
            raise Snooze(2.0)
        return ctx.attempt

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8, on_exhausted="fail")
    async def listens(ctx: Context, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            ctx.check()
            ctx.progress(50)
            await sleep(0.5)

    hanging = Timeouts(running_seconds=9.0)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, timeouts=hanging, max_attempts=2, on_exhausted="dead_letter")
    async def hangs() -> None:
        await sleep(100_000)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, timeouts=hanging, on_timeout="fail")
    async def hangs_once() -> None:
        await sleep(100_000)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, timeouts=Timeouts(queued_seconds=20.0), on_timeout="fail")
    async def urgent(ctx: Context, times: int) -> None:
        if ctx.attempt <= times:
            raise Snooze(2.0)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, on_lost="fail", max_attempts=3, on_exhausted="fail")
    async def fragile(seconds: float) -> float:
        await sleep(seconds)
        return seconds


def app_effect(app: App, of: str) -> PreparedCall[str]:
    from tenure.client.job_function import JobFunction

    return JobFunction(app, app.kinds["effect"]).request(of)


KINDS = (
    "work", "work", "commits", "commits", "commits", "flaky", "refuses", "snoozes", "listens", "fragile", "hangs",
    "hangs_once", "urgent",
)  # fmt: skip


def a_call(app: App, chance: RandomStream) -> PreparedCall[object]:
    """A random call of one of the jobs."""
    from tenure.client.job_function import JobFunction

    kind = chance.pick(KINDS)
    first, second, coin = chance.between(0.0, 10.0), chance.between(0.0, 7.0), chance.happens(0.3)
    # Most commit blocks are short; some are as long as a lease.
    inside = chance.between(0.0, 0.2) if chance.happens(0.6) else chance.between(0.2, LEASE_SECONDS)
    arguments: dict[str, dict[str, object]] = {
        "work": {"seconds": first},
        "commits": {"before": second, "inside": inside, "after": first, "fails": coin},
        "flaky": {"failures": int(first) % 6},
        "refuses": {},
        "snoozes": {"times": int(first) % 3},
        "listens": {"seconds": first},
        "hangs": {},
        "hangs_once": {},
        "urgent": {"times": int(first) % 3},
        "fragile": {"seconds": second},
    }
    return JobFunction(app, app.kinds[kind]).request(**arguments[kind])


def check_effects(jobs: Collection[Job]) -> None:
    """The effect of each job that commits was applied once if it is committed, and else never."""
    effects = Counter(msgspec.json.decode(job.origin.payload)["of"] for job in jobs if job.kind == "effect")
    for job in jobs:
        if job.kind == "commits" and effects[str(job.id)] != int(job.committed):
            raise InvariantViolated(
                f"job {job.id} is {job.status} and its effect was applied {effects[str(job.id)]} times"
            )
