"""The cost of a claim under queue limits as the number of partition keys grows: `python -m benchmarks.keys --help`.

Each cell fills a new database with the same number of jobs, divided among more and more keys, sets a limit of the
queue, and claims and completes through the store. Claims must cost the same with ten keys and with ten thousand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tenure.cli.bench_workloads import percentile
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Actor, Role
from tenure.stores import store_for
from tenure.stores.contract import Request, Store
from tenure.testing.driver import OPERATOR, Driver
from tests.support.postgres import PostgresServer

RULES = {
    "none": None,
    "concurrency": QueueLimits(concurrency_max=100),
    "key-concurrency": QueueLimits(key_concurrency_max=1),
    "key-rate": QueueLimits(key_rate=Rate(1000, 60)),
    "fair": QueueLimits(fair=True),
}
BATCH = 1000


async def fill(drive: Driver, jobs: int, keys: int) -> None:
    for start in range(0, jobs, BATCH):
        numbers = range(start, min(jobs, start + BATCH))
        await drive.store.enqueue([drive.enqueue(partition_key=f"key-{number % keys:05d}") for number in numbers])


async def claims(store: Store, drive: Driver, *, count: int, limit: int) -> list[float]:
    """The time of each claim in milliseconds. Its jobs are completed before the next claim."""
    took: list[float] = []
    for _ in range(count):
        request = drive.claim_request(limit=limit)
        began = time.perf_counter()
        jobs = await store.claim(request)
        took.append((time.perf_counter() - began) * 1000)
        runner = Actor(Role.RUNNER, request.worker, request.token)
        await store.apply(
            [
                Request(job=job, operations=(Complete("null"),), actor=runner, request_id=f"done-{job.id}", fresh=True)
                for job in jobs
            ]
        )
        if len(jobs) < limit:
            raise AssertionError(f"a claim won {len(jobs)} of {limit} jobs")
    return took


async def cell(url: str, rules: str, keys: int, options: argparse.Namespace) -> dict[str, Any]:
    store = store_for(url)
    await store.migrate()
    await store.open()
    try:
        drive = Driver(store)
        await fill(drive, options.jobs, keys)
        if (wanted := RULES[rules]) is not None:
            await store.queues.put("default", wanted, actor=OPERATOR)
        limit = min(options.limit, keys)
        await claims(store, drive, count=options.claims // 5, limit=limit)
        took = await claims(store, drive, count=options.claims, limit=limit)
    finally:
        await store.close()
    return {
        "store": url.partition(":")[0],
        "rules": rules,
        "keys": keys,
        "p50_ms": round(percentile(took, 0.5), 3),
        "p99_ms": round(percentile(took, 0.99), 3),
    }


async def run(options: argparse.Namespace, stack: ExitStack, folder: Path) -> list[dict[str, Any]]:
    server = stack.enter_context(PostgresServer()) if "postgresql" in options.stores else None
    cells: list[dict[str, Any]] = []
    for kind in options.stores:
        for rules in options.rules:
            for keys in options.keys:
                url = (
                    f"sqlite:///{folder}/{rules}-{keys}.db"
                    if server is None or kind == "sqlite"
                    else server.create_database()
                )
                cells.append(await cell(url, rules, keys, options))
                print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    return cells


def table(cells: list[dict[str, Any]], keys: list[int]) -> Iterator[str]:
    yield "| store | rules | " + " | ".join(f"{number:,} keys" for number in keys) + f" | growth from {keys[0]:,} |"
    yield "|---|---|" + "---|" * len(keys) + "---|"
    for store, rules in dict.fromkeys((one["store"], one["rules"]) for one in cells):
        row = [one for one in cells if (one["store"], one["rules"]) == (store, rules)]
        shown = " | ".join(f"{one['p50_ms']:.2f} / {one['p99_ms']:.2f}" for one in row)
        yield f"| {store} | {rules} | {shown} | {row[-1]['p50_ms'] / row[0]['p50_ms']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--keys", nargs="+", type=int, default=[10, 100, 1000, 10_000])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--claims", type=int, default=200)
    parser.add_argument("--limit", type=int, default=10, help="jobs that a claim asks for")
    parser.add_argument("--json", action="store_true", help="all figures instead of a table")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cells = asyncio.run(run(options, stack, folder))
    print(json.dumps(cells, indent=2) if options.json else "\n".join(table(cells, options.keys)))


if __name__ == "__main__":
    main()
