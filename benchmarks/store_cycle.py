"""The cost of the store itself: jobs per second through enqueue, claim + start, complete, with guards on and off.

Run as `make bench` or `python -m benchmarks.store_cycle --help`. Rounds of each variant are interleaved, so that a busy
minute of the machine hits all of them; medians are shown. With guards off the triggers are dropped, to measure their
cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import asyncpg

from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Origin, Policy, Role
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.stores.contract import Applied, Busy, ClaimRequest, EnqueueRequest, Request, Store
from tests.support.postgres import PostgresServer

PAYLOAD = '{"to":"ada@example.org","subject":"hello"}'
POLICY = Policy()
ENQUEUE_BATCH = 1000


@dataclass(frozen=True)
class Round:
    """What one round of one variant measured."""

    variant: str
    jobs: int
    enqueue_per_second: float
    drain_per_second: float
    wal_bytes_enqueue: float | None = None
    wal_bytes_drain: float | None = None


async def enqueue(store: Store, jobs: int, *, lanes: int) -> float:
    """Seconds to add this many jobs in batches, two of them under way at once."""
    began = time.perf_counter()
    batches = iter([min(ENQUEUE_BATCH, jobs - start) for start in range(0, jobs, ENQUEUE_BATCH)])
    await asyncio.gather(*(_enqueue_lane(store, batches) for _ in range(lanes)))
    return time.perf_counter() - began


async def _enqueue_lane(store: Store, batches: Iterator[int]) -> None:
    client = Actor(Role.CLIENT, "bench")
    for count in batches:
        await store.enqueue(
            [
                EnqueueRequest(Origin(id=SYSTEM.random.job_id(), kind="noop", payload=PAYLOAD, policy=POLICY), client)
                for _ in range(count)
            ]
        )


async def drain(store: Store, *, batch: int, lanes: int) -> int:
    """Claim, start and complete until nothing is left; how many."""
    return sum(await asyncio.gather(*(_lane(store, batch=batch, number=n) for n in range(lanes))))


async def _lane(store: Store, *, batch: int, number: int) -> int:
    done = 0
    worker = f"bench-{number}-{SYSTEM.random.name()}"
    while True:
        token = SYSTEM.random.token()
        jobs = await store.claim(
            ClaimRequest(
                queues=("default",), kinds=("noop",), limit=batch, worker=worker, token=token, request_id=str(token)
            )
        )
        if not jobs:
            return done
        runner = Actor(Role.RUNNER, worker, token)
        finish = (Complete("null"),)
        requests = [
            Request(job=job, operations=finish, actor=runner, request_id="complete", fresh=True) for job in jobs
        ]
        while requests:
            outcomes = await store.apply(requests)
            if not all(isinstance(outcome, Applied | Busy) for outcome in outcomes):
                raise SystemExit(f"a completion was not applied: {outcomes}")
            # Another claim has locked the row until its statement ends, as a worker would meet it.
            requests = [one for one, outcome in zip(requests, outcomes, strict=True) if isinstance(outcome, Busy)]
        done += len(jobs)


def _drain_process(url: str, batch: int, lanes: int, ready_at: float) -> tuple[int, float, float]:
    async def work() -> tuple[int, float, float]:
        store = store_for(url)
        await store.open()
        await asyncio.sleep(max(0.0, ready_at - time.time()))
        began = time.time()
        done = await drain(store, batch=batch, lanes=lanes)
        ended = time.time()
        await store.close()
        return done, began, ended

    return asyncio.run(work())


def drain_with_processes(url: str, *, processes: int, batch: int, lanes: int) -> tuple[int, float]:
    """How many jobs were drained, and the seconds from the first start to the last end."""
    ready_at = time.time() + 2.0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_drain_process, url, batch, lanes, ready_at) for _ in range(processes)]
        results = [future.result(timeout=600) for future in futures]
    return sum(result[0] for result in results), max(r[2] for r in results) - min(r[1] for r in results)


@asynccontextmanager
async def postgres(server: PostgresServer, *, guards: bool) -> AsyncIterator[str]:
    url = server.create_database()
    store = store_for(url)
    await store.migrate()
    await store.close()
    if not guards:
        await _drop_triggers(url)
    try:
        yield url
    finally:
        server.drop_database(url)


async def _drop_triggers(url: str) -> None:
    connection = await asyncpg.connect(url)
    tables = await connection.fetch("select tablename from pg_tables where schemaname = 'tenure'")
    for table in tables:
        await connection.execute(f"alter table tenure.{table['tablename']} disable trigger all")
    await connection.close()


@asynccontextmanager
async def sqlite(folder: Path, *, guards: bool) -> AsyncIterator[str]:
    path = folder / f"{SYSTEM.random.name()}.db"
    url = f"sqlite:///{path}"
    store = store_for(url)
    await store.migrate()
    await store.close()
    if not guards:
        import sqlite3

        with sqlite3.connect(path) as connection:
            names = connection.execute("select name from sqlite_master where type = 'trigger'").fetchall()
            for (name,) in names:
                connection.execute(f"drop trigger {name}")
    yield url


async def _wal(url: str) -> int | None:
    if not url.startswith("postgres"):
        return None
    connection = await asyncpg.connect(url)
    position = await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    await connection.close()
    return int(position)


async def one_round(
    variant: str, place: AbstractAsyncContextManager[str], *, jobs: int, processes: int, batch: int, lanes: int
) -> Round:
    async with place as url:
        store = store_for(url)
        await store.open()
        before = await _wal(url)
        enqueue_seconds = await enqueue(store, jobs, lanes=lanes)
        added = await _wal(url)
        if processes == 1:
            began = time.perf_counter()
            done = await drain(store, batch=batch, lanes=lanes)
            seconds = time.perf_counter() - began
        else:
            done, seconds = await asyncio.to_thread(
                drain_with_processes, url, processes=processes, batch=batch, lanes=lanes
            )
        after = await _wal(url)
        await store.close()
        if done != jobs:
            raise SystemExit(f"{variant}: {done} of {jobs} jobs were drained")
        return Round(
            variant,
            jobs,
            jobs / enqueue_seconds,
            jobs / seconds,
            None if before is None or added is None else (added - before) / jobs,
            None if added is None or after is None else (after - added) / jobs,
        )


async def run(options: argparse.Namespace) -> list[Round]:
    found: list[Round] = []
    with (
        PostgresServer(fsync=True, settings={"shared_buffers": "1GB"}) as server,
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder,
    ):
        for number in range(options.rounds):
            for store, processes, guards in variants(options):
                name = f"{store}, {processes} process{'es' * (processes > 1)}, guards {'on' if guards else 'off'}"
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                on_postgres = store == "postgres"
                place = postgres(server, guards=guards) if on_postgres else sqlite(Path(folder), guards=guards)
                found.append(
                    await one_round(
                        name,
                        place,
                        jobs=options.jobs,
                        processes=processes,
                        batch=options.batch,
                        lanes=options.lanes if on_postgres else 1,
                    )
                )
    return found


def variants(options: argparse.Namespace) -> list[tuple[str, int, bool]]:
    """SQLite has one writer, so that a second process would only measure how the file lock rotates."""
    return [
        (store, processes, guards)
        for store in options.stores
        for processes in (options.processes if store == "postgres" else [1])
        for guards in (True, False)
    ]


def table(rounds: list[Round]) -> str:
    lines = ["| variant | enqueue /s | drain /s | rounds (drain) | WAL bytes a job |", "|---|---|---|---|---|"]
    for variant in dict.fromkeys(r.variant for r in rounds):
        mine = [r for r in rounds if r.variant == variant]
        drains = sorted(r.drain_per_second for r in mine)
        wal = (
            "none"
            if mine[0].wal_bytes_drain is None
            else f"{statistics.median(r.wal_bytes_enqueue or 0 for r in mine):.0f} + "
            f"{statistics.median(r.wal_bytes_drain or 0 for r in mine):.0f}"
        )
        lines.append(
            f"| {variant} | {statistics.median(r.enqueue_per_second for r in mine):,.0f} | "
            f"{statistics.median(drains):,.0f} | {drains[0]:,.0f} to {drains[-1]:,.0f} | {wal} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--lanes", type=int, default=2, help="claiming loops per process")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--stores", nargs="+", default=["postgres", "sqlite"], choices=["postgres", "sqlite"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = asyncio.run(run(options))
    print(json.dumps([asdict(r) for r in rounds], indent=2) if options.json else table(rounds))


if __name__ == "__main__":
    main()
