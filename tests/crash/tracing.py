"""System calls of a process, watched, killed at or made to fail by strace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.mortals import Mortals
from tests.crash.victim import Death, Order

WRITES = ("write", "pwrite64", "ftruncate")
SYNCS = ("fsync", "fdatasync")
REMOVALS = ("unlink",)
TRACER_SECONDS = 30.0


def find_strace() -> str | None:
    return shutil.which("strace")


def why_not() -> str | None:
    """Why nothing can be traced here; None where it can."""
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
    """The process is traced meanwhile, with all of its threads. It is let go of at the end, where it still lives."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    try:
        said = tracer.stderr.readline()
        assert "attached" in said, said.strip()
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=TRACER_SECONDS)


def files_of(path: Path, *, folder: bool = False) -> list[str]:
    """Look only at what is done to the database's own files, or also to the folder that names them."""
    names = [str(path), f"{path}-wal", f"{path}-shm", f"{path}-journal", *([str(path.parent)] if folder else [])]
    return [part for name in names for part in ("-P", name)]


def send_traced(mortals: Mortals, order: Order, options: Sequence[str]) -> Death:
    """One life under these options of strace."""
    return mortals.send_under(order, lambda pid: attached(pid, options))
