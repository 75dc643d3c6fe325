"""The supervisor of worker processes, with small programs in the place of workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

import pytest

from tenure.seams import SYSTEM
from tenure.workers.supervisor import supervisor
from tenure.workers.supervisor.channel import WorkerReport
from tenure.workers.supervisor.process import WorkerProcess
from tenure.workers.supervisor.supervisor import Ending, Supervisor, SupervisorResult
from tests.support.running_command import until
from tests.support.server_process import is_alive

PROGRAM = """
import os, signal, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
def report(**counts):
    import json
    facts = {"worker": f"w-{os.getpid()}", "pid": os.getpid(), "running": 0, "counts": counts, "uptime_seconds": 0.1}
    channel.send(json.dumps(facts).encode() + b"\\n")
"""
STOPPING = "report()\nwhile channel.recv(1) not in (b's', b'a', b''): pass\nreport(claimed=3, succeeded=3)\n"
HUNG = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport()\ntime.sleep(100)\n"
ABORTING = "report()\nwhile channel.recv(1) not in (b'a', b''): pass\n"
DYING = "report()\nsys.exit(7)\n"
GARBLING = "channel.send(b'rubbish\\n{\"worker\": 1}\\n')\n" + STOPPING
FAILING = "sys.exit(3)\n"


class SupervisedPrograms:
    """A supervisor whose worker processes run these programs: in each slot its own, the last one again and again."""

    def __init__(self, *sources: Sequence[str], grace_seconds: float = 5.0) -> None:
        self._sources = [list(own) for own in sources]
        self.pids: list[int] = []
        self.again: list[bool] = []
        self.reports: list[tuple[int, WorkerReport]] = []
        self.supervisor = Supervisor(
            self._start,
            lambda number, report: self.reports.append((number, report)),
            processes=len(sources),
            grace_seconds=grace_seconds,
            seams=SYSTEM,
        )

    def _start(self, number: int, again: bool) -> WorkerProcess:
        own = self._sources[number - 1]
        source = PROGRAM + (own.pop(0) if len(own) > 1 else own[0])
        process = WorkerProcess(lambda descriptor: [sys.executable, "-S", "-c", source, str(descriptor)])
        self.pids.append(process.pid)
        self.again.append(again)
        return process

    async def up(self, count: int) -> None:
        async def enough() -> bool:
            return len({report.pid for _, report in self.reports}) >= count

        await until(enough)

    async def run(self) -> SupervisorResult:
        return await asyncio.wait_for(self.supervisor.run(), 60)

    def none_is_left(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_SECONDS_MIN", 0.01)
    monkeypatch.setattr(supervisor, "RESTART_SECONDS_MAX", 0.05)


async def stopped_after(programs: SupervisedPrograms, up: int) -> SupervisorResult:
    running = asyncio.create_task(programs.run())
    await programs.up(up)
    programs.supervisor.stop()
    return await running


async def test_all_processes_stop_and_their_last_reports_are_received() -> None:
    programs = SupervisedPrograms([STOPPING], [GARBLING])
    assert await stopped_after(programs, 2) == SupervisorResult(Ending.STOPPED)
    assert [report.counts for _, report in programs.reports][-2:] == [{"claimed": 3, "succeeded": 3}] * 2
    assert programs.none_is_left()


async def test_a_process_that_dies_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    programs = SupervisedPrograms([DYING, DYING, STOPPING], [STOPPING])
    with caplog.at_level(logging.WARNING):
        assert await stopped_after(programs, 4) == SupervisorResult(Ending.STOPPED)
    messages = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0].partition(") ")[2] for line in messages] == ["exited with code 7"] * 2
    assert sorted(programs.again) == [False, False, True, True]
    assert programs.none_is_left()


async def test_it_gives_up_when_no_process_stays_up(caplog: pytest.LogCaptureFixture) -> None:
    programs = SupervisedPrograms([DYING], [DYING])
    assert await programs.run() == SupervisorResult(Ending.GAVE_UP, 7)
    assert len(programs.pids) >= 2 * supervisor.EARLY_EXITS_MAX
    assert "giving up" in caplog.text
    assert programs.none_is_left()


@pytest.mark.requirement("WC-05")
async def test_a_process_that_does_not_stay_up_ends_no_other() -> None:
    programs = SupervisedPrograms([STOPPING], [*[DYING] * (2 * supervisor.EARLY_EXITS_MAX), STOPPING])
    assert await stopped_after(programs, 2 + 2 * supervisor.EARLY_EXITS_MAX) == SupervisorResult(Ending.STOPPED)


async def test_a_process_that_was_up_for_a_while_is_replaced_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "EARLY_SECONDS", 0.0)
    programs = SupervisedPrograms([*[DYING] * (2 * supervisor.EARLY_EXITS_MAX), STOPPING])
    assert await stopped_after(programs, 2 * supervisor.EARLY_EXITS_MAX + 1) == SupervisorResult(Ending.STOPPED)


async def test_no_other_process_is_started_when_the_first_fails_to_start() -> None:
    programs = SupervisedPrograms([FAILING], [STOPPING], [STOPPING])
    assert await programs.run() == SupervisorResult(Ending.START_FAILED, 3)
    assert len(programs.pids) == 1


async def test_a_process_that_ignores_a_stop_is_killed_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "STOP_MARGIN_SECONDS", 0.1)
    programs = SupervisedPrograms([HUNG], [STOPPING], grace_seconds=0.1)
    assert await stopped_after(programs, 2) == SupervisorResult(Ending.UNCLEAN, -signal.SIGKILL)
    assert "did not exit in time; killing it" in caplog.text
    assert programs.none_is_left()


async def test_an_abort_is_sent_to_all_and_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ABORT_SECONDS_MAX", 0.5)
    programs = SupervisedPrograms([ABORTING], [HUNG], grace_seconds=100)
    running = asyncio.create_task(programs.run())
    await programs.up(2)
    programs.supervisor.stop()
    programs.supervisor.abort()
    assert await running == SupervisorResult(Ending.ABORTED)
    assert programs.none_is_left()


async def test_a_stop_before_the_first_process_is_up_takes_effect() -> None:
    programs = SupervisedPrograms([STOPPING], [STOPPING])
    running = asyncio.create_task(programs.run())
    await asyncio.sleep(0)
    programs.supervisor.stop()
    assert await running == SupervisorResult(Ending.STOPPED)
    assert len(programs.pids) <= 1
    assert programs.none_is_left()


async def test_no_process_is_left_behind_when_the_supervisor_is_cancelled() -> None:
    programs = SupervisedPrograms([HUNG], [HUNG])
    running = asyncio.create_task(programs.run())
    await programs.up(2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert programs.none_is_left()


async def test_a_program_that_cannot_be_started_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(FileNotFoundError):
        WorkerProcess(lambda _descriptor: ["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
