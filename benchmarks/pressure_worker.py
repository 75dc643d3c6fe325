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

from benchmarks.measuring.channel import WorkerOptions
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
async def pressed_workers(number: int, options: WorkerOptions, *, log: Path) -> AsyncIterator[WorkerProcesses]:
    """Worker processes that are ready and wait for GO. All of them have exited afterwards."""
    processes: list[WorkerProcess] = []
    with log.open("ab") as output:
        for _ in range(number):
            processes.append(WorkerProcess(_command, output=output, errors=output))
            processes[-1].send(msgspec.json.encode(options) + b"\n")
    workers = WorkerProcesses(processes, log)
    try:
        await workers.ready()
        yield workers
    finally:
        workers.close()


def _command(descriptor: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.pressure_worker", str(descriptor)]


if __name__ == "__main__":
    main()
