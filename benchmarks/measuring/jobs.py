"""The jobs that are measured. Each enqueue names a queue of the benchmark's own, which no other worker serves."""

from __future__ import annotations

import asyncio

import tenure
from tenure.seams import SYSTEM

HEARTBEAT_SECONDS, LEASE_SECONDS = 3.0, 60.0

app = tenure.App(name="bench", version=tenure.__version__)
release = asyncio.Event()
"""Set in a worker process when its `hold` jobs may end."""


@app.job(kind="tenure-bench-nothing", max_attempts=1)
async def nothing(number: int) -> None:
    """A job without work: what is measured is tenure's own cost."""


@app.job(kind="tenure-bench-stamp", max_attempts=1)
async def stamp(number: int) -> float:
    """The time of its first line, by the monotonic clock of the machine."""
    return SYSTEM.clock.monotonic_seconds()


@app.job(kind="tenure-bench-hold", max_attempts=1, heartbeat_seconds=HEARTBEAT_SECONDS, lease_seconds=LEASE_SECONDS)
async def hold(number: int) -> None:
    """Runs until it is released."""
    await release.wait()
