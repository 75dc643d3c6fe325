"""The command `tenure` as a running process: started in a folder with an app, observed by its log, ended by its id."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.support.server_process import is_alive, wait_until

T = TypeVar("T")

SHOP = '''
import asyncio
import time

import tenure

app = tenure.App()


@app.job(lease_seconds=2, backoff=tenure.Backoff(base_seconds=0.05), max_attempts=20, on_exhausted="fail")
async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.job(lease_seconds=2)
def sit(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.job(lease_seconds=2)
async def lean(seconds: float) -> None:
    """Leaves a thread behind when it stops."""
    await asyncio.to_thread(time.sleep, seconds)


@app.job(lease_seconds=2)
async def spin(seconds: float) -> None:
    """Keeps the event loop busy."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass
'''


class Started:
    """One running command. `log` is what it has written to standard error."""

    def __init__(
        self, arguments: tuple[str, ...], *, folder: Path, env: Mapping[str, str], program: tuple[str, ...]
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        self._log = folder / f"log-{time.monotonic_ns()}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=folder,
                env={**clean, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_log(self, pattern: str, *, seconds: float = 30.0, times: int = 1) -> None:
        """Wait until the log has this text."""
        found = wait_until(lambda: len(re.findall(pattern, self.log)) >= times or not self.running, seconds=seconds)
        assert found, f"{pattern!r} was not printed within {seconds} s:\n{self.log}"
        assert len(re.findall(pattern, self.log)) >= times, f"it ended without saying {pattern!r}:\n{self.log}"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, *, seconds: float = 30.0) -> int:
        """Its exit code, once it has ended."""
        assert wait_until(lambda: not self.running, seconds=seconds), f"it still runs:\n{self.log}"
        return self.process.returncode

    @property
    def workers(self) -> list[int]:
        """The ids of all worker processes that its supervisor has started."""
        return [int(pid) for pid in re.findall(r"worker \d+ is up \(pid (\d+)\)", self.log)]

    def clean_up(self) -> None:
        for pid in self.workers:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        if self.running:
            self.process.kill()
        self.process.wait(10)


@contextmanager
def started(
    *arguments: str, folder: Path, env: Mapping[str, str] | None = None, program: tuple[str, ...] = ("-m", "tenure")
) -> Iterator[Started]:
    """Run the command, or another program of Python, during the block."""
    running = Started(arguments, folder=folder, env=env or {}, program=program)
    try:
        yield running
    finally:
        running.clean_up()


async def until(condition: Callable[[], Awaitable[T]], *, seconds: float = 30.0) -> T:
    """The condition's value, once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline, f"did not come about within {seconds} s"
        await asyncio.sleep(0.02)
    return found
