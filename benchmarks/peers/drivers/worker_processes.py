"""The worker processes of one cell: started together, watched by their tallies, ended by their ids."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

from benchmarks.peers.drivers.tally import FOLDER_VARIABLE, SECONDS_VARIABLE, Counted, counted

STOP_SECONDS = 10.0


class WorkerProcesses:
    """Worker processes while the block lasts. One that ends before is an error with its last line."""

    def __init__(self, commands: Sequence[Sequence[str]], folder: Path, *, job_ms: int = 0) -> None:
        self._commands, self._job_ms = commands, job_ms
        self._tallies = folder / "tallies"
        self._log = folder / "log"
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._tallies.mkdir()
        environment = {
            **os.environ,
            FOLDER_VARIABLE: str(self._tallies),
            SECONDS_VARIABLE: str(self._job_ms / 1000),
        }
        with self._log.open("wb") as log:
            for command in self._commands:
                self._workers.append(_started(command, environment, log))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def counted(self) -> Counted:
        return counted(self._tallies)

    def require_alive(self) -> None:
        for worker in self._workers:
            if worker.poll() is not None:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise SystemExit(f"a worker ended with {worker.returncode}: {lines[-1] if lines else 'no word'}")

    async def until(self, reached: Callable[[Counted], bool], *, seconds: float) -> None:
        """Wait for what the tallies must show."""
        deadline = time.monotonic() + seconds
        while not reached(now := self.counted()):
            self.require_alive()
            if time.monotonic() > deadline:
                raise SystemExit(f"after {seconds:.0f} s {now.ran} bodies ran, with {len(now.samples_ns)} samples")
            await asyncio.sleep(0.01)


def _started(command: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
