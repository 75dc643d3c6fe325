"""Keeps several worker processes alive, passes a stop on to them, and sees them all to their end.

It claims nothing and knows no store: a worker process that dies is replaced, and recovery, which every worker brings
along, takes care of what it held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import StrEnum

import msgspec

from tenure.seams import Seams
from tenure.workers.supervisor.channel import ABORT, STOP, WorkerReport, reports
from tenure.workers.supervisor.process import WorkerProcess, describe_exit

PAUSE_SECONDS_LEAST, PAUSE_SECONDS_MOST = 0.5, 30.0
QUICK_SECONDS = 10.0
"""A process that lived for less than this after it was up died quickly."""
QUICK_DEATHS_MAX = 5
LOOK_SECONDS = 0.05
STOP_MARGIN_SECONDS = 35.0
"""What a worker may take beyond its grace time before it is killed. It ends itself a little earlier than that."""
ABORT_SECONDS_MOST = 10.0

log = logging.getLogger("tenure.workers.supervisor")

Start = Callable[[int, bool], WorkerProcess]
"""Starts the worker process of a slot. The second argument says that it takes the place of another."""

Heard = Callable[[int, WorkerReport], None]
"""Is told what the process in a slot reports."""


class Ending(StrEnum):
    """How the supervisor's work came to its end."""

    STOPPED = "stopped"
    ABORTED = "aborted"
    NEVER_UP = "never_up"
    """The first process ended before it was up; its exit code says why."""
    GAVE_UP = "gave_up"
    """A process could not be kept alive."""
    UNCLEAN = "unclean"
    """Asked to stop, a process did not end as it should, or had to be killed."""


class Outcome(msgspec.Struct, frozen=True):
    """How it ended, and the exit code of the process that it ended with where there is one."""

    ending: Ending
    exit_code: int = 0


class Slot:
    """One place for a worker process. `report` is the last that was heard of the one that holds it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.program: WorkerProcess | None = None
        self.report: WorkerReport | None = None
        self.restarts = 0
        self.quick_deaths = 0
        self.up = asyncio.Event()

    def begin(self, program: WorkerProcess) -> None:
        self.program, self.report = program, None
        self.up.clear()

    def heard(self, report: WorkerReport) -> None:
        self.report = report
        self.up.set()

    def end(self) -> None:
        if self.program is not None:
            self.program.close()
        self.program, self.report = None, None


class Supervisor:
    """Runs `processes` workers until it is told to stop, or until they cannot be kept alive."""

    def __init__(self, start: Start, heard: Heard, *, processes: int, grace_seconds: float, seams: Seams) -> None:
        self._start, self._heard, self._seams = start, heard, seams
        self._grace_seconds = grace_seconds
        self.slots = [Slot(number) for number in range(1, processes + 1)]
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._outcome: Outcome | None = None
        self._unclean = 0

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Have every process stop as a worker does: no more claims, the grace time, the rest handed back."""
        self._stopping.set()
        self._tell(STOP)

    def abort(self) -> None:
        """Have every process end now."""
        self._stopping.set()
        self._aborting.set()
        self._tell(ABORT)

    def kill(self) -> None:
        """End what is left on the spot."""
        for slot in self.slots:
            if slot.program is not None:
                slot.program.kill()

    async def run(self) -> Outcome:
        """Keep them alive until the end; how that came about. No process is left behind, however this is left."""
        spawn = self._seams.spawn.task
        first, *others = self.slots
        keepers = {spawn(self._keep(first), name=f"tenure-keeper-{first.number}")}
        try:
            # A mistake that every process would make is made, and told of, once.
            await self._first_is_up(first, keepers)
            if not self.stopping:
                keepers |= {spawn(self._keep(slot), name=f"tenure-keeper-{slot.number}") for slot in others}
            limit = spawn(self._limit(), name="tenure-supervisor-limit")
            await asyncio.wait(keepers)
            limit.cancel()
            for keeper in keepers:
                keeper.result()
        finally:
            self.kill()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)
        return self._outcome or self._stopped()

    def _stopped(self) -> Outcome:
        if self._aborting.is_set():
            return Outcome(Ending.ABORTED)
        return Outcome(Ending.UNCLEAN if self._unclean else Ending.STOPPED, self._unclean)

    async def _first_is_up(self, first: Slot, keepers: set[asyncio.Task[None]]) -> None:
        up = self._seams.spawn.task(first.up.wait(), name="tenure-first-is-up")
        stopped = self._seams.spawn.task(self._stopping.wait(), name="tenure-stopped-early")
        await asyncio.wait({up, stopped, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        stopped.cancel()

    async def _keep(self, slot: Slot) -> None:
        """Start a process, wait for its end, and start the next, until that is no longer wanted."""
        while not self._stopping.is_set():
            try:
                slot.begin(self._start(slot.number, slot.restarts > 0))
            except OSError as problem:
                # No memory, no process, no file left: that may pass, and the place must not stay empty for ever.
                log.error("worker %d cannot be started: %s", slot.number, problem)
                await self._before_restart(slot, 0, 1, quick=True)
                continue
            try:
                exit_code, lived_seconds = await self._lived(slot)
            finally:
                was_up, pid = slot.report is not None, slot.program.pid if slot.program else 0
                self._end(slot)
            if self._stopping.is_set():
                if exit_code and not self._aborting.is_set():
                    self._unclean = exit_code
                    log.error("worker %d (pid %d) %s while it stopped", slot.number, pid, describe_exit(exit_code))
                return
            if not was_up and slot.restarts == 0 and slot is self.slots[0] and exit_code:
                self._finish(Outcome(Ending.NEVER_UP, exit_code))
                return
            await self._before_restart(slot, pid, exit_code, quick=lived_seconds < QUICK_SECONDS)

    async def _before_restart(self, slot: Slot, pid: int, exit_code: int, *, quick: bool) -> None:
        slot.restarts += 1
        slot.quick_deaths = slot.quick_deaths + 1 if quick else 0
        if slot.quick_deaths >= QUICK_DEATHS_MAX:
            log.error("worker %d (pid %d) %s, the %dth time in a row soon after its start; giving up",
                      slot.number, pid, describe_exit(exit_code), slot.quick_deaths)  # fmt: skip
            self._finish(Outcome(Ending.GAVE_UP, exit_code))
            return
        most = min(PAUSE_SECONDS_LEAST * 2 ** max(0, slot.quick_deaths - 1), PAUSE_SECONDS_MOST)
        seconds = most * (0.75 + self._seams.random.fraction() / 2)
        log.warning(
            "worker %d (pid %d) %s; another takes its place in %.1f s",
            slot.number,
            pid,
            describe_exit(exit_code),
            seconds,
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _lived(self, slot: Slot) -> tuple[int, float]:
        """Listen to a process until it has ended: its exit code, and for how long it was up."""
        program, clock = slot.program, self._seams.clock
        assert program is not None, "a slot is begun before it is kept"
        listening = self._seams.spawn.task(self._listen(slot, program), name=f"tenure-line-{slot.number}")
        if self.stopping:
            program.say(STOP)
        up_at_seconds: float | None = None
        try:
            while (exit_code := program.exit_code) is None:
                if up_at_seconds is None and slot.report is not None:
                    up_at_seconds = clock.monotonic_seconds()
                await clock.sleep(LOOK_SECONDS)
        finally:
            # What it said last may still be on the line.
            await asyncio.wait({listening}, timeout=1.0)
            listening.cancel()
        return exit_code, 0.0 if up_at_seconds is None else clock.monotonic_seconds() - up_at_seconds

    async def _listen(self, slot: Slot, program: WorkerProcess) -> None:
        async for report in reports(program.line):
            if slot.report is None:
                log.info("worker %d is up (pid %d)", slot.number, program.pid)
            slot.heard(report)
            self._heard(slot.number, report)

    def _end(self, slot: Slot) -> None:
        if slot.program is not None:
            slot.program.kill()
        slot.end()

    async def _limit(self) -> None:
        """Once they are told to stop, nobody may take for ever."""
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._aborting.wait(), self._grace_seconds + STOP_MARGIN_SECONDS)
        if self._aborting.is_set():
            await self._seams.clock.sleep(ABORT_SECONDS_MOST)
        for slot in self.slots:
            if slot.program is not None:
                log.error("worker %d (pid %d) did not end in time and is killed", slot.number, slot.program.pid)
        self.kill()

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = self._outcome or outcome
        self.stop()

    def _tell(self, word: bytes) -> None:
        for slot in self.slots:
            if slot.program is not None:
                slot.program.say(word)
