"""`tenure worker --processes N`: several worker processes, kept alive and shown together."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from tenure.cli.metrics import serve_metrics
from tenure.cli.output import Exit
from tenure.cli.stop_signals import Stopping
from tenure.cli.worker import Wishes, beside, say_stopped, shown, standing
from tenure.cli.worker_summary import Summary
from tenure.errors import StoreUnavailable
from tenure.observe.metrics import RESTARTS
from tenure.observe.snapshot import CounterValue, MetricsSnapshot, MetricsTotals
from tenure.seams import SYSTEM
from tenure.stores import Store, store_for
from tenure.workers.supervisor.channel import WorkerReport
from tenure.workers.supervisor.process import WorkerProcess
from tenure.workers.supervisor.supervisor import ABORT_SECONDS_MOST, STOP_MARGIN_SECONDS, Ending, Outcome, Supervisor

if TYPE_CHECKING:
    from tenure.observe.database_gauges import GaugeValue

OWN_SECONDS = 5.0
"""What the supervisor itself may take once the limits of its workers are over."""
OUTPUT_BYTES = 65_536

log = logging.getLogger("tenure.worker")


def command(wanted: Wishes, *, line: int, again: bool) -> Sequence[str]:
    """The command that runs one worker process, with its end of the line.

    One that takes the place of another rides out a database that is away, as the other would have.
    """
    options = ["--wait-for-database"] if again else []
    return [sys.executable, "-m", "tenure", "worker", f"--supervised={line}", *options, *wanted.arguments()]


async def supervise(wanted: Wishes, processes: int) -> int:
    """Run that many workers to their end; the exit code."""
    drawn = sys.stderr.isatty() and not wanted.as_json
    output = Output() if drawn else None
    summary, counted = Summary(), Counted()

    def start(_number: int, again: bool) -> WorkerProcess:
        errors = None if output is None else output.descriptor
        return WorkerProcess(
            lambda line: command(wanted, line=line, again=again),
            output=errors if sys.stdout.isatty() else None,
            errors=errors,
        )

    def heard(number: int, report: WorkerReport) -> None:
        summary.heard(number, report)
        counted.heard(number, report)

    supervisor = Supervisor(start, heard, processes=processes, grace_seconds=wanted.grace_seconds, seams=SYSTEM)
    stopping = Stopping(
        stop_seconds_most=wanted.grace_seconds + STOP_MARGIN_SECONDS + OWN_SECONDS,
        abort_seconds_most=ABORT_SECONDS_MOST + OWN_SECONDS,
        seams=SYSTEM,
    )
    since = SYSTEM.clock.monotonic_seconds()
    try:
        async with counted.serve_metrics(wanted.metrics, supervisor):
            log.info("supervisor starts %d worker processes, pid %d", processes, os.getpid())
            stopping.heed(stop=lambda: _stop(supervisor), abort=lambda: _abort(supervisor))
            async with beside(shown(summary, as_json=wanted.as_json)):
                outcome = await supervisor.run()
    finally:
        if output is not None:
            output.close()
    if outcome.ending is not Ending.NEVER_UP:
        say_stopped(summary, SYSTEM.clock.monotonic_seconds() - since)
    return exit_code(outcome, stopping)


def exit_code(outcome: Outcome, stopping: Stopping) -> int:
    """The exit code of the whole for how it ended."""
    if outcome.ending is Ending.NEVER_UP and outcome.exit_code > 0:
        return outcome.exit_code
    if outcome.ending in (Ending.STOPPED, Ending.ABORTED):
        return stopping.exit_code
    return Exit.PROBLEMS


def _stop(supervisor: Supervisor) -> None:
    log.info("stopping: the workers claim no more, and finish or hand back what runs")
    supervisor.stop()


def _abort(supervisor: Supervisor) -> None:
    log.warning("aborting: the workers end now")
    supervisor.abort()


class Counted:
    """The metrics of all processes that there ever were. They report once a second; what one that is killed has
    counted since its last report is not known."""

    def __init__(self) -> None:
        self._totals = MetricsTotals()
        self._database: str | None = None

    def heard(self, number: int, report: WorkerReport) -> None:
        """What the process of that number has counted so far."""
        if report.metrics is not None:
            self._totals.record(number, report.worker, report.metrics.unpack())
        self._database = report.database or self._database

    def serve_metrics(self, wanted: str | None, supervisor: Supervisor) -> AbstractAsyncContextManager[None]:
        """Serve them, if that is wanted."""

        def here() -> list[GaugeValue]:
            up = [report for slot in supervisor.slots if (report := slot.report) is not None]
            return standing(processes=len(up), running=sum(report.running for report in up))

        def restarts() -> MetricsSnapshot:
            return MetricsSnapshot((CounterValue(RESTARTS.name, (), sum(slot.restarts for slot in supervisor.slots)),))

        return serve_metrics(
            wanted, sources=(self._totals.snapshot, restarts), process_gauges=here, open_store=self._open_store
        )

    async def _open_store(self) -> Store:
        """The workers know where their jobs are; we do not import their program."""
        if self._database is None:
            raise StoreUnavailable("no worker process has said yet where its jobs are")
        store = store_for(self._database)
        await store.open()
        return store


class Output:
    """What the workers write while a table is drawn. It goes through us, or it would be written across the table."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._pass_on)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        self._pass_on()
        os.close(self._read)
        os.close(self.descriptor)

    def _pass_on(self) -> None:
        try:
            while written := os.read(self._read, OUTPUT_BYTES):
                sys.stderr.write(written.decode(errors="replace"))
        except BlockingIOError:
            sys.stderr.flush()
