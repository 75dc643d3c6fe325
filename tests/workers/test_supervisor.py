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
from tenure.workers.supervisor.supervisor import Ending, Outcome, Supervisor
from tests.support.child_programs import is_alive
from tests.support.running_command import until

PROGRAM = """
import os, signal, socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
def report(**counts):
    import json
    facts = {"worker": f"w-{os.getpid()}", "pid": os.getpid(), "running": 0, "counts": counts, "uptime_seconds": 0.1}
    line.send(json.dumps(facts).encode() + b"\\n")
"""
OBEDIENT = "report()\nwhile line.recv(1) not in (b's', b'a', b''): pass\nreport(claimed=3, succeeded=3)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport()\ntime.sleep(100)\n"
STUBBORN = "report()\nwhile line.recv(1) not in (b'a', b''): pass\n"
DYING = "report()\nsys.exit(7)\n"
CHATTY = "line.send(b'rubbish\\n{\"worker\": 1}\\n')\n" + OBEDIENT
STILLBORN = "sys.exit(3)\n"


class Stage:
    """A supervisor whose worker processes run these programs: in each slot its own, the last one again and again."""

    def __init__(self, *programs: Sequence[str], grace_seconds: float = 5.0) -> None:
        self._programs = [list(own) for own in programs]
        self.pids: list[int] = []
        self.again: list[bool] = []
        self.heard: list[tuple[int, WorkerReport]] = []
        self.supervisor = Supervisor(
            self._start,
            lambda number, report: self.heard.append((number, report)),
            processes=len(programs),
            grace_seconds=grace_seconds,
            seams=SYSTEM,
        )

    def _start(self, number: int, again: bool) -> WorkerProcess:
        own = self._programs[number - 1]
        source = PROGRAM + (own.pop(0) if len(own) > 1 else own[0])
        program = WorkerProcess(lambda line: [sys.executable, "-S", "-c", source, str(line)])
        self.pids.append(program.pid)
        self.again.append(again)
        return program

    async def up(self, count: int) -> None:
        async def heard() -> bool:
            return len({report.pid for _, report in self.heard}) >= count

        await until(heard)

    async def run(self) -> Outcome:
        return await asyncio.wait_for(self.supervisor.run(), 60)

    def nobody_is_left(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_SECONDS_LEAST", 0.01)


async def stopped_after(stage: Stage, up: int) -> Outcome:
    running = asyncio.create_task(stage.run())
    await stage.up(up)
    stage.supervisor.stop()
    return await running


async def test_all_are_stopped_and_their_last_words_are_heard() -> None:
    stage = Stage([OBEDIENT], [CHATTY])
    assert await stopped_after(stage, 2) == Outcome(Ending.STOPPED)
    assert [report.counts for _, report in stage.heard][-2:] == [{"claimed": 3, "succeeded": 3}] * 2
    assert stage.nobody_is_left()


async def test_a_process_that_dies_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage([DYING, DYING, OBEDIENT], [OBEDIENT])
    with caplog.at_level(logging.WARNING):
        assert await stopped_after(stage, 4) == Outcome(Ending.STOPPED)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0].partition(") ")[2] for line in said] == ["ended with exit code 7"] * 2
    assert sorted(stage.again) == [False, False, True, True]
    assert stage.nobody_is_left()


async def test_one_that_cannot_be_kept_alive_ends_it_all(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage([OBEDIENT], [DYING])
    assert await stage.run() == Outcome(Ending.GAVE_UP, 7)
    assert len(stage.pids) == 1 + supervisor.QUICK_DEATHS_MAX
    assert "giving up" in caplog.text
    assert stage.nobody_is_left()


async def test_one_that_lived_for_a_while_starts_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "QUICK_SECONDS", 0.0)
    stage = Stage([*[DYING] * (2 * supervisor.QUICK_DEATHS_MAX), OBEDIENT])
    assert await stopped_after(stage, 2 * supervisor.QUICK_DEATHS_MAX + 1) == Outcome(Ending.STOPPED)


async def test_a_mistake_that_all_would_make_is_made_once() -> None:
    stage = Stage([STILLBORN], [OBEDIENT], [OBEDIENT])
    assert await stage.run() == Outcome(Ending.NEVER_UP, 3)
    assert len(stage.pids) == 1


async def test_one_that_does_not_heed_a_stop_is_killed_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "STOP_MARGIN_SECONDS", 0.1)
    stage = Stage([DEAF], [OBEDIENT], grace_seconds=0.1)
    assert await stopped_after(stage, 2) == Outcome(Ending.UNCLEAN, -signal.SIGKILL)
    assert "did not end in time and is killed" in caplog.text
    assert stage.nobody_is_left()


async def test_an_abort_is_passed_on_and_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ABORT_SECONDS_MOST", 0.5)
    stage = Stage([STUBBORN], [DEAF], grace_seconds=100)
    running = asyncio.create_task(stage.run())
    await stage.up(2)
    stage.supervisor.stop()
    stage.supervisor.abort()
    assert await running == Outcome(Ending.ABORTED)
    assert stage.nobody_is_left()


async def test_a_stop_before_anything_is_up_is_heeded() -> None:
    stage = Stage([OBEDIENT], [OBEDIENT])
    running = asyncio.create_task(stage.run())
    await asyncio.sleep(0)
    stage.supervisor.stop()
    assert await running == Outcome(Ending.STOPPED)
    assert len(stage.pids) <= 1
    assert stage.nobody_is_left()


async def test_no_process_is_left_behind_when_the_supervisor_is_cancelled() -> None:
    stage = Stage([DEAF], [DEAF])
    running = asyncio.create_task(stage.run())
    await stage.up(2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stage.nobody_is_left()


async def test_a_program_that_cannot_be_started_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(FileNotFoundError):
        WorkerProcess(lambda _line: ["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
