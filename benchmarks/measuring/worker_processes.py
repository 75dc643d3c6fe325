"""The worker processes of a benchmark, from their start to their end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.measuring.channel import GO, RELEASE, STOP, BenchmarkReport, WorkerOptions, lines
from benchmarks.measuring.records import NotMeasured
from tenure.seams import SYSTEM
from tenure.workers.supervisor.process import WorkerProcess

START_SECONDS_MOST = 60.0
STOP_SECONDS_MOST = 20.0
LOOK_SECONDS = 0.01
LOG_LINES = 5


class WorkerProcesses:
    """Some worker processes on one queue."""

    def __init__(self, processes: list[WorkerProcess], log: Path) -> None:
        self._processes, self._log = processes, log
        self._reports: dict[int, BenchmarkReport] = {}
        self._news = asyncio.Event()
        self._receiving = [
            SYSTEM.spawn.task(self._receive(number, process), name=f"tenure-bench-reports-{number}")
            for number, process in enumerate(processes)
        ]

    @property
    def succeeded(self) -> int:
        return sum(report.succeeded for report in self._reports.values())

    @property
    def running(self) -> int:
        return sum(report.running for report in self._reports.values())

    @property
    def rss_bytes(self) -> int:
        """The memory of the largest of them."""
        return max(report.rss_bytes for report in self._reports.values())

    @property
    def last_success_seconds(self) -> float:
        """When the last job succeeded, by the monotonic clock of the machine."""
        return max(report.at_seconds for report in self._reports.values())

    async def ready(self) -> None:
        """Wait until all of them have opened the database."""
        await self._until(lambda: len(self._reports) == len(self._processes), "be up", seconds=START_SECONDS_MOST)

    def go(self) -> None:
        """Start the work."""
        self._send(GO)

    def release(self) -> None:
        """Release the jobs that `hold`."""
        self._send(RELEASE)

    async def wait_until_succeeded(self, jobs: int, *, seconds: float) -> None:
        """Wait until this many jobs have succeeded in all; NotMeasured if that takes longer or a process ends."""
        await self._until(lambda: self.succeeded >= jobs, f"have done {jobs:,} jobs", seconds=seconds)

    async def wait_until_running(self, jobs: int, *, seconds: float) -> None:
        """Wait until this many jobs run at once."""
        await self._until(lambda: self.running >= jobs, f"run {jobs:,} jobs at once", seconds=seconds)

    async def stop(self) -> None:
        """Stop them; NotMeasured if one does not exit, or fails."""
        self._send(STOP)
        try:
            async with asyncio.timeout(STOP_SECONDS_MOST):
                await _ended(self._processes)
        except TimeoutError:
            raise NotMeasured(f"the workers did not stop within {STOP_SECONDS_MOST:.0f} s{self._log_end()}") from None
        if any(process.exit_code for process in self._processes):
            raise NotMeasured(f"a worker failed while stopping{self._log_end()}")

    def close(self) -> None:
        """Kill those that still run."""
        for task in self._receiving:
            task.cancel()
        for process in self._processes:
            process.kill()
            process.close()

    def _send(self, command: bytes) -> None:
        for process in self._processes:
            process.send(command + b"\n")

    async def _receive(self, number: int, process: WorkerProcess) -> None:
        async for line in lines(process.connection):
            self._reports[number] = msgspec.json.decode(line, type=BenchmarkReport)
            self._news.set()
        self._news.set()

    async def _until(self, condition: Callable[[], bool], state: str, *, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._refuse_losses(state)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            so_far = f"{self.succeeded:,} succeeded, {self.running:,} run"
            raise NotMeasured(
                f"the workers were expected to {state} within {seconds:.0f} s: {so_far}{self._log_end()}"
            ) from None

    async def _refuse_losses(self, state: str) -> None:
        """NotMeasured if a process has closed its socket. Its log is complete once it has exited."""
        ending = [one for one, task in zip(self._processes, self._receiving, strict=True) if task.done()]
        if ending:
            await _ended(ending)
            raise NotMeasured(f"a worker exited; it was expected to {state}{self._log_end()}")

    def _log_end(self) -> str:
        last = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "".join(f"\n  {line}" for line in ["; the workers' log ends with:", *last]) if last else ""


@asynccontextmanager
async def worker_processes(number: int, options: WorkerOptions, *, log: Path) -> AsyncIterator[WorkerProcesses]:
    """Worker processes that are ready and wait for GO. All of them have exited afterwards."""
    processes: list[WorkerProcess] = []
    try:
        with log.open("ab") as output:
            for _ in range(number):
                processes.append(WorkerProcess(_command, output=output, errors=output))
                processes[-1].send(msgspec.json.encode(options) + b"\n")
        workers = WorkerProcesses(processes, log)
    except BaseException:
        for process in processes:
            process.kill()
            process.close()
        raise
    try:
        await workers.ready()
        yield workers
        await workers.stop()
    finally:
        workers.close()


async def _ended(processes: Sequence[WorkerProcess]) -> None:
    while any(process.exit_code is None for process in processes):
        await SYSTEM.clock.sleep(LOOK_SECONDS)


def _command(descriptor: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.measuring.worker_process", str(descriptor)]
