"""Remote engines through one gateway: from queued to dispatched, idle and behind 10,000 jobs, and no-op jobs per second
beside a worker that runs them in its own process.

Run as `python -m benchmarks.engines --help`. The gateway is a process (`tenure engines serve`); four Python engines run
in this one, which also enqueues. Times from queued to dispatched are those of the log, by the database's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import tenure
from tenure.engines.client import Engine, EngineJob
from tenure.engines.tokens import new_token
from tenure.lifecycle.records import EventType
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tests.support.in_process_worker import working
from tests.support.postgres import PostgresServer

ENGINES, CAPACITY = 4, 50
PROBES = 20
LIMIT_SECONDS = 300.0

app = tenure.App()


@app.remote_job(queue="remote")
def nothing_remote(number: int) -> int:
    raise NotImplementedError


@app.job(queue="local")
async def nothing_local(number: int) -> int:
    return number


async def run_nothing(job: EngineJob) -> int:
    number: int = job.payload["number"]
    return number


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def gateway(url: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The address of a gateway process, and an access token."""
    token, made = new_token("benchmark", SYSTEM)
    tokens, port = folder / "engines.tokens", free_port()
    tokens.write_text(f"{made.line}\n", encoding="utf-8")
    command = [sys.executable, "-m", "tenure", "engines", "serve", "benchmarks.engines:app"]
    options = ["--port", str(port), "--tokens", str(tokens), "--database", url, "--queues", "remote"]
    process = await asyncio.create_subprocess_exec(*command, *options, "--log-level", "error", "--grace-seconds", "1")
    try:
        yield f"ws://127.0.0.1:{port}/engine", token
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def engines(address: str, token: str) -> AsyncIterator[None]:
    """Engines that run during the block. They connect as soon as the gateway listens."""
    made = [Engine(address, token=token, engine_id=f"engine-{number}", capacity=CAPACITY) for number in range(ENGINES)]
    for engine in made:
        engine.handles("nothing_remote")(run_nothing)
    tasks = [asyncio.create_task(engine.run()) for engine in made]
    try:
        yield
    finally:
        for engine in made:
            engine.stop()
        await asyncio.wait(tasks, timeout=LIMIT_SECONDS)


async def ended(handles: Iterable[Any]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        for handle in handles:
            job = await handle.wait(LIMIT_SECONDS)
            assert job.status == "succeeded", job


async def dispatch_seconds(job_ids: Sequence[UUID]) -> list[float]:
    """From the enqueue to the engine's acknowledgement, per job, by the log."""
    store = await app.store()
    found: list[float] = []
    for begin in range(0, len(job_ids), 1000):
        for log in (await store.history(job_ids[begin : begin + 1000])).values():
            at = {event.type: event.at for event in reversed(log)}
            found.append((at[EventType.ACKED] - at[EventType.ENQUEUED]).total_seconds())
    return sorted(found)


async def one_round(url: str, folder: Path, *, depth: int) -> dict[str, float]:
    """The figures of one database."""
    store = store_for(url)
    await store.migrate()
    await store.close()
    app.database = url
    found: dict[str, float] = {}
    async with app:
        async with gateway(url, folder) as (address, token):
            async with engines(address, token):
                await ended([await nothing_remote.enqueue(0)])
                idle = []
                for number in range(100):
                    idle.append(await nothing_remote.enqueue(number))
                    await ended(idle[-1:])
                seconds = await dispatch_seconds([handle.id for handle in idle])
                found |= {
                    "idle p50 ms": seconds[50] * 1e3,
                    "idle p95 ms": seconds[95] * 1e3,
                    "idle max ms": seconds[-1] * 1e3,
                }
            backlog = await app.enqueue_many(map(nothing_remote.request, range(depth)))
            async with engines(address, token):
                began = time.perf_counter()
                probes = []
                for number in range(PROBES):
                    probes.append(await nothing_remote.options(priority=9).enqueue(number))
                    await ended(probes[-1:])
                await ended(backlog)
                found["remote jobs /s"] = (depth + PROBES) / (time.perf_counter() - began)
            seconds = await dispatch_seconds([handle.id for handle in probes])
            found |= {"next at depth p50 s": statistics.median(seconds), "next at depth max s": seconds[-1]}
        local = await app.enqueue_many(map(nothing_local.request, range(depth)))
        async with working(app, concurrency=ENGINES * CAPACITY):
            began = time.perf_counter()
            await ended(local)
            found["in-process jobs /s"] = depth / (time.perf_counter() - began)
    return found


def table(rounds: dict[str, list[dict[str, float]]]) -> str:
    names = list(next(iter(rounds.values()))[0])
    lines = [f"| | {' | '.join(rounds)} |", f"|---|{'---|' * len(rounds)}"]
    for name in names:
        medians = [statistics.median(one[name] for one in found) for found in rounds.values()]
        lines.append(
            f"| {name} | {' | '.join(f'{value:,.2f}' if value < 100 else f'{value:,.0f}' for value in medians)} |"
        )
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> str:
    rounds: dict[str, list[dict[str, float]]] = {"PostgreSQL": [], "SQLite": []}
    with PostgresServer(fsync=True) as server, tempfile.TemporaryDirectory(prefix="tenure-engines-") as name:
        folder = Path(name)
        for number in range(options.rounds):
            for store, url in (("PostgreSQL", server.create_database()), ("SQLite", f"sqlite:///{folder}/{number}.db")):
                rounds[store].append(await one_round(url, folder, depth=options.depth))
                print(store, rounds[store][-1], file=sys.stderr, flush=True)
    return table(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=10_000, help="Jobs that are queued before the engines connect.")
    print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
