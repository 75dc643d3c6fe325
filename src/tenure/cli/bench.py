"""`tenure bench`: what this machine and a database give, measured through the public API."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tenure import __version__
from tenure.cli.database import connected, opened, run
from tenure.cli.output import Exit, print_error, print_json, print_line, print_table, progress
from tenure.stores.database_url import shown_url

if TYPE_CHECKING:
    from tenure.cli.bench_workloads import Benchmark, Round

WORKLOADS = ("enqueue-one", "enqueue-many", "drain", "latency")
TERMINATED = 128 + signal.SIGTERM
HEADINGS = ("workload", "jobs", "median", "rounds")


def _workloads(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """The named workloads, each once."""
    choice = click.Choice(WORKLOADS)
    return tuple(dict.fromkeys(str(choice.convert(name.strip(), param, ctx)) for name in value.split(",")))


@click.command()
@click.option(
    "--database",
    metavar="URL",
    help="Measure this database; TENURE_DATABASE is ignored.  [default: a new SQLite file, which is removed]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--workloads",
    metavar="A,B",
    callback=_workloads,
    default=",".join(WORKLOADS),
    show_default="all",
    help="What to measure.",
)
@click.option("--jobs", type=click.IntRange(10, 10_000_000), default=10_000, show_default=True, help="Jobs per round.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="The median of these counts.")
@click.option("--samples", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Jobs of latency.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Jobs run at a time."
)
def bench(*, database: str | None, as_json: bool, workloads: tuple[str, ...], rounds: int, **effort: int) -> int:
    """Measure what this machine and a database give.

    Jobs that do nothing are enqueued and run through the public API, by one worker in the same process. A figure is
    shown only if all of its jobs succeeded.

    \b
    enqueue-one   jobs enqueued one by one, a tenth of --jobs
    enqueue-many  jobs enqueued by enqueue_many
    drain         queued jobs run to their end, by the database's clock
    latency       from the enqueue to the first line of a job, with an idle worker

    In a database that you name, jobs and their events are written to a new queue, bench- and a random name, and a few
    rows about the worker. Nothing else is changed or removed. Finished jobs stay until they are pruned.
    """
    from tenure.cli.bench_workloads import Benchmark, Effort

    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        address = f"sqlite:///{folder}/jobs.db" if database is None else database
        benchmark = Benchmark(address, Effort(**effort))
        run(_prepare(address, own=database is None))
        if not as_json:
            _print_target(benchmark, own=database is None)
        try:
            with progress(as_json=as_json) as shown:
                found = run(_measure(benchmark, workloads, rounds, show=shown.show))
        except asyncio.CancelledError:
            print_error("terminated")
            return TERMINATED
    if as_json:
        print_json(_facts(benchmark, found, rounds=rounds, own=database is None))
    else:
        _print_results(found)
    return Exit.PROBLEMS if any(_problem(one) for one in found.values()) else Exit.OK


async def _prepare(address: str, *, own: bool) -> None:
    """A file of our own is migrated; a database that is not migrated is refused before anything is written."""
    if own:
        async with connected(address) as store:
            await store.migrate()
    async with opened(address):
        pass


async def _measure(benchmark: Benchmark, workloads: Sequence[str], rounds: int, *, show: Any) -> dict[str, list[Round]]:
    """Rounds of all workloads, interleaved, so that a busy minute of the machine affects all of them."""
    from tenure.cli.bench_workloads import Workload

    task = asyncio.current_task()
    assert task is not None, "a coroutine of a running loop has a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found: dict[str, list[Round]] = {name: [] for name in workloads}
    for number in range(rounds):
        for place, name in enumerate(workloads):
            share = (number * len(workloads) + place) / (rounds * len(workloads))
            show(f"round {number + 1} of {rounds}: {name}", share)
            found[name].append(await benchmark.run(Workload(name)))
    return found


def _print_target(benchmark: Benchmark, *, own: bool) -> None:
    if own:
        print_line(f"measuring a new SQLite file in {tempfile.gettempdir()}, which is removed at the end")
    else:
        address = shown_url(benchmark.database)
        print_line(f"measuring {address}: jobs go to queue {benchmark.queue}, and stay until they are pruned")


def _print_results(found: dict[str, list[Round]]) -> None:
    print_table(HEADINGS, [(name, rounds[0].jobs, _median(rounds), _spread(rounds)) for name, rounds in found.items()])
    for name, rounds in found.items():
        if problem := _problem(rounds):
            print_line(f"{name} has no figure: {problem}", level="error")


def _problem(rounds: Sequence[Round]) -> str | None:
    """One failed round leaves its workload without a figure."""
    return next((one.problem for one in rounds if one.problem is not None), None)


def _median(rounds: Sequence[Round]) -> str:
    from tenure.cli.bench_workloads import medians

    if _problem(rounds):
        return "none"
    figures = medians(one.figures for one in rounds)
    if "jobs_per_second" in figures:
        return f"{figures['jobs_per_second']:,.0f} jobs/s"
    return ", ".join(f"{name.removesuffix('_ms')} {value:,.1f} ms" for name, value in figures.items())


def _spread(rounds: Sequence[Round]) -> str:
    """The least and the most of the first figure."""
    if _problem(rounds):
        return "-"
    values = [next(iter(one.figures.values())) for one in rounds]
    digits = 0 if "jobs_per_second" in rounds[0].figures else 1
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def _facts(benchmark: Benchmark, found: dict[str, list[Round]], *, rounds: int, own: bool) -> dict[str, Any]:
    from tenure.cli.bench_workloads import medians

    return {
        "ok": not any(_problem(of_one) for of_one in found.values()),
        "database": "a new SQLite file" if own else shown_url(benchmark.database),
        "queue": benchmark.queue,
        "rounds": rounds,
        "effort": benchmark.effort,
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "tenure": __version__,
        },
        "workloads": [
            {
                "workload": name,
                "jobs": of_one[0].jobs,
                "figures": {} if _problem(of_one) else medians(one.figures for one in of_one),
                "rounds": [one.figures for one in of_one if one.problem is None],
                "problem": _problem(of_one),
            }
            for name, of_one in found.items()
        ],
    }
