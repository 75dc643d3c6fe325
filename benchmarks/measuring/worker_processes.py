"""The worker processes of a benchmark, from their start to their end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.measuring.channel import GO, RELEASE, STOP, Orders, Standing, lines
from benchmarks.measuring.records import NotMeasured
from tenure.seams import SYSTEM
from tenure.workers.supervisor.process import WorkerProcess

START_SECONDS_MOST = 60.0
STOP_SECONDS_MOST = 20.0
LOOK_SECONDS = 0.01
LOG_LINES = 5


class WorkerProcesses:
    """Some worker processes on one queue."""

    def __init__(self, programs: list[WorkerProcess], log: Path) -> None:
        self._programs, self._log = programs, log
        self._standings: dict[int, Standing] = {}
        self._news = asyncio.Event()
        self._listening = [
            SYSTEM.spawn.task(self._listen(number, program), name=f"tenure-bench-hears-{number}")
            for number, program in enumerate(programs)
        ]

    @property
    def succeeded(self) -> int:
        return sum(standing.succeeded for standing in self._standings.values())

    @property
    def running(self) -> int:
        return sum(standing.running for standing in self._standings.values())

    @property
    def rss_bytes(self) -> int:
        """The memory of the largest of them."""
        return max(standing.rss_bytes for standing in self._standings.values())

    @property
    def last_success_seconds(self) -> float:
        """When the last job succeeded, by the clock that all processes of a machine share."""
        return max(standing.at_seconds for standing in self._standings.values())

    async def ready(self) -> None:
        """Until all of them have opened the database."""
        await self._until(lambda: len(self._standings) == len(self._programs), "are up", seconds=START_SECONDS_MOST)

    def go(self) -> None:
        """Set them to work."""
        self._say(GO)

    def release(self) -> None:
        """Let the jobs end that wait for it."""
        self._say(RELEASE)

    async def have_succeeded(self, jobs: int, *, seconds: float) -> None:
        """Until this many jobs have succeeded in all; NotMeasured if that takes longer or a process ends."""
        await self._until(lambda: self.succeeded >= jobs, f"have done {jobs:,} jobs", seconds=seconds)

    async def are_running(self, jobs: int, *, seconds: float) -> None:
        """Until this many jobs run at once."""
        await self._until(lambda: self.running >= jobs, f"run {jobs:,} jobs at once", seconds=seconds)

    async def stop(self) -> None:
        """Have them stop as they should; NotMeasured if one does not."""
        self._say(STOP)
        try:
            async with asyncio.timeout(STOP_SECONDS_MOST):
                await _ended(self._programs)
        except TimeoutError:
            says = f"the workers did not stop within {STOP_SECONDS_MOST:.0f} s"
            raise NotMeasured(says + self._last_words()) from None
        if any(program.exit_code for program in self._programs):
            raise NotMeasured(f"a worker did not end as it should{self._last_words()}")

    def close(self) -> None:
        """However it stands, none of them goes on."""
        for listening in self._listening:
            listening.cancel()
        for program in self._programs:
            program.kill()
            program.close()

    def _say(self, word: bytes) -> None:
        for program in self._programs:
            program.send(word + b"\n")

    async def _listen(self, number: int, program: WorkerProcess) -> None:
        async for line in lines(program.connection):
            self._standings[number] = msgspec.json.decode(line, type=Standing)
            self._news.set()
        self._news.set()

    async def _until(self, condition: Callable[[], bool], says: str, *, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._refuse_losses(says)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            so_far = f"{self.succeeded:,} succeeded, {self.running:,} run"
            raise NotMeasured(
                f"after {seconds:.0f} s one cannot say that the workers {says}: {so_far}{self._last_words()}"
            ) from None

    async def _refuse_losses(self, says: str) -> None:
        """A process whose line has ended is at its end; what it has to say of that, it says before it is gone."""
        gone = [one for one, heard in zip(self._programs, self._listening, strict=True) if heard.done()]
        if gone:
            await _ended(gone)
            raise NotMeasured(f"a worker ended before they {says}{self._last_words()}")

    def _last_words(self) -> str:
        last = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "".join(f"\n  {line}" for line in ["; the workers' log ends with:", *last]) if last else ""


@asynccontextmanager
async def worker_processes(processes: int, orders: Orders, *, log: Path) -> AsyncIterator[WorkerProcesses]:
    """Worker processes that are ready and wait for the word to go. However this is left, none is left behind."""
    programs: list[WorkerProcess] = []
    try:
        with log.open("ab") as output:
            for _ in range(processes):
                programs.append(WorkerProcess(_command, output=output, errors=output))
                programs[-1].send(msgspec.json.encode(orders) + b"\n")
        workers = WorkerProcesses(programs, log)
    except BaseException:
        for program in programs:
            program.kill()
            program.close()
        raise
    try:
        await workers.ready()
        yield workers
        await workers.stop()
    finally:
        workers.close()


async def _ended(programs: Sequence[WorkerProcess]) -> None:
    while any(program.exit_code is None for program in programs):
        await SYSTEM.clock.sleep(LOOK_SECONDS)


def _command(descriptor: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.measuring.worker_process", str(descriptor)]
