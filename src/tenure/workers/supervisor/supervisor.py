"""Starts worker processes, replaces those that end, and stops them all.

The supervisor claims nothing and knows no store. When a worker process dies, recovery in any other worker takes its
jobs over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import StrEnum

import msgspec

from tenure.seams import Seams
from tenure.workers.supervisor.channel import ABORT, STOP, WorkerReport, receive_reports
from tenure.workers.supervisor.process import WorkerProcess, describe_exit

RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.5, 30.0
EARLY_SECONDS = 10.0
"""An exit is early if the process was up for less than this."""
EARLY_EXITS_MAX = 5
POLL_SECONDS = 0.05
STOP_MARGIN_SECONDS = 35.0
"""What a worker may take beyond its grace time before it is killed. It exits by itself a little earlier."""
ABORT_SECONDS_MAX = 10.0
LAST_REPORT_SECONDS = 1.0

log = logging.getLogger("tenure.workers.supervisor")

StartProcess = Callable[[int, bool], WorkerProcess]
"""Starts the worker process of this slot. The second argument is whether it replaces another one."""

OnReport = Callable[[int, WorkerReport], None]
"""Called with each report of the process in this slot."""


class Ending(StrEnum):
    """How the supervisor ended."""

    STOPPED = "stopped"
    ABORTED = "aborted"
    START_FAILED = "start_failed"
    """The first process exited before it was up; its exit code gives the reason."""
    GAVE_UP = "gave_up"
    """The processes of all slots exited early, again and again."""
    UNCLEAN = "unclean"
    """At the stop a process failed, or had to be killed."""


class SupervisorResult(msgspec.Struct, frozen=True):
    """How the supervisor ended, and the exit code of the process that decided it, if one did."""

    ending: Ending
    exit_code: int = 0


class ProcessSlot:
    """One of the N worker processes, and those that replaced it. `report` is the last report of the current one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: WorkerProcess | None = None
        self.report: WorkerReport | None = None
        self.restarts = 0
        self.early_exits = 0
        self.up = asyncio.Event()

    def fill(self, process: WorkerProcess) -> None:
        self.process, self.report = process, None
        self.up.clear()

    def receive(self, report: WorkerReport) -> None:
        self.report = report
        self.up.set()

    def clear(self) -> None:
        """Kill the process, and reap it."""
        if self.process is not None:
            self.process.kill()
            self.process.close()
        self.process, self.report = None, None


class Supervisor:
    """Runs `processes` workers until it is stopped, or until none of them stays up."""

    def __init__(
        self, start: StartProcess, on_report: OnReport, *, processes: int, grace_seconds: float, seams: Seams
    ) -> None:
        self._start, self._on_report, self._seams = start, on_report, seams
        self._grace_seconds = grace_seconds
        self.slots = [ProcessSlot(number) for number in range(1, processes + 1)]
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._result: SupervisorResult | None = None
        self._unclean_exit_code = 0

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop every process as a worker stops: no more claims, the grace time, the rest released."""
        self._stopping.set()
        self._send(STOP)

    def abort(self) -> None:
        """End every process now."""
        self._stopping.set()
        self._aborting.set()
        self._send(ABORT)

    def kill(self) -> None:
        """Kill all processes that still run."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()

    async def run(self) -> SupervisorResult:
        """Supervise until the end. No process is left running, also after a cancellation."""
        spawn = self._seams.spawn.task
        first, *others = self.slots
        supervising = {spawn(self._supervise(first), name=f"tenure-slot-{first.number}")}
        try:
            # An error at start that every process would meet is logged once: the others start after the first is up.
            await self._wait_for_first(first, supervising)
            if not self.stopping:
                supervising |= {spawn(self._supervise(slot), name=f"tenure-slot-{slot.number}") for slot in others}
            limit = spawn(self._kill_at_limit(), name="tenure-supervisor-limit")
            await asyncio.wait(supervising)
            limit.cancel()
            for task in supervising:
                task.result()
        finally:
            self.kill()
            for task in supervising:
                task.cancel()
            await asyncio.wait(supervising)
        return self._result or self._stopped()

    def _stopped(self) -> SupervisorResult:
        if self._aborting.is_set():
            return SupervisorResult(Ending.ABORTED)
        ending = Ending.UNCLEAN if self._unclean_exit_code else Ending.STOPPED
        return SupervisorResult(ending, self._unclean_exit_code)

    async def _wait_for_first(self, first: ProcessSlot, supervising: set[asyncio.Task[None]]) -> None:
        up = self._seams.spawn.task(first.up.wait(), name="tenure-first-up")
        stopped = self._seams.spawn.task(self._stopping.wait(), name="tenure-stopped-early")
        await asyncio.wait({up, stopped, *supervising}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        stopped.cancel()

    async def _supervise(self, slot: ProcessSlot) -> None:
        """Start a process, wait for its exit, and start the next one, until the supervisor stops."""
        while not self._stopping.is_set():
            try:
                slot.fill(self._start(slot.number, slot.restarts > 0))
            except OSError as problem:
                # No memory, process or file descriptor left: that may pass, and the slot must not stay empty.
                log.error("worker %d not started: %s", slot.number, problem)
                await self._wait_to_restart(slot, 0, 1, early=True)
                continue
            try:
                exit_code, up_seconds = await self._wait_for_exit(slot)
            finally:
                was_up, pid = slot.report is not None, slot.process.pid if slot.process else 0
                slot.clear()
            if self._stopping.is_set():
                if exit_code and not self._aborting.is_set():
                    self._unclean_exit_code = exit_code
                    log.error("worker %d (pid %d) %s while stopping", slot.number, pid, describe_exit(exit_code))
                return
            if not was_up and slot.restarts == 0 and slot is self.slots[0] and exit_code:
                self._end(SupervisorResult(Ending.START_FAILED, exit_code))
                return
            await self._wait_to_restart(slot, pid, exit_code, early=up_seconds < EARLY_SECONDS)

    async def _wait_to_restart(self, slot: ProcessSlot, pid: int, exit_code: int, *, early: bool) -> None:
        slot.restarts += 1
        slot.early_exits = slot.early_exits + 1 if early else 0
        if self._none_stays_up():
            log.error("worker %d (pid %d) %s, for the %dth time in a row soon after its start; giving up",
                      slot.number, pid, describe_exit(exit_code), slot.early_exits)  # fmt: skip
            self._end(SupervisorResult(Ending.GAVE_UP, exit_code))
            return
        most = min(RESTART_SECONDS_MIN * 2 ** max(0, slot.early_exits - 1), RESTART_SECONDS_MAX)
        seconds = most * (0.75 + self._seams.random.fraction() / 2)
        log.warning("worker %d (pid %d) %s; restarting in %.1f s",
                    slot.number, pid, describe_exit(exit_code), seconds)  # fmt: skip
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _none_stays_up(self) -> bool:
        """Whether the processes of all slots that were started exit early, again and again."""
        return all(slot.early_exits >= EARLY_EXITS_MAX for slot in self.slots if slot.process or slot.restarts)

    async def _wait_for_exit(self, slot: ProcessSlot) -> tuple[int, float]:
        """Receive reports until the process exits. Returns its exit code, and for how many seconds it was up."""
        process, clock = slot.process, self._seams.clock
        assert process is not None, "a slot is filled before its process is waited for"
        receiving = self._seams.spawn.task(self._receive(slot, process), name=f"tenure-reports-{slot.number}")
        if self.stopping:
            process.send(STOP)
        up_at_seconds: float | None = None
        try:
            while (exit_code := process.exit_code) is None:
                if up_at_seconds is None and slot.report is not None:
                    up_at_seconds = clock.monotonic_seconds()
                if up_at_seconds is not None and clock.monotonic_seconds() - up_at_seconds >= EARLY_SECONDS:
                    slot.early_exits = 0
                await clock.sleep(POLL_SECONDS)
        finally:
            # The last report may still be in the socket.
            await asyncio.wait({receiving}, timeout=LAST_REPORT_SECONDS)
            receiving.cancel()
        return exit_code, 0.0 if up_at_seconds is None else clock.monotonic_seconds() - up_at_seconds

    async def _receive(self, slot: ProcessSlot, process: WorkerProcess) -> None:
        async for report in receive_reports(process.connection):
            if slot.report is None:
                log.info("worker %d is up (pid %d)", slot.number, process.pid)
            slot.receive(report)
            self._on_report(slot.number, report)

    async def _kill_at_limit(self) -> None:
        """Kill what has not exited a bounded time after the stop."""
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._aborting.wait(), self._grace_seconds + STOP_MARGIN_SECONDS)
        if self._aborting.is_set():
            await self._seams.clock.sleep(ABORT_SECONDS_MAX)
        for slot in self.slots:
            if slot.process is not None:
                log.error("worker %d (pid %d) did not exit in time; killing it", slot.number, slot.process.pid)
        self.kill()

    def _end(self, result: SupervisorResult) -> None:
        self._result = self._result or result
        self.stop()

    def _send(self, command: bytes) -> None:
        for slot in self.slots:
            if slot.process is not None:
                slot.process.send(command)
