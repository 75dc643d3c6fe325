"""The worker processes of the pressure benchmark, and the job that they run: a millisecond of waiting.

`pressed_workers` starts `python -m benchmarks.pressure_worker DESCRIPTOR`: a benchmark's worker process with one more
kind of job.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.measuring.channel import Orders
from benchmarks.measuring.jobs import app
from benchmarks.measuring.worker_process import main
from benchmarks.measuring.worker_processes import WorkerProcesses
from tenure.workers.supervisor.process import WorkerProcess

WORK_SECONDS = 0.001


@app.job(kind="tenure-pressure-work", max_attempts=1)
async def work(text: str) -> None:
    """One millisecond of it."""
    await asyncio.sleep(WORK_SECONDS)


@asynccontextmanager
async def pressed_workers(processes: int, orders: Orders, *, log: Path) -> AsyncIterator[WorkerProcesses]:
    """Worker processes that are ready and wait for the word to go. However this is left, none is left behind."""
    programs: list[WorkerProcess] = []
    with log.open("ab") as output:
        for _ in range(processes):
            programs.append(WorkerProcess(_command, output=output, errors=output))
            programs[-1].send(msgspec.json.encode(orders) + b"\n")
    members = WorkerProcesses(programs, log)
    try:
        await members.ready()
        yield members
    finally:
        members.close()


def _command(descriptor: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.pressure_worker", str(descriptor)]


if __name__ == "__main__":
    main()
