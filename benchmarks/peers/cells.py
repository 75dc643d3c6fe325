"""One cell: one peer's driver, run as a process in that peer's environment, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.environments import ROOT
from benchmarks.peers.figures import Cell
from benchmarks.peers.places import Place
from benchmarks.peers.roster import WORKLOADS, Peer

OVERHEAD_SECONDS = 90.0
"""What a driver may take beyond the limit that it sets itself: tables, filling the queue, ending its workers."""


def run_cell(
    peer: Peer, workload: str, *, python: Path, place: Place, jobs: int, number: int, limit_seconds: float
) -> Cell:
    """The figures of one of the drivers beside this, or the reason why there are none."""
    wanted = WORKLOADS[workload]
    command = [str(python), "-m", f"benchmarks.peers.drivers.{peer.driver}", wanted.name, place.url, str(jobs)]
    command += ["--processes", str(wanted.processes), "--limit-seconds", str(limit_seconds)]
    command += ["--job-ms", str(wanted.job_ms), *(["--defaults"] if wanted.defaults else [])]
    command += [] if place.server_pid is None else ["--server-pid", str(place.server_pid)]
    return run_driver(Cell(peer.name, workload, number), command, limit_seconds=limit_seconds)


def run_driver(cell: Cell, command: list[str], *, limit_seconds: float) -> Cell:
    """The cell with the figures that a driver printed, or with the reason why there are none."""
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own, so that its workers can be ended with it.
        driver = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            answer, _ = driver.communicate(timeout=limit_seconds + OVERHEAD_SECONDS)
        except subprocess.TimeoutExpired:
            return replace(cell, reason=f"no answer in {limit_seconds + OVERHEAD_SECONDS:.0f} s")
        finally:
            if driver.returncode is None:
                _end(driver)
        errors.seek(0)
        return _answered(cell, answer=answer, errors=errors.read(), status=driver.returncode)


def _answered(cell: Cell, *, answer: str, errors: str, status: int) -> Cell:
    if status != 0:
        lines = errors.strip().splitlines()
        return replace(cell, reason=lines[-1].strip() if lines else f"ended with {status}")
    try:
        figures = json.loads(answer.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return replace(cell, reason=f"answered {answer[-80:]!r}")
    if "unsupported" in figures:
        return replace(cell, reason=figures["unsupported"], unsupported=True)
    configuration = figures.pop("configuration", "")
    return replace(cell, figures=figures, configuration=configuration)


def _end(driver: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
