"""`tenure worker`: run the jobs of an app, in this process or in several supervised ones."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.app_loader import load_app
from tenure.cli.database import connected, run
from tenure.cli.logging_setup import LEVELS, configure_logging
from tenure.cli.metrics import serve_metrics
from tenure.cli.output import counted
from tenure.cli.stop_signals import ABORT, STOP, StopSignals
from tenure.cli.worker_details import warn_of_undeclared_queues, worker_details
from tenure.cli.worker_summary import WorkerSummary, counts_text, duration
from tenure.seams import SYSTEM
from tenure.workers.concurrency import BLOCKING, TASKS
from tenure.workers.supervisor import channel
from tenure.workers.supervisor.channel import ControlChannel, WorkerReport

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.observe.database_gauges import GaugeValue
    from tenure.workers.worker import Worker

PROCESSES_MAX = 256
STOP_MARGIN_SECONDS = 30.0
"""A stop that takes longer than the grace time and this margin exits the process."""
ABORT_SECONDS_MAX = 5.0
GC_THRESHOLDS = (50_000, 20, 20)

log = logging.getLogger("tenure.worker")


class WorkerCommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command, which a supervisor passes on to its worker processes."""

    target: str
    queues: str
    concurrency: int | None
    grace_seconds: float
    poll_seconds: float
    scan_seconds: float
    database: str | None
    wait_for_database: bool
    log_level: str
    as_json: bool
    metrics: str | None = None

    def arguments(self) -> list[str]:
        """The options as arguments of the command."""
        given = [
            f"--queues={self.queues}",
            f"--grace-seconds={self.grace_seconds!r}",
            f"--poll-seconds={self.poll_seconds!r}",
            f"--scan-seconds={self.scan_seconds!r}",
            f"--log-level={self.log_level}",
        ]
        given += [f"--concurrency={self.concurrency}"] if self.concurrency is not None else []
        given += [f"--database={self.database}"] if self.database is not None else []
        given += ["--wait-for-database"] if self.wait_for_database else []
        given += ["--log-format=json"] if self.as_json else []
        given += [f"--metrics={self.metrics}"] if self.metrics is not None else []
        return [*given, "--", self.target]


@click.command()
@click.argument("target", metavar="MODULE:APP", required=False)
@click.option("--app", metavar="MODULE:APP", help="Another way to name the app.")
@click.option(
    "--queues", default="*", show_default=True, metavar="A,B", help="Queues to serve; * is all that the app declares."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    help=f"Jobs at a time, per process.  [default: {TASKS}, or {BLOCKING} if any runs in a thread or process]",
)
@click.option(
    "--processes", type=click.IntRange(1, PROCESSES_MAX), default=1, show_default=True, help="Worker processes."
)
@click.option(
    "--grace-seconds", type=float, default=30.0, show_default=True, help="Time for running jobs to finish at a stop."
)
@click.option("--poll-seconds", type=float, default=1.0, show_default=True, help="Poll interval of an idle worker.")
@click.option("--scan-seconds", type=float, default=5.0, show_default=True, help="Interval of the recovery scan.")
@click.option("--database", metavar="URL", help="Use this database instead of the app's.")
@click.option("--wait-for-database", is_flag=True, help="Wait if the database cannot be reached at the start.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Log nothing below this level.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines to read, or a JSON object each.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json.")
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics at /metrics.  [default host: 127.0.0.1]"
)
@click.option("--supervised", type=int, hidden=True)
@click.option("--no-details", is_flag=True, hidden=True)
def worker(
    *,
    target: str | None,
    app: str | None,
    processes: int,
    supervised: int | None,
    no_details: bool,
    log_format: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Run the jobs of an app until it is stopped.

    MODULE is a module or a .py file. APP can be omitted if the module has only one app.

    The first SIGTERM or SIGINT stops the worker: it claims no more jobs, waits for running jobs for the grace time,
    releases the rest, and exits with 0. A signal within two seconds is the same stop; a later one aborts: exit code 130
    (SIGINT) or 143 (SIGTERM). SIGHUP stops, and never aborts.
    """
    if (target is None) == (app is None):
        raise click.UsageError("name the app once: tenure worker MODULE:APP, such as shop.jobs:app or shop/jobs.py:app")
    options = WorkerCommandOptions(target=target or app or "", as_json=as_json or log_format == "json", **given)
    configure_logging(options.log_level, as_json=options.as_json)
    if processes > 1 and supervised is None:
        from tenure.cli.worker_processes import supervise

        return run(supervise(options, processes))
    loaded = load_app(options.target, database=options.database)
    reduce_garbage_collection()
    supervisor = None if supervised is None else ControlChannel(supervised, SYSTEM)
    return run(_run_worker(loaded, options, supervisor, with_details=not no_details))


def reduce_garbage_collection() -> None:
    """Exempt what is loaded by now from garbage collection, and collect less often: a worker creates many short-lived
    objects that need no collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _run_worker(
    app: App, options: WorkerCommandOptions, supervisor: ControlChannel | None, *, with_details: bool
) -> int:
    """Run one worker to its end; the exit code."""
    worker = app.worker(
        queues=tuple(name.strip() for name in options.queues.split(",")),
        concurrency=options.concurrency,
        grace_seconds=options.grace_seconds,
        poll_seconds=options.poll_seconds,
        scan_seconds=options.scan_seconds,
        metrics=options.metrics is not None,
        wait_for_database=options.wait_for_database,
    )
    async with connected(app.database):
        pass  # Refuses an invalid URL before the worker waits for the database.
    signals = StopSignals(
        stop_seconds_max=options.grace_seconds + STOP_MARGIN_SECONDS,
        abort_seconds_max=ABORT_SECONDS_MAX,
        seams=SYSTEM,
    )

    def stop() -> None:
        if not worker.stopping:
            worker.stop()

    def abort() -> None:
        stop()
        log.warning("aborting: releasing %s without waiting", counted(worker.running, "running job"))
        worker.stop()

    if supervisor is not None:
        supervisor.start_receiving(lambda command: signals.request(ABORT if command == channel.ABORT else STOP))
    signals.listen(stop=stop, abort=abort)
    async with serve_metrics(
        options.metrics if supervisor is None else None,
        sources=(worker.metrics, app.metrics),
        process_gauges=lambda: process_gauges(processes=1, running=worker.running),
        open_store=app.open_store,
    ):
        await _run_until_stopped(app, worker, options, supervisor, with_details=with_details)
    signals.work_ended()
    return signals.exit_code


def process_gauges(*, processes: int, running: int) -> list[GaugeValue]:
    """The gauges of this command's own processes."""
    from tenure.observe.database_gauges import GaugeValue
    from tenure.observe.metrics import PROCESSES, RUNNING

    return [GaugeValue(PROCESSES.name, (), processes), GaugeValue(RUNNING.name, (), running)]


async def _run_until_stopped(
    app: App, worker: Worker, options: WorkerCommandOptions, supervisor: ControlChannel | None, *, with_details: bool
) -> None:
    started_at_seconds = SYSTEM.clock.monotonic_seconds()
    send_metrics = supervisor is not None and options.metrics is not None

    def report() -> WorkerReport:
        return WorkerReport(
            worker=worker.name,
            pid=os.getpid(),
            running=worker.running,
            counts={str(name): number for name, number in worker.counts.items()},
            uptime_seconds=SYSTEM.clock.monotonic_seconds() - started_at_seconds,
            metrics=(worker.metrics() + app.metrics()).pack() if send_metrics else None,
            database=app.database if send_metrics else None,
        )

    summary = WorkerSummary(report)

    async def display() -> None:
        """Display only once the worker claims: the first report to a supervisor means that it is up."""
        await worker.started()
        if with_details:
            warn_of_undeclared_queues(app, options.queues)
        if supervisor is None:
            await show_summary(summary, as_json=options.as_json)
        else:
            await supervisor.send_reports(report)

    async with in_background(display()):
        await worker.run(start_details=worker_details(app, worker) if with_details else None)
    if supervisor is not None:
        supervisor.send(report())
    log_stopped(summary, SYSTEM.clock.monotonic_seconds() - started_at_seconds)


def show_summary(summary: WorkerSummary, *, as_json: bool) -> Coroutine[Any, Any, None]:
    """A live table on a terminal; a log line a minute elsewhere and with --json."""
    if as_json or not sys.stderr.isatty():
        return summary.write_lines(SYSTEM.clock)
    from rich.console import Console

    return summary.draw(Console(stderr=True, highlight=False), SYSTEM.clock)


def log_stopped(summary: WorkerSummary, seconds: float) -> None:
    """The last log line, with all counts."""
    counts = summary.counts()
    log.info("stopped after %s: %s", duration(seconds), counts_text(counts), extra={"counts": dict(counts)})


@asynccontextmanager
async def in_background(display: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run this during the block. If it fails, the block continues."""
    task = SYSTEM.spawn.task(display, name="tenure-summary")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("showing the summary failed", exc_info=error)
