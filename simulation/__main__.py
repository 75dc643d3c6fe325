"""Runs many seeds and reports what they found: `python -m simulation --seeds 2000 --processes 2`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: TID251 - a tool, and no role of the house
from multiprocessing import get_context  # noqa: TID251

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.cluster import Result
from simulation.faults import Fault, Options
from simulation.runs import simulate_all, simulate_span
from simulation.shrink import arguments, shrunk
from simulation.tally import Tally
from tenure.seams import SYSTEM

CHUNK = 50
LINES = 20
FAILURES_MAX = 5
FAULTS = [fault.value for fault in Fault]


@click.command()
@click.option("--seed", type=int, help="Make just this run, and show it.")
@click.option("--seeds", type=int, default=2000, show_default=True, help="How many runs to make.")
@click.option("--first", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--processes", type=int, default=2, show_default=True)
@click.option("--store", type=click.Choice(["model", "sqlite"]), default="model", show_default=True)
@click.option("--nodes", type=click.IntRange(1), default=Options().nodes, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=Options().jobs, show_default=True)
@click.option("--faulty-seconds", type=float, default=Options().faulty_seconds, show_default=True)
@click.option("--request-faults", type=float, default=Options().request_faults, show_default=True)
@click.option("--process-faults", type=int, default=Options().process_faults, show_default=True)
@click.option("--without", type=click.Choice(FAULTS), multiple=True, help="A kind of fault to leave out.")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
def main(seed: int | None, seeds: int, first: int, processes: int, as_json: bool, **facts: object) -> None:
    """Run the real workers on virtual time with seeded faults, and check every invariant after every step."""
    facts["without"] = tuple(Fault(str(fault)) for fault in facts["without"])  # type: ignore[attr-defined]
    options = msgspec.convert(facts, Options)
    if seed is not None:
        [result] = simulate_all([seed], options)
        click.echo(json.dumps(msgspec.to_builtins(result), indent=2))
        sys.exit(0 if result.problem is None else 1)
    started = SYSTEM.clock.monotonic_seconds()
    tally = Tally()
    for result in _results(range(first, first + seeds), options, processes=processes, quiet=as_json):
        tally.add(result)
    _print_tally(tally, minutes=(SYSTEM.clock.monotonic_seconds() - started) / 60, as_json=as_json)
    sys.exit(1 if tally.failed or tally.missing() else 0)


def _results(seeds: Sequence[int], options: Options, *, processes: int, quiet: bool) -> Iterator[Result]:
    """Every run's result as it ends, with a progress bar on a terminal and a line per twentieth elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bounds = [(start, min(start + CHUNK, seeds[-1] + 1)) for start in range(seeds[0], seeds[-1] + 1, CHUNK)]
    with (
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("simulating", total=len(seeds))
        done = 0
        for chunk in as_completed([pool.submit(simulate_span, low, high, options) for low, high in bounds]):
            yield from chunk.result()
            before, done = done, done + len(chunk.result())
            bar.advance(task, len(chunk.result()))
            if not console.is_terminal and before * LINES // len(seeds) < done * LINES // len(seeds):
                console.print(f"{done} of {len(seeds)} runs made")


def _print_tally(tally: Tally, *, minutes: float, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**tally.facts(), "minutes": round(minutes, 2)}, indent=2))
        return
    click.echo(
        f"{tally.runs} runs, {tally.operations} requests, {sum(tally.faults.values())} faults, {minutes:.1f} min"
    )
    click.echo("the smallest run had: " + ", ".join(f"{many} {what}" for what, many in tally.least.items()))
    for name, counts in (("faults", tally.faults), ("seen", tally.seen)):
        click.echo(f"{name}: " + ", ".join(f"{what} {many}" for what, many in Counter(counts).most_common()))
    for what in tally.missing():
        click.echo(f"MISSING: {what} never happened, so that nothing was shown about it")
    for failure in tally.failed[:FAILURES_MAX]:
        small = shrunk(failure)
        click.echo(f"FAILED: seed {failure.seed}: {small.problem}\n  again with: {arguments(small)}")


if __name__ == "__main__":
    main()
