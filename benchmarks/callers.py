"""Many concurrent callers of `enqueue` in one process, as in a web server, compared with `enqueue_many` in batches of
as many jobs.

Run as `python -m benchmarks.callers --help`. Rounds of both ways on both stores are interleaved; medians are shown, and
the ratio of their rates, for which the target is 0.6.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

from benchmarks.measuring.jobs import app, nothing
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

WARM_UP_JOBS = 640


async def by_callers(jobs: int, callers: int) -> None:
    """Each caller enqueues its share, one job after the other."""

    async def caller() -> None:
        for number in range(jobs // callers):
            await nothing.enqueue(number)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def by_batches(jobs: int, callers: int) -> None:
    """One caller enqueues batches of as many jobs as there are callers otherwise."""
    for _ in range(jobs // callers):
        await app.enqueue_many(map(nothing.request, range(callers)))


WAYS: dict[str, Callable[[int, int], Awaitable[None]]] = {"callers": by_callers, "batches": by_batches}


async def one_round(url: str, *, jobs: int, callers: int) -> dict[str, tuple[float, float]]:
    """Jobs per second, and CPU microseconds of this process per job, of both ways on one database."""
    store = store_for(url)
    await store.migrate()
    await store.close()
    app.database = url
    found: dict[str, tuple[float, float]] = {}
    async with app:
        for work in WAYS.values():
            await work(WARM_UP_JOBS, callers)
        for name, work in WAYS.items():
            began, cpu_seconds = time.perf_counter(), time.process_time()
            await work(jobs, callers)
            rate = jobs / (time.perf_counter() - began)
            found[name] = rate, (time.process_time() - cpu_seconds) / jobs * 1e6
    return found


def table(rounds: dict[str, list[dict[str, tuple[float, float]]]], callers: int) -> str:
    lines = [
        f"| store | {callers} callers /s | CPU µs | batches of {callers} /s | CPU µs | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for store, found in rounds.items():
        (rate, cpu), (batch_rate, batch_cpu) = (
            tuple(statistics.median(one[way][column] for one in found) for column in (0, 1)) for way in WAYS
        )
        lines.append(
            f"| {store} | {rate:,.0f} | {cpu:.1f} | {batch_rate:,.0f} | {batch_cpu:.1f} | {rate / batch_rate:.2f} |"
        )
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> str:
    rounds: dict[str, list[dict[str, tuple[float, float]]]] = {"PostgreSQL": [], "SQLite": []}
    with PostgresServer(fsync=True) as server, tempfile.TemporaryDirectory(prefix="tenure-callers-") as folder:
        for number in range(options.rounds):
            dsn = server.create_database()
            for store, url in (("PostgreSQL", dsn), ("SQLite", f"sqlite:///{folder}/{number}.db")):
                rounds[store].append(await one_round(url, jobs=options.jobs, callers=options.callers))
            server.drop_database(dsn)
    return table(rounds, options.callers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=5)
    print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
