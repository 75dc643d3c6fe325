"""The cost of retention for claims: `python -m benchmarks.retention --help`.

A database is filled with old finished jobs and with due ones. The due jobs are claimed and completed through the store,
in rounds without retention and rounds beside another process whose retention prunes all the time. The p95 of claims
with it should be at most 1.2 times the p95 without; a round in which retention ran out of finished jobs does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.filling import KIND, filler_for, payload_of
from benchmarks.keys import claims
from tenure.cli.bench_workloads import percentile
from tenure.lifecycle.retention import Retention
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.testing.driver import Driver
from tenure.workers.maintenance.retention import Pruner, RetentionWorker
from tests.support.postgres import PostgresServer

RATIO_MAX = 1.2
BATCH = 1000
DAYS = Retention(finished_days=7)


def prune_until(url: str, ready: Event, stopping: Event) -> None:
    """Prune as a worker does, pass after pass, in a process of its own."""
    asyncio.run(_prune_until(url, ready, stopping))


async def _prune_until(url: str, ready: Event, stopping: Event) -> None:
    store = store_for(url)
    await store.open()
    try:
        retention = RetentionWorker(store, SYSTEM, retention=DAYS)
        pruning = asyncio.ensure_future(_passes(retention))
        ready.set()
        await asyncio.to_thread(stopping.wait)
        pruning.cancel()
        await asyncio.wait({pruning})
    finally:
        await store.close()


async def _passes(retention: RetentionWorker) -> None:
    while True:
        await retention.prune()
        await asyncio.sleep(0.1)


async def one_round(url: str, options: argparse.Namespace, *, pruned: bool) -> dict[str, Any]:
    """Claim some of the jobs; how long claims took, and how many finished jobs are left to prune."""
    context = get_context("spawn")
    ready, stopping = context.Event(), context.Event()
    process = context.Process(target=prune_until, args=(url, ready, stopping), daemon=True)
    store = store_for(url)
    await store.open()
    try:
        drive = Driver(store)
        for start in range(0, options.claims * options.limit, BATCH):
            wanted = min(BATCH, options.claims * options.limit - start)
            await store.enqueue([drive.enqueue() for _ in range(wanted)])
        before = await _old_jobs(url)
        if pruned:
            process.start()
            await asyncio.to_thread(ready.wait)
        took = await claims(store, drive, count=options.claims, limit=options.limit)
        stopping.set()
        if pruned:
            await asyncio.to_thread(process.join)
        left = await _old_jobs(url)
    finally:
        stopping.set()
        await store.close()
    facts = {"p50_ms": percentile(took, 0.5), "p95_ms": percentile(took, 0.95)}
    return {
        "pruned": pruned,
        "removed": before - left,
        "left": left,
        **{name: round(f, 3) for name, f in facts.items()},
    }


async def _old_jobs(url: str) -> int:

    store = store_for(url)
    await store.open()
    try:
        report = await Pruner(store, DAYS, kinds=[KIND]).count()
        return sum(report.jobs.values())
    finally:
        await store.close()


async def cell(url: str, options: argparse.Namespace) -> dict[str, Any]:
    store = store_for(url)
    await store.migrate()
    await store.close()
    await filler_for(url).fill(options.finished, queue="old", payload=payload_of(200), finished=True)
    await one_round(url, options, pruned=False)
    rounds = [await one_round(url, options, pruned=number % 2 == 1) for number in range(2 * options.rounds)]
    for one in rounds:
        print(json.dumps(one), file=sys.stderr, flush=True)
    without = median(one["p95_ms"] for one in rounds if not one["pruned"])
    beside = [one for one in rounds if one["pruned"] and one["left"] > 0]
    ratio = median(one["p95_ms"] for one in beside) / without if beside else None
    return {"store": url.partition(":")[0], "p95_ms_without": without, "ratio": ratio, "rounds": rounds}


async def run(options: argparse.Namespace, stack: ExitStack, folder: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    for kind in options.stores:
        server = stack.enter_context(PostgresServer()) if kind == "postgresql" else None
        cells.append(await cell(f"sqlite:///{folder}/jobs.db" if server is None else server.create_database(), options))
    return cells


def report(cells: list[dict[str, Any]]) -> str:
    lines = [f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"]
    for one in cells:
        ratio = "retention ran out of jobs: fill more" if one["ratio"] is None else f"ratio {one['ratio']:.2f}"
        lines.append(
            f"{one['store']}: p95 {one['p95_ms_without']:.2f} ms without retention, {ratio} (limit {RATIO_MAX})"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--finished", type=int, default=1_000_000, help="old finished jobs that retention removes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with retention, and as many without")
    parser.add_argument("--claims", type=int, default=500, help="claims in a round")
    parser.add_argument("--limit", type=int, default=10, help="jobs that a claim asks for")
    parser.add_argument("--json", action="store_true", help="all figures")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cells = asyncio.run(run(options, stack, folder))
    print(json.dumps(cells, indent=2) if options.json else report(cells))


if __name__ == "__main__":
    main()
