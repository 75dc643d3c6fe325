"""`tenure bench`: what this machine and a database give, measured through the API that programs use."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenure import __version__
from tenure.cli.database import connected, opened, run, without_password
from tenure.cli.output import Exit, complain, progress, say, say_json, say_table
from tenure.measuring.records import Effort, Workload

if TYPE_CHECKING:
    from tenure.measuring.rounds import Result, Summary, Told
    from tenure.measuring.workloads import Bench

PROCESSES_MAX = 64
TERMINATED = 128 + signal.SIGTERM
HEADINGS = ("workload", "processes", "jobs", "median", "rounds")
MEBIBYTE = 2**20


def _workloads(ctx: click.Context, param: click.Parameter, value: str) -> tuple[Workload, ...]:
    """The workloads that are named, each once."""
    choice = click.Choice([str(one) for one in Workload])
    return tuple(dict.fromkeys(Workload(choice.convert(name.strip(), param, ctx)) for name in value.split(",")))


def _processes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """The numbers of processes, each once."""
    number: Any = click.IntRange(1, PROCESSES_MAX)
    return tuple(dict.fromkeys(int(number.convert(part.strip(), param, ctx)) for part in value.split(",")))


@click.command()
@click.option(
    "--database",
    metavar="URL",
    help="Measure on this one, whatever TENURE_DATABASE says.  [default: a new SQLite file, which is removed]",
)
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
@click.option(
    "--workloads",
    metavar="A,B",
    callback=_workloads,
    default=",".join(Workload),
    show_default="all",
    help="What to measure.",
)
@click.option(
    "--processes",
    metavar="N,M",
    callback=_processes,
    default="1,2",
    show_default=True,
    help="How many worker processes share drain and cycle.",
)
@click.option("--jobs", type=click.IntRange(10, 10_000_000), default=10_000, show_default=True, help="Jobs in a round.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="The median of these counts.")
@click.option("--samples", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Jobs of latency.")
@click.option(
    "--running", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Jobs that beat at once."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Jobs at a time, a process.",
)
def bench(
    *,
    database: str | None,
    as_json: bool,
    workloads: tuple[Workload, ...],
    processes: tuple[int, ...],
    rounds: int,
    **effort: int,
) -> int:
    """Measure what this machine and a database give.

    Jobs that do nothing are queued and run through the API that programs use, by worker processes of their own. A
    figure is shown only if all of its jobs were seen to have succeeded.

    \b
    enqueue-one   queued one by one, a tenth of the jobs
    enqueue-many  queued by enqueue_many
    drain         queued jobs run to their end
    cycle         queued while they are run
    latency       from the enqueue call to the first line of the job, with an idle worker
    heartbeats    of many running jobs that one worker holds, and its memory

    In a database that you name it writes jobs and their events to a queue of its own, bench- and a random name, and a
    few rows about its workers. It changes and removes nothing else. A job is durable, and so are these: finished ones
    stay until old jobs are pruned.
    """
    from tenure.measuring.rounds import summarised
    from tenure.measuring.workloads import Bench

    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        address = f"sqlite:///{folder}/jobs.db" if database is None else database
        made = Bench(address, effort=Effort(**effort), folder=Path(folder))
        run(_made_sure(made, own=database is None))
        if not as_json:
            _say_what_is_written(made, own=database is None)
        try:
            with progress(as_json=as_json) as shown:
                results = run(_measured(made, workloads, processes, rounds, told=shown.show))
        except asyncio.CancelledError:
            complain("tenure: terminated")
            return TERMINATED
    found = summarised(results)
    if as_json:
        say_json(_facts(made, found, rounds=rounds, own=database is None))
    else:
        _say(found)
    return Exit.PROBLEMS if any(one.problem for one in found) else Exit.OK


async def _made_sure(made: Bench, *, own: bool) -> None:
    """A file of our own is given its schema; a database that is not migrated is refused before anything is written."""
    if own:
        async with connected(made.database) as store:
            await store.migrate()
    async with opened(made.database):
        pass


async def _measured(
    made: Bench, workloads: Sequence[Workload], processes: Sequence[int], rounds: int, *, told: Told
) -> list[Result]:
    """All rounds. Terminated or interrupted, it takes its workers with it."""
    from tenure.measuring.rounds import measure_rounds, variants

    task = asyncio.current_task()
    assert task is not None, "this is a coroutine of a running loop"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measure_rounds(made, variants(workloads, processes), rounds=rounds, told=told)


def _say_what_is_written(made: Bench, *, own: bool) -> None:
    if own:
        say(f"measuring on a new SQLite file in {tempfile.gettempdir()}, which is removed at the end")
    else:
        address = without_password(made.database)
        say(f"measuring on {address}: jobs are written to its queue {made.queue}, and stay there until they are pruned")


def _say(found: Sequence[Summary]) -> None:
    say_table(HEADINGS, [(one.workload, one.processes, one.jobs, _median(one), _spread(one)) for one in found])
    for one in found:
        if one.problem is not None:
            say(f"{one.workload} has no figure: {one.problem}", level="error")


def _median(one: Summary) -> str:
    figures = one.figures
    if one.problem is not None:
        return "none"
    if one.workload is Workload.LATENCY:
        return ", ".join(f"{name.removesuffix('_ms')} {value:,.1f} ms" for name, value in figures.items())
    if one.workload is Workload.HEARTBEATS:
        beats, due = figures["heartbeats_per_second"], figures["due_per_second"]
        return f"{beats:,.0f} of {due:,.0f} heartbeats/s; {figures['rss_bytes'] / MEBIBYTE:,.0f} MiB"
    return f"{figures['jobs_per_second']:,.0f} jobs/s"


def _spread(one: Summary) -> str:
    """The least and the most that a round gave, of the figure that is named first."""
    values = [next(iter(figures.values())) for figures in one.rounds]
    digits = 1 if one.workload is Workload.LATENCY else 0
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}" if values else "-"


def _facts(made: Bench, found: Sequence[Summary], *, rounds: int, own: bool) -> dict[str, Any]:
    return {
        "ok": not any(one.problem for one in found),
        "database": "a new SQLite file" if own else without_password(made.database),
        "queue": made.queue,
        "rounds": rounds,
        "effort": made.effort,
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "tenure": __version__,
        },
        "workloads": found,
    }
