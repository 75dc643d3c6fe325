"""Every workload on SQLite and on PostgreSQL, and the same work by plain SQL.

Run as `python -m benchmarks.suite --help`. Rounds of all variants are interleaved, each on a database of its own, so
that a busy minute of the machine hits all of them; medians are shown. It writes a table (Markdown), all figures (JSON)
and a plot (SVG) to the folder that --out names.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import raw_limit
from benchmarks.gauges import PostgresGauge
from benchmarks.measuring.jobs import app, nothing
from benchmarks.measuring.records import Effort, Gauge, Measured, Unmeasured, Workload, moved, no_gauge
from benchmarks.measuring.rounds import Result, measure_one, variants
from benchmarks.measuring.workloads import Benchmark
from benchmarks.reporting import Variant, figures_of, markdown, plot
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

RAW_QUEUE = "raw"


@dataclass
class Suite:
    """One run of the suite."""

    effort: Effort
    folder: Path
    server: PostgresServer | None
    found: dict[Variant, list[Result]] = field(default_factory=dict)

    async def run(self, wanted: Sequence[Variant], *, rounds: int) -> None:
        for number in range(rounds):
            for variant in wanted:
                print(f"round {number + 1} of {rounds}: {variant.store}, {variant.label}", file=sys.stderr)
                self.found.setdefault(variant, []).append(await self._one(variant))

    async def _one(self, variant: Variant) -> Result:
        """One round, on a new database."""
        if variant.store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                return await self._measured(variant, await _migrated(f"sqlite:///{folder}/jobs.db"), no_gauge)
        assert self.server is not None, "variants on PostgreSQL have a server"
        url = await _migrated(self.server.create_database())
        try:
            return await self._measured(variant, url, PostgresGauge(url))
        finally:
            self.server.drop_database(url)

    async def _measured(self, variant: Variant, url: str, gauge: Gauge) -> Result:
        if variant.store == "raw":
            return await self._raw(url, gauge, processes=variant.processes)
        benchmark = Benchmark(url, effort=self.effort, folder=self.folder, gauge=gauge)
        return await measure_one(benchmark, variant.workload, variant.processes)

    async def _raw(self, url: str, gauge: Gauge, *, processes: int) -> Result:
        """The drain by hand-written SQL, of jobs that tenure has queued."""
        jobs = self.effort.jobs
        app.database = url
        async with app:
            await app.enqueue_many(map(nothing.options(queue=RAW_QUEUE).request, range(jobs)))
        before = await gauge()
        done, seconds = await asyncio.to_thread(raw_limit.drain, url, RAW_QUEUE, processes=processes)
        after = await gauge()
        if done != jobs:
            return Unmeasured(workload=Workload.DRAIN, processes=processes, why=f"{done} of {jobs} jobs were ended")
        return Measured(
            workload=Workload.DRAIN,
            processes=processes,
            jobs=jobs,
            seconds=seconds,
            figures={"jobs_per_second": jobs / seconds},
            gauged=moved(before, after, jobs=jobs),
        )


async def _migrated(url: str) -> str:
    store = store_for(url)
    await store.migrate()
    await store.close()
    return url


def wanted_variants(options: argparse.Namespace) -> list[Variant]:
    """Every workload on every store, and beside each drain on PostgreSQL the same by SQL alone."""
    return [
        Variant(store, workload, processes)
        for workload, processes in variants([*map(Workload, options.workloads)], options.processes)
        for store in [*options.stores, "raw"]
        if store != "raw" or (workload is Workload.DRAIN and "postgres" in options.stores)
    ]


def facts(options: argparse.Namespace, server: PostgresServer | None) -> list[str]:
    """The facts about the run: machine, versions, sizes."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.system()} on {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
        + (f", PostgreSQL {server.version} with fsync" if server is not None else "")
        + f"; {options.rounds} interleaved rounds, medians. Load of the machine at the end (1, 5, 15 min): {load}.",
    ]


async def run(options: argparse.Namespace, out: Path) -> int:
    """Run all variants; the exit code, which is 1 if one has no figure."""
    effort = Effort(
        jobs=options.jobs, samples=options.samples, running=options.running, concurrency=options.concurrency
    )
    with tempfile.TemporaryDirectory(prefix="tenure-suite-") as folder, ExitStack() as stack:
        server = None
        if "postgres" in options.stores:
            server = stack.enter_context(PostgresServer(fsync=True, settings={"shared_buffers": "1GB"}))
        suite = Suite(effort, Path(folder), server)
        await suite.run(wanted_variants(options), rounds=options.rounds)
        machine_facts = facts(options, server)
    report = {"facts": machine_facts, "effort": effort, "results": figures_of(suite.found)}
    table = markdown(suite.found, facts=machine_facts)
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    (out / "results.md").write_text(table, encoding="utf-8")
    (out / "results.svg").write_text(plot(suite.found), encoding="utf-8")
    print(table)
    return int(any(isinstance(one, Unmeasured) for results in suite.found.values() for one in results))


def options_given() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the results")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    parser.add_argument("--workloads", nargs="+", default=list(Workload), choices=list(Workload), type=str)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--samples", type=int, default=200, help="jobs of the latency workload")
    parser.add_argument("--running", type=int, default=10_000, help="jobs of the heartbeats workload")
    parser.add_argument("--concurrency", type=int, default=1_000, help="jobs at a time in each worker process")
    return parser.parse_args()


def main() -> None:
    options = options_given()
    options.out.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(run(options, options.out)))


if __name__ == "__main__":
    main()
