"""The jobs that are measured. Whoever measures names the queue with each enqueue, so that no other worker's is used."""

from __future__ import annotations

import asyncio

import tenure
from tenure.seams import SYSTEM

HEARTBEAT_SECONDS, LEASE_SECONDS = 3.0, 60.0

app = tenure.App(name="bench", version=tenure.__version__)
release = asyncio.Event()
"""Set in a worker process once what it holds may end."""


@app.job(kind="tenure-bench-nothing", max_attempts=1)
async def nothing(number: int) -> None:
    """A job that does nothing, so that all that is measured is what tenure does for it."""


@app.job(kind="tenure-bench-stamp", max_attempts=1)
async def stamp(number: int) -> float:
    """The moment of its first line, by the clock that all processes of a machine share."""
    return SYSTEM.clock.monotonic_seconds()


@app.job(kind="tenure-bench-hold", max_attempts=1, heartbeat_seconds=HEARTBEAT_SECONDS, lease_seconds=LEASE_SECONDS)
async def hold(number: int) -> None:
    """Runs until it is let go."""
    await release.wait()
