"""The same work through tenure and through its peers, in one interleaved run.

Run as `make bench-peers` or `python -m benchmarks.peers --help`. In every round each workload goes through all peers in
turn, so that a busy minute of the machine hits all of them; the order changes from round to round. Medians are shown,
and the ratios of medians. Only ratios of one run mean anything. All figures (JSON) and a plot (SVG) are written too.

Jobs do nothing but count themselves. A drain lasts from the first claim (by the database's clock where the peer writes
it down, else from the first body) until every job is recorded as done. A latency is from the start of the enqueue call
to the first line of the body, one job each 20 ms. WAL is that of the whole server.

The workloads `default1` and `default2` (jobs that wait 1 ms), `long1` and `long2` (100 ms) are drains by workers with
the settings that each peer's own command has, on the standard event loop. CPU is that of the workers and the server.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.cells import run_cell
from benchmarks.peers.environments import ENVIRONMENTS, NotInstalled, environment_for, versions
from benchmarks.peers.figures import Cell, figures_table, plot, ratios_table, reasons, summarise
from benchmarks.peers.places import NoPlace, place, postgres_server
from benchmarks.peers.roster import PEERS, TENURE, TENURE_SQLITE, WORKLOADS, Peer
from benchmarks.peers.targets import targets_table
from tests.support.postgres import PostgresServer

Installed = dict[str, tuple[Path, dict[str, str]]]


def main() -> None:
    options = _options()
    peers = [peer for peer in PEERS if peer.name in options.peers]
    installed, missing = _install(peers)
    cells: list[Cell] = [
        Cell(name, workload, 0, reason=reason) for name, reason in missing.items() for workload in options.workloads
    ]
    taking_part = [peer for peer in peers if peer.name in installed]
    facts: dict[str, object] = {"python": platform.python_version(), "rounds": options.rounds}
    # An interrupt ends the measuring, and what was measured until then is reported.
    with postgres_server() as server, suppress(KeyboardInterrupt):
        facts["postgres"] = server.version
        for number, workload, peer in _schedule(taking_part, options):
            cells.append(_cell(peer, workload, number, installed, server, options))
            _print(cells[-1], options.rounds)
    _write(options.json, cells, installed, facts, peers, options)
    print(_report(cells, installed, facts, peers, options))
    if any(cell.peer == TENURE.name and cell.figures == {} for cell in cells):
        raise SystemExit("tenure's own cells are not complete")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000, help="at most; slow peers and single enqueues get fewer")
    parser.add_argument("--limit-seconds", type=float, default=120.0, help="for one cell's timed part")
    parser.add_argument("--json", type=Path, default=ENVIRONMENTS / "results.json", metavar="PATH")
    return parser.parse_args()


def _install(peers: list[Peer]) -> tuple[Installed, dict[str, str]]:
    installed: Installed = {}
    missing: dict[str, str] = {}
    for peer in peers:
        print(f"environment of {peer.title}", file=sys.stderr)
        try:
            python = environment_for(peer)
            installed[peer.name] = python, versions(peer, python)
        except NotInstalled as reason:
            missing[peer.name] = f"not installed: {reason}"
    return installed, missing


def _schedule(peers: list[Peer], options: argparse.Namespace) -> Iterator[tuple[int, str, Peer]]:
    """Round by round, and in a round workload by workload. Each round begins with another peer."""
    for number in range(1, options.rounds + 1):
        turn = (number - 1) % max(1, len(peers))
        for workload in options.workloads:
            for peer in peers[turn:] + peers[:turn]:
                yield number, workload, peer


def _cell(
    peer: Peer, workload: str, number: int, installed: Installed, server: PostgresServer, options: argparse.Namespace
) -> Cell:
    python, _ = installed[peer.name]
    jobs = peer.jobs(workload, options.jobs)
    limit_seconds = options.limit_seconds
    try:
        with place(peer.backend, server) as empty:
            return run_cell(
                peer, workload, python=python, place=empty, jobs=jobs, number=number, limit_seconds=limit_seconds
            )
    except NoPlace as reason:
        return Cell(peer.name, workload, number, reason=str(reason))


def _print(cell: Cell, rounds: int) -> None:
    figures = ", ".join(f"{name} {value:,.1f}" for name, value in cell.figures.items() if value is not None)
    shown = figures or cell.reason
    print(f"round {cell.round} of {rounds}, {cell.workload}, {cell.peer}: {shown}", file=sys.stderr, flush=True)


def _report(
    cells: list[Cell], installed: Installed, facts: dict[str, object], peers: list[Peer], options: argparse.Namespace
) -> str:
    titles = {peer.name: peer.title for peer in peers}
    summary = summarise(cells)
    on_postgres = {peer.name: peer.title for peer in peers if peer.backend == "postgres"}
    others = {peer.name: peer.title for peer in peers if peer.backend != "postgres"}
    rivals = [name for name in on_postgres if name != TENURE.name]
    about = f"PostgreSQL {facts['postgres']}, Python {facts['python']}"
    parts = [
        f"{about}, medians (least to most) of {facts['rounds']} rounds.",
        figures_table(summary, titles),
    ]
    for base, against in ((TENURE, titles), (TENURE_SQLITE, others)):
        if base.name in titles:
            parts.append(f"{base.title}, its median over each peer's:\n\n{ratios_table(summary, base.name, against)}")
    parts.append(f"Targets:\n\n{targets_table(summary, titles, rivals=rivals)}")
    parts.append("\n".join(_configured(peer, installed, cells, options) for peer in peers if peer.name in installed))
    if unmeasured := reasons(cells, titles):
        parts.append("Not measured:\n\n" + "\n".join(f"- {line}" for line in unmeasured))
    return "\n\n".join(parts)


def _configured(peer: Peer, installed: Installed, cells: list[Cell], options: argparse.Namespace) -> str:
    """A line on a peer's versions, configuration, and numbers of jobs."""
    _, found = installed[peer.name]
    chosen = next((cell.configuration for cell in cells if cell.peer == peer.name and cell.configuration), "never ran")
    jobs = ", ".join(f"{workload} {peer.jobs(workload, options.jobs):,}" for workload in options.workloads)
    there = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"- **{peer.title}** ({there}): {chosen}. Jobs: {jobs}."


def _write(
    path: Path,
    cells: list[Cell],
    installed: Installed,
    facts: dict[str, object],
    peers: list[Peer],
    options: argparse.Namespace,
) -> None:
    summary = summarise(cells)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        **facts,
        "versions": {name: found for name, (_, found) in installed.items()},
        "jobs": {p.name: {workload: p.jobs(workload, options.jobs) for workload in options.workloads} for p in peers},
        "medians": {
            peer.name: {key: spread.median for (name, key), spread in summary.items() if name == peer.name}
            for peer in peers
        },
        "cells": [asdict(cell) for cell in cells],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    drawing = path.with_suffix(".svg")
    drawing.write_text(plot(summary, {p.name: p.title for p in peers}, {p.name: p.backend for p in peers}))
    print(f"written to {path} and {drawing}", file=sys.stderr)


if __name__ == "__main__":
    main()
