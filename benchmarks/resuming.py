"""How the time to resume a run grows with its recorded steps: `python -m benchmarks.resuming --help`.

One run of 1,000 steps and one of 10,000 wait for a signal, again and again. Each resume reads all recorded steps and
replays the function over them. The time is from the call that sends the signal to the first line after the wait; the
runs take turns, so that both have the same machine. The longer one may take 12 times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

import tenure
from benchmarks.peers.places import place, postgres_server
from benchmarks.peers.roster import Backend
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

SIZES = (1_000, 10_000)
RATIO_MAX = 12.0
LIMIT_SECONDS = 600.0
PAUSE_SECONDS = 0.05


@dataclass
class Resumes:
    """What one run reports."""

    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    at_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


async def increase(number: int) -> int:
    return number + 1


async def measure(url: str, sizes: tuple[int, ...], rounds: int) -> dict[int, Resumes]:
    """The seconds, and the seconds of this process's CPU, that each resume took."""
    app, runs = tenure.App(url, version="1"), {size: Resumes() for size in sizes}

    @app.workflow()
    async def count(run: tenure.Run, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await run.step(increase, number)
        reports = runs[steps]
        reports.recorded.set()
        for _ in range(rounds):
            await run.wait_for("go")
            reports.at_seconds = time.monotonic()
            reports.resumed.set()
        return number

    async with app, asyncio.timeout(LIMIT_SECONDS):
        worker = app.worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        handles = {size: await count.enqueue(size) for size in sizes}
        await asyncio.gather(*(one.recorded.wait() for one in runs.values()))
        for _ in range(rounds):
            for size, handle in handles.items():
                await _suspended(handle)
                await _resume(handle, runs[size])
        for handle in handles.values():
            await handle.result()
        worker.stop()
        await working
    return runs


async def _suspended(handle: tenure.Handle[int]) -> None:
    while (await handle.refresh()).status != "waiting":  # noqa: ASYNC110 - only the store knows when it is suspended
        await asyncio.sleep(PAUSE_SECONDS)


async def _resume(handle: tenure.Handle[int], reports: Resumes) -> None:
    reports.resumed.clear()
    sent_at_seconds, cpu_seconds = time.monotonic(), time.process_time()
    await handle.signal("go")
    await reports.resumed.wait()
    reports.cpu_seconds.append(time.process_time() - cpu_seconds)
    reports.seconds.append(reports.at_seconds - sent_at_seconds)


async def _measure_in_new_database(url: str, rounds: int) -> dict[int, Resumes]:
    store = store_for(url)
    await store.migrate()
    await store.close()
    return await measure(url, SIZES, rounds)


def report(backend: str, runs: dict[int, Resumes]) -> str:
    """One line: medians of both sizes, and their ratios."""
    short, long = (runs[size] for size in sorted(runs))
    wall = [median(one.seconds) for one in (short, long)]
    cpu = [median(one.cpu_seconds) for one in (short, long)]
    ratio = wall[1] / wall[0]
    return (
        f"{backend}: {wall[0] * 1000:,.1f} and {wall[1] * 1000:,.1f} ms, {ratio:.1f} times as long "
        f"(at most {RATIO_MAX:g}: {'met' if ratio <= RATIO_MAX else 'missed'}); "
        f"CPU {cpu[0] * 1000:,.1f} and {cpu[1] * 1000:,.1f} ms, {cpu[1] / cpu[0]:.1f} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resuming", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="resumes of each run")
    parser.add_argument("--backends", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    options = parser.parse_args()
    with postgres_server() as server:
        for backend in options.backends:
            print(_cell(backend, server, options.rounds), flush=True)


def _cell(backend: Backend, server: PostgresServer, rounds: int) -> str:
    with place(backend, server) as empty:
        return report(backend, asyncio.run(_measure_in_new_database(empty.url, rounds)))


if __name__ == "__main__":
    main()
