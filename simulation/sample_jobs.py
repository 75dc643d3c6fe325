"""The jobs of the simulation: each kind is one way in which a function can behave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tenure.app import App
from tenure.errors import PermanentError, Snooze, TransientError
from tenure.jobs.context import Context
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import Timeouts

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

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8)
    async def work(seconds: float) -> float:
        await sleep(seconds)
        return seconds

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8)
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

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8)
    async def snoozes(ctx: Context, times: int) -> int:
        if ctx.attempt <= times:
            raise Snooze(2.0)
        return ctx.attempt

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, max_attempts=8)
    async def listens(ctx: Context, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            ctx.check()
            ctx.progress(50)
            await sleep(0.5)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, timeouts=Timeouts(running_seconds=9.0))
    async def hangs() -> None:
        await sleep(100_000)

    @app.job(lease_seconds=LEASE_SECONDS, backoff=backoff, on_lost="fail", max_attempts=3)
    async def fragile(seconds: float) -> float:
        await sleep(seconds)
        return seconds


def app_effect(app: App, of: str) -> PreparedCall[str]:
    from tenure.client.job_function import JobFunction

    return JobFunction(app, app.kinds["effect"]).request(of)


def a_call(app: App, chance: RandomStream) -> PreparedCall[object]:
    """One call of one of the jobs, by chance."""
    from tenure.client.job_function import JobFunction

    kind = chance.pick(
        ["work", "work", "commits", "commits", "commits", "flaky", "refuses", "snoozes", "listens", "hangs", "fragile"]
    )
    first, second, coin = chance.between(0.0, 10.0), chance.between(0.0, 7.0), chance.happens(0.3)
    # Most blocks are short, as they should be; some are as long as a lease.
    inside = chance.between(0.0, 0.2) if chance.happens(0.6) else chance.between(0.2, LEASE_SECONDS)
    arguments: dict[str, dict[str, object]] = {
        "work": {"seconds": first},
        "commits": {"before": second, "inside": inside, "after": first, "fails": coin},
        "flaky": {"failures": int(first) % 6},
        "refuses": {},
        "snoozes": {"times": int(first) % 3},
        "listens": {"seconds": first},
        "hangs": {},
        "fragile": {"seconds": second},
    }
    return JobFunction(app, app.kinds[kind]).request(**arguments[kind])
