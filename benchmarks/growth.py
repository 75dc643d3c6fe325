"""How cost grows: claim latency and drain rate as finished jobs, queued jobs, claimers, payloads and queues grow.

Run as `python -m benchmarks.growth --help`. By default it fills databases to a hundredth of the full counts, and the
report names the scale; `--scale 1` is the full run, which takes hours and tens of gigabytes. Each cell drains the same
number of fresh jobs by claim, start and complete through the store, without user code; rounds follow each other on one
database, and medians are shown. It writes a table (Markdown), all figures (JSON) and a plot (SVG) to the folder that
--out names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from benchmarks.claimers import Drain, divided, drain
from benchmarks.filling import CLIENT, Filler, filler_for, origin, payload_of
from benchmarks.gauges import LOOK_SECONDS
from benchmarks.growth_plots import Chart, Line, drawn
from benchmarks.growth_report import TITLES, Cell, Series, allowance, by_series, figures, growths, markdown
from tenure.cli.bench_workloads import percentile
from tenure.stores import store_for
from tenure.stores.contract import EnqueueRequest
from tests.support.postgres import OTHERS, PostgresServer

QUEUE = "growth"
SMALL_BYTES = 100
QUIET_SECONDS_MAX = 30.0
CELL_BYTES_MAX = 400_000_000
"""Cells with large payloads have fewer jobs, so that their bytes fit."""
CROWD_JOBS = 20
"""The jobs of each of many queues that are not drained."""
ADD_BATCH = 1000

PAGES = """
select coalesce(sum(
    heap_blks_hit + heap_blks_read
    + coalesce(idx_blks_hit + idx_blks_read, 0)
    + coalesce(toast_blks_hit + toast_blks_read, 0)
    + coalesce(tidx_blks_hit + tidx_blks_read, 0)), 0)
from pg_statio_user_tables
where schemaname = 'tenure'
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurement of one cell: what fills its database, and what is drained."""

    cell: Cell
    claimers: int
    payload_bytes: int = SMALL_BYTES
    queues: tuple[str, ...] = (QUEUE,)
    crowd: tuple[str, ...] = ()
    """Queues that have jobs before the drain."""


@dataclass
class Run:
    """One run of the chosen series."""

    options: argparse.Namespace
    folder: Path
    server: PostgresServer | None
    cells: list[Cell] = field(default_factory=list)

    async def run(self) -> None:
        for store in self.options.stores:
            for series in map(Series, self.options.series):
                await self._series(store, series)

    async def _series(self, store: str, series: Series) -> None:
        """A series that fills a database uses the same one for all cells; otherwise each cell has a new one."""
        plans = list(plans_of(store, series, self.options))
        if series in (Series.FINISHED, Series.QUEUED):
            async with self._database(store) as url:
                filler, held = filler_for(url), 0
                for plan in plans:
                    await self._fill(filler, plan.cell.at - held, finished=series is Series.FINISHED)
                    held = plan.cell.at
                    await self._measure(url, plan)
        else:
            for plan in plans:
                async with self._database(store) as url:
                    await self._measure(url, plan)

    @asynccontextmanager
    async def _database(self, store: str) -> AsyncIterator[str]:
        if store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                yield await _migrated(f"sqlite:///{folder}/jobs.db")
            return
        assert self.server is not None, "cells on PostgreSQL have a server"
        url = await _migrated(self.server.create_database())
        try:
            yield url
        finally:
            self.server.drop_database(url)

    async def _fill(self, filler: Filler, count: int, *, finished: bool) -> None:
        began = time.monotonic()
        await filler.fill(count, queue=QUEUE, payload=payload_of(SMALL_BYTES), finished=finished)
        if count:
            seconds = time.monotonic() - began
            _note(f"filled with {count:,} {'finished' if finished else 'queued'} jobs in {seconds:,.0f} s")

    async def _measure(self, url: str, plan: Plan) -> None:
        cell = plan.cell
        await _enqueue(url, plan.crowd, plan, CROWD_JOBS * len(plan.crowd))
        for number in range(self.options.rounds):
            await _enqueue(url, plan.queues, plan, cell.jobs)
            before = await _pages(url)
            work = Drain(url, plan.queues, cell.jobs, plan.claimers, self.options.batch)
            drained = await asyncio.to_thread(drain, work)
            pages = await _pages(url)
            seconds = drained.ended - drained.began
            assert drained.jobs == cell.jobs, f"{drained.jobs} of {cell.jobs} jobs were drained"
            cell.rounds.append(
                {
                    "claim_p50_ms": percentile(drained.claims_ms, 0.5),
                    "claim_p99_ms": percentile(drained.claims_ms, 0.99),
                    "claims": float(len(drained.claims_ms)),
                    "jobs_per_second": cell.jobs / seconds,
                    "job_us": seconds / cell.jobs * 1e6,
                    **({} if pages is None or before is None else {"pages_per_job": (pages - before) / cell.jobs}),
                }
            )
            rate = cell.rounds[-1]["jobs_per_second"]
            _note(f"{cell.store}, {cell.series} {cell.at:,}, round {number + 1}: {rate:,.0f} jobs/s")
        self.cells.append(cell)


def plans_of(store: str, series: Series, options: argparse.Namespace) -> Iterator[Plan]:
    """The cells of a series, from the smallest to the largest."""
    counts: dict[Series, Sequence[int]] = {
        Series.FINISHED: [int(count * options.scale) for count in options.finished],
        Series.QUEUED: [int(count * options.scale) for count in options.queued],
        Series.WORKERS: options.workers,
        Series.PAYLOAD: options.payloads,
        Series.QUEUES: options.queues,
        Series.SERVED: options.queues,
    }
    for at in sorted(set(counts[series])):
        claimers = at if series is Series.WORKERS else options.claimers
        payload_bytes = at if series is Series.PAYLOAD else SMALL_BYTES
        jobs = max(options.batch, min(options.jobs, CELL_BYTES_MAX // payload_bytes))
        plan = Plan(Cell(store, series, at, jobs, how(jobs, claimers, options.batch)), claimers, payload_bytes)
        if series is Series.QUEUES:
            plan = replace(plan, crowd=tuple(f"neighbour-{number}" for number in range(at - 1)))
        elif series is Series.SERVED:
            queues = tuple(f"{QUEUE}-{number}" for number in range(at))
            plan = replace(plan, queues=queues, crowd=queues)
        yield plan


def how(jobs: int, claimers: int, batch: int) -> str:
    """The claimers of the cell as text.

    >>> how(5000, 1, 20)
    '5,000 jobs, 20 a claim; 1 process'
    """
    shares = divided(claimers, os.cpu_count() or 1)
    tasks = f" with {shares[0]} claimers each, as tasks" if shares[0] > 1 else ""
    return f"{jobs:,} jobs, {batch} a claim; {len(shares)} process{'es' * (len(shares) > 1)}{tasks}"


async def _migrated(url: str) -> str:
    store = store_for(url)
    await store.migrate()
    await store.close()
    return url


async def _enqueue(url: str, queues: Sequence[str], plan: Plan, count: int) -> None:
    """Enqueue this many jobs, spread evenly over the queues."""
    store, payload = store_for(url), payload_of(plan.payload_bytes)
    batch = max(1, min(ADD_BATCH, CELL_BYTES_MAX // 20 // plan.payload_bytes))
    await store.open()
    try:
        for start in range(0, count, batch):
            numbers = range(start, min(start + batch, count))
            await store.enqueue(
                [EnqueueRequest(origin(queues[number % len(queues)], payload), CLIENT) for number in numbers]
            )
    finally:
        await store.close()


async def _pages(url: str) -> int | None:
    """How many pages of tenure's tables were read so far; exact once no other connection is open."""
    if url.startswith("sqlite"):
        return None
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(QUIET_SECONDS_MAX):
            while await connection.fetchval(OTHERS):  # noqa: ASYNC110 - the server has no event for us
                await asyncio.sleep(LOOK_SECONDS)
        await connection.execute("select pg_stat_force_next_flush()")
        return int(await connection.fetchval(PAGES))
    finally:
        await connection.close()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def facts(options: argparse.Namespace, server: PostgresServer | None) -> list[str]:
    """The facts about the run: machine, versions, sizes."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    share = "the full counts" if options.scale == 1 else f"{options.scale:g} of the full counts: a quick run"
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.system()} on {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
        + (f", PostgreSQL {server.version} with fsync, 1 GB of shared buffers" if server is not None else "")
        + f". Filled to {share}. {options.rounds} rounds a cell, medians; load of the machine at the end "
        f"(1, 5, 15 min): {load}. Claims are of {options.batch} jobs, claimed and started in one statement; their "
        "time is that of the call. Pages are those of tenure's tables, indexes included, that PostgreSQL looked at.",
    ]


CHARTS = {
    "claim_p99_ms": "Claim p99, ms; dashed: what may become of the first",
    "jobs_per_second": "Drained jobs per second",
    "pages_per_job": "Pages that PostgreSQL looked at for each job",
}


def charts(cells: Sequence[Cell]) -> Iterator[Chart]:
    """For each series the p99 of claims with its limit (dashed), the rate, and the pages."""
    for series in Series:
        mine = [found for (_, of), found in by_series(cells).items() if of is series]
        for name, title in CHARTS.items():
            lines = [
                Line(found[0].store, found[0].store, [(cell.at, cell.figures[name]) for cell in found])
                for found in mine
                if name in found[0].figures
            ]
            if name == "claim_p99_ms" and series not in (Series.WORKERS, Series.PAYLOAD):
                lines += [_allowed(found) for found in mine]
            yield Chart(title, TITLES[series], lines)


def _allowed(cells: Sequence[Cell]) -> Line:
    """The limit of p99 in each cell, from the first cell's p99."""
    first = cells[0]
    points = [(c.at, first.figures["claim_p99_ms"] * allowance(c.series, first, c)[0]) for c in cells]
    return Line(first.store, first.store, points, dashed=True)


async def run(options: argparse.Namespace) -> int:
    """Run all series; the exit code, which is 1 if a cost grew beyond its limit."""
    with tempfile.TemporaryDirectory(prefix="tenure-growth-") as folder, ExitStack() as stack:
        server = None
        if "postgres" in options.stores:
            settings = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
            server = stack.enter_context(PostgresServer(fsync=True, settings=settings))
        one = Run(options, Path(folder), server)
        await one.run()
        machine = facts(options, server)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(figures(one.cells, machine), indent=2) + "\n", encoding="utf-8")
    (options.out / "growth.md").write_text(markdown(one.cells, machine), encoding="utf-8")
    (options.out / "growth.svg").write_text(drawn([*charts(one.cells)]), encoding="utf-8")
    print(markdown(one.cells, machine))
    return int(any(not growth.within for mine in by_series(one.cells).values() for growth in growths(mine)))


def options_given() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/growth"), help="folder for the results")
    parser.add_argument("--stores", nargs="+", default=["postgres", "sqlite"], choices=["postgres", "sqlite"])
    parser.add_argument("--series", nargs="+", default=[*map(str, Series)], choices=[*map(str, Series)])
    parser.add_argument("--scale", type=float, default=0.01, help="share of the finished and queued counts to fill")
    parser.add_argument("--finished", type=int, nargs="+", default=[0, 1_000_000, 10_000_000])
    parser.add_argument("--queued", type=int, nargs="+", default=[0, 1_000_000, 5_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--payloads", type=int, nargs="+", default=[100, 10_000, 200_000], help="in bytes")
    parser.add_argument("--queues", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--jobs", type=int, default=5_000, help="drained in each round of each cell")
    parser.add_argument("--batch", type=int, default=20, help="jobs a claim asks for")
    parser.add_argument("--claimers", type=int, default=1, help="except where it is they who grow")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    sys.exit(asyncio.run(run(options_given())))


if __name__ == "__main__":
    main()
