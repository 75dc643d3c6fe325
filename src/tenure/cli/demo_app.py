"""The app of `tenure demo`: its jobs, and the table in which every effect inserts a row.

The table has no unique constraint, so that an effect that is applied twice shows.
"""

from __future__ import annotations

from typing import Any

import tenure
from tenure.client.job_decorators import JobDecorator
from tenure.client.job_function import PreparedCall
from tenure.seams import SYSTEM

QUEUE = "demo"
LEASE_SECONDS = 5.0
"""Short, so that the jobs of a killed worker are recovered soon; long enough for a slow disk."""
EFFECTS = "create table effects (job text not null, kind text not null, attempt integer not null)"
INSERT = "insert into effects (job, kind, attempt) values ($1, $2, $3)"

app = tenure.App(name="demo", version="demo")


def _declared(*, max_attempts: int = 5, dead_letter: bool = False) -> JobDecorator:
    return app.job(
        queue=QUEUE,
        max_attempts=max_attempts,
        lease_seconds=LEASE_SECONDS,
        backoff=tenure.Backoff(base_seconds=0.2, factor=2.0, max_seconds=1.0),
        on_exhausted="dead_letter" if dead_letter else "fail",
    )


@_declared()
async def charge(ctx: tenure.Context, number: int) -> int:
    """Most jobs: some work, then the effect and the result in one transaction."""
    await SYSTEM.clock.sleep(0.05)
    async with ctx.commit(result=number) as tx:
        await tx.execute(INSERT, str(ctx.id), "charge", ctx.attempt)
    return number


@_declared()
def ship(ctx: tenure.Context, number: int) -> int:
    """A plain function, run in a thread. Its first attempt fails."""
    if ctx.attempt == 1:
        raise tenure.TransientError("the carrier does not answer")
    with ctx.commit(result=number) as tx:
        tx.execute(INSERT, str(ctx.id), "ship", ctx.attempt)
    return number


@_declared()
async def invoice(ctx: tenure.Context, number: int) -> str:
    """A slow job that reports progress."""
    for percent in (25, 50, 75):
        await SYSTEM.clock.sleep(0.2)
        ctx.progress(percent, f"page {percent // 25} of 4")
    async with ctx.commit(result=f"invoice {number}") as tx:
        await tx.execute(INSERT, str(ctx.id), "invoice", ctx.attempt)
    return f"invoice {number}"


@_declared(max_attempts=3, dead_letter=True)
async def refund(ctx: tenure.Context, number: int) -> None:
    """A job that cannot succeed, and becomes a dead letter after its last attempt."""
    ctx.logger.info("refund %d fails as it should", number)
    raise RuntimeError(f"refund {number}: the account is closed")


DOOMED = refund.definition.name
DOOMED_NUMBER = 13


def call(number: int) -> PreparedCall[Any]:
    """The request of this number: most are quick, one in five fails once, one in ten is slow, one cannot succeed."""
    if number == DOOMED_NUMBER:
        return refund.request(number)
    if number % 10 == 0:
        return invoice.request(number)
    return ship.request(number) if number % 5 == 1 else charge.request(number)
