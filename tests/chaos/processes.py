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

from tests.chaos.process_options import Notes, ProcessOptions
from tests.support.databases import Database
from tests.support.server_process import wait_until

ROOT = Path(__file__).parents[2]
LOCK_SECONDS = 0.2
PAUSES_MAX = 50


async def until(
    holds: Callable[[], bool | Awaitable[bool]], what: str, *, seconds: float = 90.0, pause_seconds: float = 0.02
) -> None:
    """Wait until the condition holds; the error names it after the limit."""
    deadline = time.monotonic() + seconds
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come to this within {seconds} s: {what}")
        await asyncio.sleep(pause_seconds)


class WorkerProcess:
    """One worker process. Its name is part of its log's name; its process id is part of its worker names."""

    def __init__(self, options: ProcessOptions, log: Path) -> None:
        self.options, self._log = options, log
        command = [sys.executable, "-m", "tests.chaos.worker_process", msgspec.json.encode(options).decode()]
        with log.open("ab") as out:
            # In its own process group a terminal's interrupt does not reach it, and the kernel ends it, if it is
            # paused, with the process that started it.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, process_group=0
            )

    def __repr__(self) -> str:
        return f"WorkerProcess({self.options.name}, {self.process.pid})"

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
        """SIGSTOP. A process that is stopped inside a write transaction on a SQLite file would block all writers, which
        is another test; then it is continued and stopped a little later."""
        for _ in range(PAUSES_MAX):
            self.process.send_signal(signal.SIGSTOP)
            assert wait_until(self._stands_still, seconds=10), f"{self} received SIGSTOP and continues"
            if not database.is_sqlite or _is_free(database.path):
                return
            self.process.send_signal(signal.SIGCONT)
        raise AssertionError(f"{self} was in the middle of a write each of {PAUSES_MAX} times")

    def _stands_still(self) -> bool:
        """Whether all of its threads have stopped: the signal takes effect after a short time."""
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
        """Its exit code, once it has ended; negative for a signal."""
        await until(lambda: self.exit_code is not None, f"{self} ends", seconds=seconds)
        return self.process.wait()

    async def wait_for_log(self, text: str, *, seconds: float = 30.0) -> None:
        await until(lambda: text in self.log or self.failed(), f"{self} says {text!r}", seconds=seconds)
        assert text in self.log, f"{self} failed before it logged {text!r}"

    def failed(self) -> bool:
        """Whether it ended with an error."""
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
        """Start a worker without waiting for it; `up` waits."""
        options = ProcessOptions(database=self.database.url, folder=str(self._folder), name=name, **facts)
        worker = WorkerProcess(options, self._folder / f"{name}.log")
        self.workers.append(worker)
        return worker

    async def up(self, *workers: WorkerProcess) -> None:
        """Wait until these workers claim jobs."""
        for worker in workers:
            await worker.wait_for_log("claims jobs from")

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
