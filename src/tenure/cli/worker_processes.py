"""`tenure worker --processes N`: supervised worker processes with one summary and one metrics endpoint."""

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
from tenure.cli.stop_signals import StopSignals
from tenure.cli.worker import WorkerCommandOptions, in_background, log_stopped, process_gauges, show_summary
from tenure.cli.worker_summary import WorkerSummary
from tenure.errors import StoreUnavailable
from tenure.observe.metrics import RESTARTS
from tenure.observe.snapshot import CounterValue, MetricsSnapshot, MetricsTotals
from tenure.seams import SYSTEM
from tenure.stores import Store, store_for
from tenure.workers.supervisor.channel import WorkerReport
from tenure.workers.supervisor.process import WorkerProcess
from tenure.workers.supervisor.supervisor import (
    ABORT_SECONDS_MAX,
    STOP_MARGIN_SECONDS,
    Ending,
    Supervisor,
    SupervisorResult,
)

if TYPE_CHECKING:
    from tenure.observe.database_gauges import GaugeValue

SUPERVISOR_SECONDS = 5.0
"""The supervisor's own time after the limits of its worker processes."""
OUTPUT_BYTES = 65_536

log = logging.getLogger("tenure.worker")


def worker_command(
    options: WorkerCommandOptions, *, channel: int, again: bool, with_details: bool = True
) -> Sequence[str]:
    """The command of one worker process, with the descriptor of its control channel.

    A replacement (`again`) waits for a database that cannot be reached, as the replaced worker would have done. The
    details at the start are the same for all processes, so that one of them logs them.
    """
    given = ["--wait-for-database"] if again else []
    given += [] if with_details else ["--no-details"]
    return [sys.executable, "-m", "tenure", "worker", f"--supervised={channel}", *given, *options.arguments()]


async def supervise(options: WorkerCommandOptions, processes: int) -> int:
    """Run this many worker processes until they are stopped; the exit code."""
    is_drawn = sys.stderr.isatty() and not options.as_json
    output = ForwardedOutput() if is_drawn else None
    summary, metrics = WorkerSummary(), SupervisorMetrics()

    def start(number: int, again: bool) -> WorkerProcess:
        errors = None if output is None else output.descriptor
        with_details = number == 1 and not again
        return WorkerProcess(
            lambda channel: worker_command(options, channel=channel, again=again, with_details=with_details),
            output=errors if sys.stdout.isatty() else None,
            errors=errors,
        )

    def record(number: int, report: WorkerReport) -> None:
        summary.record(number, report)
        metrics.record(number, report)

    supervisor = Supervisor(start, record, processes=processes, grace_seconds=options.grace_seconds, seams=SYSTEM)
    signals = StopSignals(
        stop_seconds_max=options.grace_seconds + STOP_MARGIN_SECONDS + SUPERVISOR_SECONDS,
        abort_seconds_max=ABORT_SECONDS_MAX + SUPERVISOR_SECONDS,
        seams=SYSTEM,
    )
    started_at_seconds = SYSTEM.clock.monotonic_seconds()
    try:
        async with metrics.serve(options.metrics, supervisor):
            log.info("supervisor started, pid %d, %d worker processes", os.getpid(), processes)
            signals.listen(stop=lambda: _stop(supervisor), abort=lambda: _abort(supervisor))
            async with in_background(show_summary(summary, as_json=options.as_json)):
                result = await supervisor.run()
    finally:
        if output is not None:
            output.close()
    if result.ending is not Ending.START_FAILED:
        log_stopped(summary, SYSTEM.clock.monotonic_seconds() - started_at_seconds)
    return exit_code(result, signals)


def exit_code(result: SupervisorResult, signals: StopSignals) -> int:
    """The exit code of the supervisor."""
    if result.ending is Ending.START_FAILED and result.exit_code > 0:
        return result.exit_code
    if result.ending in (Ending.STOPPED, Ending.ABORTED):
        return signals.exit_code
    return Exit.PROBLEMS


def _stop(supervisor: Supervisor) -> None:
    log.info("stopping: worker processes finish or release their running jobs")
    supervisor.stop()


def _abort(supervisor: Supervisor) -> None:
    log.warning("aborting: worker processes exit now")
    supervisor.abort()


class SupervisorMetrics:
    """The sum of the metrics of all worker processes. They report once a second; the counts of a killed process since
    its last report are lost."""

    def __init__(self) -> None:
        self._totals = MetricsTotals()
        self._database: str | None = None

    def record(self, number: int, report: WorkerReport) -> None:
        """A report of the process of this number."""
        if report.metrics is not None:
            self._totals.record(number, report.worker, report.metrics.unpack())
        self._database = report.database or self._database

    def serve(self, address: str | None, supervisor: Supervisor) -> AbstractAsyncContextManager[None]:
        """Serve them at this address, if any."""

        def gauges() -> list[GaugeValue]:
            up = [report for slot in supervisor.slots if (report := slot.report) is not None]
            return process_gauges(processes=len(up), running=sum(report.running for report in up))

        def restarts() -> MetricsSnapshot:
            return MetricsSnapshot((CounterValue(RESTARTS.name, (), sum(slot.restarts for slot in supervisor.slots)),))

        sources = (self._totals.snapshot, restarts)
        return serve_metrics(address, sources=sources, process_gauges=gauges, open_store=self._open_store)

    async def _open_store(self) -> Store:
        """Open the database that the workers report: the supervisor does not import the app."""
        if self._database is None:
            raise StoreUnavailable("no worker process has reported its database yet")
        store = store_for(self._database)
        await store.open()
        return store


class ForwardedOutput:
    """A pipe for the output of worker processes, which would otherwise overwrite the live table."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._forward)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        self._forward()
        os.close(self._read)
        os.close(self.descriptor)

    def _forward(self) -> None:
        try:
            while written := os.read(self._read, OUTPUT_BYTES):
                sys.stderr.write(written.decode(errors="replace"))
        except BlockingIOError:
            sys.stderr.flush()
