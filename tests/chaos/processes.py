"""Worker processes of a test: started, paused, continued, killed and asked to stop, each by its own id."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.program import Notes, Program
from tests.support.child_programs import wait_until
from tests.support.databases import Database

ROOT = Path(__file__).parents[2]
LOCK_SECONDS = 0.2
PAUSES_MAX = 50


async def until(
    holds: Callable[[], bool | Awaitable[bool]], what: str, *, seconds: float = 90.0, pause_seconds: float = 0.02
) -> None:
    """Wait until the condition holds; an error names it when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come to this within {seconds} s: {what}")
        await asyncio.sleep(pause_seconds)


class WorkerProcess:
    """One worker program. Its name is part of its log's; its process id is part of the names that it signs with."""

    def __init__(self, program: Program, log: Path) -> None:
        self.program, self._log = program, log
        command = [sys.executable, "-m", "tests.chaos.worker_program", msgspec.json.encode(program).decode()]
        with log.open("ab") as out:
            # A group of its own: a terminal's interrupt does not reach it, and the kernel ends it, if it is paused,
            # with the process that started it.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, process_group=0
            )

    def __repr__(self) -> str:
        return f"WorkerProcess({self.program.name}, {self.process.pid})"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def signed(self, actor: str) -> bool:
        """Whether this process is the actor of an event."""
        return f"-{self.process.pid}-" in actor

    def pause(self, database: Database) -> None:
        """SIGSTOP. One that is stopped inside a write transaction on a SQLite file would keep everybody from writing,
        which is another story; so it is let go again then, and stopped a moment later."""
        for _ in range(PAUSES_MAX):
            self.process.send_signal(signal.SIGSTOP)
            assert wait_until(self._stands_still, seconds=10), f"{self} was told to stop and goes on"
            if not database.is_sqlite or _is_free(database.path):
                return
            self.process.send_signal(signal.SIGCONT)
        raise AssertionError(f"{self} was in the middle of a write each of {PAUSES_MAX} times")

    def _stands_still(self) -> bool:
        """Whether every thread of it has stopped: the signal is sent at once, and takes effect a moment later."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, *, seconds: float = 30.0) -> int:
        """Its exit code, once it has ended by itself; negative where a signal ended it."""
        await until(lambda: self.exit_code is not None, f"{self} ends", seconds=seconds)
        return self.process.wait()

    async def says(self, text: str, *, seconds: float = 30.0) -> None:
        await until(lambda: text in self.log or self.failed(), f"{self} says {text!r}", seconds=seconds)
        assert text in self.log, f"{self} failed before it said {text!r}"

    def failed(self) -> bool:
        """Whether it ended with an error of its own."""
        return (self.exit_code or 0) > 0

    def close(self) -> None:
        if self.exit_code is None:
            for last in (signal.SIGKILL, signal.SIGCONT):
                os.kill(self.process.pid, last)
        self.process.wait(10)


def _is_free(path: Path) -> bool:
    """Whether the file's write lock is free; a live worker holds it only briefly."""
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        connection.execute("rollback")
        return True


class WorkerProcesses:
    """The worker processes of one test, and the notes that they exchange with it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self._folder = database, folder
        self.notes = Notes(folder)
        self.workers: list[WorkerProcess] = []

    def start(self, name: str, **facts: Any) -> WorkerProcess:
        """Start a worker, without waiting for it; `up` does."""
        program = Program(database=self.database.url, folder=str(self._folder), name=name, **facts)
        worker = WorkerProcess(program, self._folder / f"{name}.log")
        self.workers.append(worker)
        return worker

    async def up(self, *workers: WorkerProcess) -> None:
        """Wait until these workers claim jobs."""
        for worker in workers:
            await worker.says("claims jobs from")

    async def noted(self, name: str, *, seconds: float = 30.0) -> None:
        await until(
            lambda: self.notes.are_there(name) or any(worker.failed() for worker in self.workers),
            f"there is a note {name!r}",
            seconds=seconds,
        )
        assert self.notes.are_there(name), f"a worker failed before there was a note {name!r}"

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def report(self) -> str:
        """The logs of all workers, shown when a test fails."""
        return "\n".join(f"--- {worker} (exit {worker.exit_code}):\n{worker.log[-6000:]}" for worker in self.workers)
