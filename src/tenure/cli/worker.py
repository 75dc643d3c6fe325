"""`tenure worker`: run the jobs of an app, in this process or in several that are kept alive."""

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

from tenure.cli.app_loader import ModuleBroken, find_app
from tenure.cli.database import connected, run
from tenure.cli.logging_setup import LEVELS, set_up_logs
from tenure.cli.metrics import serve_metrics
from tenure.cli.output import Exit, complain
from tenure.cli.stop_signals import ABORT, STOP, Stopping
from tenure.cli.worker_summary import Summary, duration, in_words
from tenure.errors import StoreUnavailable
from tenure.seams import SYSTEM
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workers.supervisor import channel
from tenure.workers.supervisor.channel import ControlChannel, WorkerReport

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.observe.database_gauges import GaugeValue
    from tenure.workers.worker import Worker

PROCESSES_MAX = 256
STOP_MARGIN_SECONDS = 30.0
"""What a stop may take beyond the grace time before the process ends itself, whatever keeps it."""
ABORT_SECONDS_MOST = 5.0
COLLECT_AFTER = (50_000, 20, 20)

log = logging.getLogger("tenure.worker")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for, as it is also handed on to the processes of a supervisor."""

    target: str
    queues: str
    concurrency: int
    grace_seconds: float
    poll_seconds: float
    scan_seconds: float
    database: str | None
    wait_for_database: bool
    log_level: str
    as_json: bool
    metrics: str | None = None

    def arguments(self) -> list[str]:
        """The same wishes as arguments of the command."""
        given = [
            f"--queues={self.queues}",
            f"--concurrency={self.concurrency}",
            f"--grace-seconds={self.grace_seconds!r}",
            f"--poll-seconds={self.poll_seconds!r}",
            f"--scan-seconds={self.scan_seconds!r}",
            f"--log-level={self.log_level}",
        ]
        given += [f"--database={self.database}"] if self.database is not None else []
        given += ["--wait-for-database"] if self.wait_for_database else []
        given += ["--json"] if self.as_json else []
        given += [f"--metrics={self.metrics}"] if self.metrics is not None else []
        return [*given, "--", self.target]


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", default="default", show_default=True, metavar="A,B", help="Queues to take jobs from.")
@click.option("--concurrency", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Jobs at a time.")
@click.option("--processes", type=click.IntRange(1, PROCESSES_MAX), default=1, show_default=True)
@click.option(
    "--grace-seconds", type=float, default=30.0, show_default=True, help="What running jobs are given at a stop."
)
@click.option("--poll-seconds", type=float, default=1.0, show_default=True, help="How often an idle worker looks.")
@click.option("--scan-seconds", type=float, default=5.0, show_default=True, help="How often lost jobs are looked for.")
@click.option("--database", metavar="URL", help="Use this database, whatever the app says.")
@click.option(
    "--wait-for-database", is_flag=True, help="Keep trying where the database cannot be reached at the start."
)
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Write the log as JSON lines.")
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Serve /metrics for Prometheus there; for this machine alone without HOST."
)
@click.option("--supervised", type=int, hidden=True)
def worker(*, processes: int, supervised: int | None, **wishes: Any) -> int:
    """Run the jobs of an app until told to stop.

    MODULE is a module or a .py file; APP may be left out where there is only one.

    A first SIGTERM or SIGINT stops it: no more claims, running jobs may finish within the grace time, the rest is
    handed back, and the exit code is 0. A second one aborts: exit code 130 (SIGINT) or 143 (SIGTERM).
    """
    wanted = Wishes(**wishes)
    color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    set_up_logs(wanted.log_level, as_json=wanted.as_json, color=color)
    if processes > 1 and supervised is None:
        from tenure.cli.worker_processes import supervise

        return run(supervise(wanted, processes))
    try:
        app = find_app(wanted.target)
    except ModuleBroken as broken:
        click.echo(broken.traceback_text, err=True, nl=False)
        complain(f"tenure: {broken}")
        return Exit.PROBLEMS
    if wanted.database is not None:
        app.database = wanted.database
    collect_less()
    return run(_work(app, wanted, None if supervised is None else ControlChannel(supervised, SYSTEM)))


def collect_less() -> None:
    """What is loaded by now stays as long as the process: the garbage collector need not look at it again and again.
    It also comes less often, since a busy worker makes many objects that soon go by themselves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _work(app: App, wanted: Wishes, line: ControlChannel | None) -> int:
    """Run one worker to its end; the exit code."""
    made = app.worker(
        queues=tuple(name.strip() for name in wanted.queues.split(",")),
        concurrency=wanted.concurrency,
        grace_seconds=wanted.grace_seconds,
        poll_seconds=wanted.poll_seconds,
        scan_seconds=wanted.scan_seconds,
        metrics=wanted.metrics is not None,
    )
    async with connected(app.database):
        pass  # An address that makes no sense is refused here, before anybody waits for it.
    stopping = Stopping(
        stop_seconds_most=wanted.grace_seconds + STOP_MARGIN_SECONDS,
        abort_seconds_most=ABORT_SECONDS_MOST,
        seams=SYSTEM,
    )
    early = asyncio.Event()

    def stop() -> None:
        if not made.stopping:
            _say_stopping(made, wanted)
            made.stop()
        early.set()

    def abort() -> None:
        stop()
        log.warning("aborting: %d jobs are left as they are", made.running)
        made.stop()

    if line is not None:
        line.listen(lambda letter: stopping.ask(ABORT if letter == channel.ABORT else STOP))
    stopping.heed(stop=stop, abort=abort)
    async with serve_metrics(
        wanted.metrics if line is None else None,
        sources=(made.metrics, app.metrics),
        process_gauges=lambda: standing(processes=1, running=made.running),
        open_store=app.open_store,
    ):
        if await _reached(app, early, wait=wanted.wait_for_database):
            await _run(app, made, wanted, line)
    stopping.leave()
    return stopping.exit_code


def standing(*, processes: int, running: int) -> list[GaugeValue]:
    """How things stand in this command, as gauges."""
    from tenure.observe.database_gauges import GaugeValue
    from tenure.observe.metrics import PROCESSES, RUNNING

    return [GaugeValue(PROCESSES.name, (), processes), GaugeValue(RUNNING.name, (), running)]


def _say_stopping(made: Worker, wanted: Wishes) -> None:
    jobs = f"{made.running} jobs run and may take {wanted.grace_seconds:g} s" if made.running else "no job runs"
    log.info("stopping: no more claims; %s", jobs)


async def _reached(app: App, stopped: asyncio.Event, *, wait: bool) -> bool:
    """Open the database once, so that what is wrong with it is said at the start. False where the stop came first."""
    outage = ReconnectBackoff(app.seams)
    while not stopped.is_set():
        try:
            await (await app.open_store()).close()
        except StoreUnavailable as problem:
            if not wait:
                raise
            log.warning("waiting for the database: %s", problem)
            await _first(outage.pause(), stopped.wait())
        else:
            return True
    return False


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = {SYSTEM.spawn.task(wait, name="tenure-either") for wait in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _run(app: App, made: Worker, wanted: Wishes, line: ControlChannel | None) -> None:
    since = SYSTEM.clock.monotonic_seconds()
    counting = line is not None and wanted.metrics is not None

    def current() -> WorkerReport:
        return WorkerReport(
            worker=made.name,
            pid=os.getpid(),
            running=made.running,
            counts={str(name): number for name, number in made.counts.items()},
            uptime_seconds=SYSTEM.clock.monotonic_seconds() - since,
            metrics=(made.metrics() + app.metrics()).pack() if counting else None,
            database=app.database if counting else None,
        )

    summary = Summary(current)
    telling = line.report(current) if line is not None else shown(summary, as_json=wanted.as_json)
    log.info("worker %s starts, pid %d", made.name, os.getpid())
    async with beside(telling):
        await made.run()
    if line is not None:
        line.send(current())
    say_stopped(summary, SYSTEM.clock.monotonic_seconds() - since)


def shown(summary: Summary, *, as_json: bool) -> Coroutine[Any, Any, None]:
    """The live table on a terminal; elsewhere, and beside JSON, a line a minute."""
    if as_json or not sys.stderr.isatty():
        return summary.write_lines(SYSTEM.clock)
    from rich.console import Console

    return summary.draw(Console(stderr=True, highlight=False), SYSTEM.clock)


def say_stopped(summary: Summary, seconds: float) -> None:
    """The last line of the log: what was done in all."""
    counts = summary.counts()
    log.info("stopped after %s: %s", duration(seconds), in_words(counts), extra={"counts": dict(counts)})


@asynccontextmanager
async def beside(telling: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run this beside the work. It ends with the work; should it end before, the work goes on."""
    task = SYSTEM.spawn.task(telling, name="tenure-telling")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the summary could not be shown", exc_info=error)
