"""The same workflows on tenure, DBOS, Absurd and pgtask, in one interleaved run.

Run as `python -m benchmarks.workflows --help`. In every round each workload goes through all engines in turn, on new
databases of one server; the order changes from round to round. Medians are shown, and ratios of medians. Only ratios of
one run mean anything. All figures are written as JSON, too.

- `many`: 200 runs of 10 steps each; `long`: one run of 1,000 steps. Steps do nothing. The time is from the call that
  starts the runs until the engine has recorded the end of each. WAL is that of the whole server.
- `signal`: 60 runs wait for 3 s; then one signal each 50 ms, from the start of the call that sends it to the first
  line after the wait.
- `children`: one run that spawns 500 children that do nothing, and awaits all results.

Client and worker are one process.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.cells import run_driver
from benchmarks.peers.environments import ENVIRONMENTS, NotInstalled, environment_for, versions
from benchmarks.peers.figures import (
    MEASURES,
    Cell,
    Summary,
    best,
    figures_table,
    ratio,
    ratios_table,
    reasons,
    summarise,
    table,
)
from benchmarks.peers.places import place, postgres_server
from benchmarks.peers.roster import Peer
from benchmarks.workflows.drivers.protocol import WORKLOADS
from benchmarks.workflows.roster import ENGINES, TARGETS
from tests.support.postgres import PostgresServer


def main() -> None:
    options = _options()
    engines = [engine for engine in ENGINES if engine.name in options.engines]
    pythons = {engine.name: _installed(engine) for engine in engines}
    cells: list[Cell] = []
    # An interrupt ends the measuring, and what was measured until then is reported.
    with postgres_server() as server, suppress(KeyboardInterrupt):
        for number, workload, engine in _schedule(engines, options.workloads, options.rounds):
            cells.append(_cell(engine, workload, number, pythons[engine.name], server, options.limit_seconds))
            _print_cell(cells[-1], options.rounds)
        version = server.version
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=2) + "\n")
    print(f"PostgreSQL {version}, Python {platform.python_version()}, {options.rounds} rounds: medians (least to most)")
    print(_report(engines, cells, pythons))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workflows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--engines", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-seconds", type=float, default=120.0, help="for one cell's timed part")
    parser.add_argument("--json", type=Path, default=ENVIRONMENTS / "workflows.json", metavar="PATH")
    return parser.parse_args()


def _installed(engine: Peer) -> Path:
    print(f"environment of {engine.title}", file=sys.stderr)
    try:
        return environment_for(engine)
    except NotInstalled as reason:
        raise SystemExit(f"{engine.title} is not installed: {reason}; leave it out with --engines") from reason


def _schedule(engines: Sequence[Peer], workloads: Sequence[str], rounds: int) -> Iterator[tuple[int, str, Peer]]:
    """Round by round, and in a round workload by workload. Each round begins with another engine."""
    for number in range(1, rounds + 1):
        turn = (number - 1) % len(engines)
        for workload in workloads:
            for engine in [*engines[turn:], *engines[:turn]]:
                yield number, workload, engine


def _cell(engine: Peer, workload: str, number: int, python: Path, server: PostgresServer, limit_seconds: float) -> Cell:
    with place(engine.backend, server) as empty:
        module = f"benchmarks.workflows.drivers.{engine.environment}"
        command = [str(python), "-m", module, workload, empty.url, "--limit-seconds", str(limit_seconds)]
        return run_driver(Cell(engine.name, workload, number), command, limit_seconds=limit_seconds)


def _print_cell(cell: Cell, rounds: int) -> None:
    figures = ", ".join(f"{name} {value:,.1f}" for name, value in cell.figures.items() if value is not None)
    line = f"round {cell.round} of {rounds}, {cell.workload}, {cell.peer}: {figures or cell.reason}"
    print(line, file=sys.stderr, flush=True)


def _report(engines: Sequence[Peer], cells: Sequence[Cell], pythons: Mapping[str, Path]) -> str:
    summary, titles = summarise(cells), {engine.name: engine.title for engine in engines}
    parts = ["", figures_table(summary, titles)]
    for ours, backend in (("tenure", "postgres"), ("tenure-sqlite", "sqlite")):
        others = [engine.name for engine in engines if engine.backend == backend and engine.name != ours]
        if ours in titles and others:
            shown = {name: titles[name] for name in (ours, *others)}
            parts += ["", ratios_table(summary, ours, shown), "", _targets(summary, ours, others, titles)]
    parts += ["", *(_configured(engine, pythons[engine.name], cells) for engine in engines)]
    return "\n".join([*parts, *(f"- not measured: {line}" for line in reasons(cells, titles))])


def _targets(summary: Summary, ours: str, others: Sequence[str], titles: Mapping[str, str]) -> str:
    rows = []
    for key, direction, target, named in TARGETS:
        [measure] = (measure for measure in MEASURES if measure.key == key)
        against = best(summary, others, measure) if named is None else named
        found = None if against is None else ratio(summary, ours, against, key)
        if against is not None and found is not None:
            is_met = found >= target if direction == "≥" else found <= target
            rows.append(
                [measure.title, titles[against], f"{direction} {target}", f"{found:.2f}", "met" if is_met else "missed"]
            )
    return table([titles[ours], "against", "target ratio", "measured", ""], rows)


def _configured(engine: Peer, python: Path, cells: Sequence[Cell]) -> str:
    found = ", ".join(f"{name} {version}" for name, version in versions(engine, python).items())
    chosen = next((cell.configuration for cell in cells if cell.peer == engine.name and cell.configuration), "not run")
    return f"- {engine.title} ({found}): {chosen}"


if __name__ == "__main__":
    main()
