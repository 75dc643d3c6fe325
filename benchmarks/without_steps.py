"""The cost of workflows for plain jobs: `python -m benchmarks.without_steps --help`.

The same plain jobs are drained by an app that declares nothing else, and by one that also declares workflows, of which
many runs are suspended in the database with their steps. The rounds take turns, each in a new database. Shown is the
CPU of this process per job, which is client and worker.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from statistics import median

import tenure
from benchmarks.peers.places import place, postgres_server
from benchmarks.peers.roster import Backend
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

JOBS, RUNS, STEPS = 4_000, 200, 5
LIMIT_SECONDS = 300.0
PAUSE_SECONDS = 0.05


class Apps:
    """One app, with or without workflows, and how much of its work has been done."""

    def __init__(self, url: str, *, workflows: bool) -> None:
        self.app = tenure.App(url, version="1")
        self.ended = self.waiting = 0

        @self.app.job()
        async def nothing(number: int) -> int:
            self.ended += 1
            return number

        self.nothing = nothing
        if workflows:
            self._declare()

    def _declare(self) -> None:
        async def increase(number: int) -> int:
            return number + 1

        @self.app.workflow()
        async def waits(run: tenure.Run, steps: int) -> None:
            number = 0
            for _ in range(steps):
                number = await run.step(increase, number)
            self.waiting += 1
            await run.wait_for("go")

        self.waits = waits


async def cpu_per_job(url: str, *, workflows: bool, jobs: int = JOBS, runs: int = RUNS) -> float:
    """Seconds of this process's CPU per job, from the first enqueue to the end of the last job."""
    store = store_for(url)
    await store.migrate()
    await store.close()
    apps = Apps(url, workflows=workflows)
    async with apps.app, asyncio.timeout(LIMIT_SECONDS):
        worker = apps.app.worker(concurrency=200)
        working = asyncio.create_task(worker.run())
        if workflows:
            await apps.app.enqueue_many(apps.waits.request(STEPS) for _ in range(runs))
            await _until(lambda: apps.waiting >= runs)
        # The first jobs plan statements and fill caches.
        await _drain(apps, jobs)
        began_seconds = time.process_time()
        await _drain(apps, jobs)
        seconds = time.process_time() - began_seconds
        worker.stop()
        await working
    return seconds / jobs


async def _drain(apps: Apps, jobs: int) -> None:
    ended = apps.ended + jobs
    await apps.app.enqueue_many(apps.nothing.request(number) for number in range(jobs))
    await _until(lambda: apps.ended >= ended)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - an event per job would cost what is to be measured
        await asyncio.sleep(PAUSE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.without_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backends", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    options = parser.parse_args()
    with postgres_server() as server:
        for backend in options.backends:
            rounds = [_round(backend, server, with_first=bool(number % 2)) for number in range(options.rounds)]
            print(report(backend, rounds), flush=True)


def _round(backend: Backend, server: PostgresServer, *, with_first: bool) -> tuple[float, float]:
    """The CPU per job without workflows, and beside them. Which is measured first changes from round to round."""
    found = {}
    for workflows in (with_first, not with_first):
        with place(backend, server) as empty:
            found[workflows] = asyncio.run(cpu_per_job(empty.url, workflows=workflows))
    return found[False], found[True]


def report(backend: str, rounds: list[tuple[float, float]]) -> str:
    """One line: medians of both apps, and the median of the ratios of each round."""
    without, beside = (median(one) * 1e6 for one in zip(*rounds, strict=True))
    ratio = median(two / one for one, two in rounds)
    return f"{backend}: {without:.0f} us of CPU per job without workflows, {beside:.0f} beside them; ratio {ratio:.2f}"


if __name__ == "__main__":
    main()
