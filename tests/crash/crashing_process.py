"""Runs a scenario and kills itself at a crash point. The process is started once and forks a child for each command.

    python -m tests.crash.crashing_process

Commands are read and reports are written as lines of JSON. The fork happens without threads and connections, so that a
child behaves like a new process and starts faster.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tenure.errors import StoreError
from tenure.lifecycle.records import Job
from tenure.stores import Store
from tests.crash.budget_run_scenario import BUDGET_RUN_SCENARIO
from tests.crash.crash_points import RECORDER, CrashPoint, install_recorders
from tests.crash.recovery_scenarios import RECOVERY_SCENARIOS
from tests.crash.scenario import Context, Scenario
from tests.crash.store_scenarios import SCENARIOS
from tests.crash.workflow_scenario import WORKFLOW_SCENARIO

PROCESS_SECONDS_MAX = 30
"""A child that hangs is killed after this time."""
RUN_SCENARIOS = (WORKFLOW_SCENARIO, BUDGET_RUN_SCENARIO)
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *RECOVERY_SCENARIOS, *RUN_SCENARIOS)}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Which scenario to run on which database, and where to crash. With `waits_for_go` the child waits before it
    starts, so that a tracer can attach; `file_bytes_max` limits the size of files meanwhile."""

    scenario: str
    url: str
    jobs: list[Job]
    crash_at: int | None = None
    waits_for_go: bool = False
    file_bytes_max: int | None = None
    again: bool = False
    """If the store refused, run again in the same process, without the limit."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a child reports."""

    points: list[CrashPoint] = []
    acknowledged: bool = False
    refused: str | None = None
    """The store's error, by class and message."""
    refused_again: str | None = None
    """The error of the second run in the same process."""
    test_error: str | None = None
    """The traceback of an error that is not the store's."""


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended, with its report unless it was killed."""

    pid: int
    signal: int | None = None
    report: Report | None = None


async def run_command(command: Command) -> Report:
    scenario = BY_NAME[command.scenario]
    store = scenario.store(command.url)
    if scenario.migrated:
        try:
            await store.open()
        except StoreError as error:
            return Report(refused=f"{type(error).__name__}: {error}")
    with _limit(command.file_bytes_max):
        report = await _perform(scenario, store, command)
    if command.again and report.refused is not None:
        second = await _perform(scenario, store, command)
        return msgspec.structs.replace(report, acknowledged=second.acknowledged, refused_again=second.refused)
    return report


async def _perform(scenario: Scenario, store: Store, command: Command) -> Report:
    RECORDER.crash_at = command.crash_at
    RECORDER.armed = True
    try:
        await scenario.run(Context(store, command.url, command.jobs))
    except StoreError as error:
        return Report(refused=f"{type(error).__name__}: {error}", points=RECORDER.points)
    RECORDER.reach("acknowledge", scenario.name)
    RECORDER.armed = False
    return Report(acknowledged=True, points=RECORDER.points)


@contextmanager
def _limit(bytes_max: int | None) -> Iterator[None]:
    """The kernel lets no file grow beyond this. The write fails with an error, because the signal is ignored."""
    if bytes_max is None:
        yield
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, most))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))


def child(command: Command, go: int, out: int) -> None:
    """Run the command in the forked child. It ends by a signal or by `_exit`."""
    try:
        signal.alarm(PROCESS_SECONDS_MAX)
        if command.waits_for_go:
            os.read(go, 1)
        report = asyncio.run(run_command(command))
    except BaseException:  # noqa: BLE001 - the test reports it, whatever it is
        report = Report(test_error=traceback.format_exc())
    with os.fdopen(out, "wb") as pipe:
        pipe.write(msgspec.json.encode(report))
    os._exit(0)


def fork_and_wait(command: Command) -> ProcessEnd:
    """Fork, start the child, and wait for its end."""
    go_read, go_write = os.pipe()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        child(command, go_read, write)
    os.close(write)
    os.close(go_read)
    if command.waits_for_go:
        write_end(ProcessEnd(pid=pid))
        sys.stdin.buffer.readline()
        os.write(go_write, b"!")
    with os.fdopen(read, "rb") as pipe:
        output = pipe.read()
    os.close(go_write)
    status = os.waitpid(pid, 0)[1]
    report = msgspec.json.decode(output, type=Report) if output else None
    return ProcessEnd(pid=pid, signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, report=report)


def write_end(end: ProcessEnd) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(end) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    install_recorders()
    # A garbage collection in a child would copy all pages that it shares with this process.
    gc.freeze()
    while line := sys.stdin.buffer.readline():
        write_end(fork_and_wait(msgspec.json.decode(line, type=Command)))


if __name__ == "__main__":
    main()
