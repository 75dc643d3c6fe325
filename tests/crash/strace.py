"""Processes under strace: system calls are recorded, made to fail, or made to kill the process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.crash_processes import CrashProcesses
from tests.crash.crashing_process import Command, ProcessEnd

WRITES = ("write", "pwrite64", "ftruncate")
SYNCS = ("fsync", "fdatasync")
REMOVALS = ("unlink",)
TRACER_SECONDS = 30.0


def find_strace() -> str | None:
    return shutil.which("strace")


def unavailable_reason() -> str | None:
    """Why nothing can be traced on this machine; None if it can."""
    if find_strace() is None:
        return "strace is not installed: run make services"
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        try:
            with attached(sleeper.pid, ["-e", "trace=none"]):
                return None
        except AssertionError as problem:
            return f"strace may not attach to processes here ({problem})"
        finally:
            sleeper.kill()


@contextmanager
def attached(pid: int, options: Sequence[str]) -> Iterator[None]:
    """Trace the process with all of its threads. strace detaches at the end."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    try:
        first_line = tracer.stderr.readline()
        assert "attached" in first_line, first_line.strip()
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=TRACER_SECONDS)


def files_of(path: Path, *, folder: bool = False) -> list[str]:
    """Trace only calls on the database's own files, and with `folder` on the folder that contains them."""
    names = [str(path), f"{path}-wal", f"{path}-shm", f"{path}-journal", *([str(path.parent)] if folder else [])]
    return [part for name in names for part in ("-P", name)]


def run_under_strace(processes: CrashProcesses, order: Command, options: Sequence[str]) -> ProcessEnd:
    """Run a child under these options of strace."""
    return processes.run_traced(order, lambda pid: attached(pid, options))
