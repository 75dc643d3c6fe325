"""What every driver has in common: its command line, the workloads, and how they are timed.

    python -m benchmarks.peers.drivers.NAME WORKLOAD URL JOBS [--processes N] [--defaults] [--job-ms N] …

The answer is one line of JSON on standard output. WORKLOAD is `one`, `bulk`, `drain`, `latency`, or `work`, with which
a driver starts its own workers. Only the standard library is used, since this runs in every peer's environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from benchmarks.peers.drivers.cpu import cpu_seconds
from benchmarks.peers.drivers.tally import Counted, async_body, body
from benchmarks.peers.drivers.worker_processes import WorkerProcesses

T = TypeVar("T")

LOOK_SECONDS = 0.004
PACE_SECONDS = 0.020
WARM_UP_JOBS = 30

Figures = dict[str, float | int | str | None]


class Unsupported(Exception):
    """The peer has no such thing."""


class Sender(Protocol):
    """The enqueuing side, connected."""

    async def one(self, sent_ns: int) -> None:
        """Queue one job by the peer's ordinary call; its body gets the number."""
        ...

    async def many(self, jobs: int) -> None:
        """Queue this many by one call of the peer's bulk interface, each with the number 0."""
        ...


class Ledger(Protocol):
    """The peer's own records, read from outside."""

    def left(self) -> int:
        """Jobs that are queued or running."""
        ...

    def done(self) -> int | None:
        """Jobs that are recorded as done; None where the peer keeps no such record."""
        ...

    def first_claim_ns(self) -> int | None:
        """When the first claim was made, by the machine's clock, where the peer writes it down."""
        ...

    def wal_bytes(self) -> int | None:
        """The position of the write-ahead log in bytes, if there is one."""
        ...

    def settle(self) -> None:
        """Run the database's background work now, so that it does not start in the timed part."""
        ...


class Driver(ABC):
    """One peer, in its best configuration, or with the settings that its own command has by default."""

    configuration: ClassVar[str]
    """What was chosen, and why, in a line for the report."""
    default_configuration: ClassVar[str | None] = None
    """The same for its defaults; None where they are not compared."""
    defaults = False
    """Whether workers start with the peer's defaults."""
    bulk_batch: ClassVar[int | None] = 1000
    """Jobs in one call of the bulk interface; None where there is none."""
    uvloop: ClassVar[bool] = False
    starts_processes: ClassVar[bool] = False
    """Whether one command of the peer starts all worker processes, or each process is a command."""

    @abstractmethod
    async def prepare(self, url: str) -> None:
        """Make the peer's tables in a new database."""

    @abstractmethod
    def sender(self, url: str) -> AbstractAsyncContextManager[Sender]: ...

    @abstractmethod
    def ledger(self, url: str) -> AbstractContextManager[Ledger]: ...

    @abstractmethod
    def work(self, url: str, *, processes: int) -> None:
        """Run as a worker until the process receives a signal to end. Each body calls `TALLY.ran` with its number."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.uvloop or self.defaults:
            return asyncio.run(work)
        import uvloop  # type: ignore[import-not-found, unused-ignore]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)


def main(driver: Driver) -> None:
    options = _options()
    driver.defaults = options.defaults
    if options.workload == "work":
        driver.work(options.url, processes=options.processes)
        return
    workload = {"one": _one, "bulk": _bulk, "drain": _drain, "latency": _latency}[options.workload]
    configuration = driver.default_configuration if driver.defaults else driver.configuration
    try:
        if configuration is None:
            raise Unsupported("its defaults are not compared")
        figures = workload(driver, options)
    except Unsupported as reason:
        figures = {"unsupported": str(reason)}
    print(json.dumps({**figures, "configuration": configuration or ""}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["one", "bulk", "drain", "latency", "work"])
    parser.add_argument("url")
    parser.add_argument("jobs", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=120.0)
    parser.add_argument("--defaults", action="store_true", help="workers with the peer's default settings")
    parser.add_argument("--job-ms", type=int, default=0, help="how long the body of a job waits")
    parser.add_argument("--server-pid", type=int, help="the database's process, for its CPU")
    return parser.parse_args()


def _one(driver: Driver, options: argparse.Namespace) -> Figures:
    async def each(sender: Sender, jobs: int) -> None:
        for _ in range(jobs):
            await sender.one(0)

    return _enqueue(driver, options, each)


def _bulk(driver: Driver, options: argparse.Namespace) -> Figures:
    if driver.bulk_batch is None:
        raise Unsupported("no bulk interface")

    async def batches(sender: Sender, jobs: int) -> None:
        await _many(driver, sender, jobs)

    return _enqueue(driver, options, batches)


def _enqueue(
    driver: Driver, options: argparse.Namespace, send: Callable[[Sender, int], Coroutine[Any, Any, None]]
) -> Figures:
    """Time the sending alone: tables are there, the sender is connected, and some jobs went ahead."""

    async def timed() -> tuple[float, float | None]:
        await driver.prepare(options.url)
        async with driver.sender(options.url) as sender:
            await send(sender, WARM_UP_JOBS)
            before = ledger.wal_bytes()
            began = time.perf_counter()
            await send(sender, options.jobs)
            return time.perf_counter() - began, _wal(before, ledger, options.jobs)

    with driver.ledger(options.url) as ledger:
        seconds, wal = driver.run(timed())
        _require_queued(ledger, options.jobs + WARM_UP_JOBS)
        return {"jobs": options.jobs, "per_second": options.jobs / seconds, "wal_bytes": wal}


async def _many(driver: Driver, sender: Sender, jobs: int) -> None:
    batch = driver.bulk_batch or 0
    for start in range(0, jobs, batch):
        await sender.many(min(batch, jobs - start))


def _require_queued(ledger: Ledger, jobs: int) -> None:
    if (left := ledger.left()) != jobs:
        raise SystemExit(f"{left} jobs are queued instead of {jobs}")


def _drain(driver: Driver, options: argparse.Namespace) -> Figures:
    """Fill the queue, then time from the first claim until every job is recorded as done."""

    async def fill() -> None:
        await driver.prepare(options.url)
        async with driver.sender(options.url) as sender:
            if driver.bulk_batch is not None:
                await _many(driver, sender, options.jobs)
                return
            for _ in range(options.jobs):
                await sender.one(0)

    with driver.ledger(options.url) as ledger, tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder:
        driver.run(fill())
        _require_queued(ledger, options.jobs)
        ledger.settle()
        before = ledger.wal_bytes()
        with WorkerProcesses(_commands(driver, options), Path(folder), job_ms=options.job_ms) as workers:
            ended_ns, counted, cpu_seconds = _until_drained(workers, ledger, options)
            wal = _wal(before, ledger, options.jobs)
            began_ns = min(filter(None, (counted.first_ns, ledger.first_claim_ns())))
        _require_done(ledger, options.jobs)
        seconds = (ended_ns - began_ns) / 1e9
        return {
            "jobs": options.jobs,
            "per_second": options.jobs / seconds,
            "wal_bytes": wal,
            "bodies": counted.ran,
            "cpu_us": cpu_seconds / options.jobs * 1e6,
        }


def _commands(driver: Driver, options: argparse.Namespace) -> list[list[str]]:
    module = sys.modules["__main__"].__spec__
    assert module is not None  # Drivers are run with -m.
    each = options.processes if driver.starts_processes else 1
    command = [sys.executable, "-m", module.name, "work", options.url, "0", "--processes", str(each)]
    command += ["--defaults"] if options.defaults else []
    return [command] * (1 if driver.starts_processes else options.processes)


def _until_drained(workers: WorkerProcesses, ledger: Ledger, options: argparse.Namespace) -> tuple[int, Counted, float]:
    """When the last job was done, what ran, and the CPU seconds of workers and server since the first body."""
    deadline = time.monotonic() + options.limit_seconds
    processes = [*workers.pids, *([] if options.server_pid is None else [options.server_pid])]
    cpu_before: float | None = None
    while True:
        if cpu_before is None and workers.counted().ran:
            cpu_before = cpu_seconds(processes)
        # While bodies are missing, the ledger is not read: a read would cost the workers time.
        if (counted := workers.counted()).ran >= options.jobs and ledger.left() == 0:
            return time.time_ns(), counted, cpu_seconds(processes) - (cpu_before or 0.0)
        workers.require_alive()
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{counted.ran} of {options.jobs} bodies ran in {options.limit_seconds:.0f} s, {ledger.left()} are left"
            )
        time.sleep(LOOK_SECONDS)


def _require_done(ledger: Ledger, jobs: int) -> None:
    if (done := ledger.done()) is not None and done != jobs:
        raise SystemExit(f"{done} jobs are recorded as done instead of {jobs}")


def _latency(driver: Driver, options: argparse.Namespace) -> Figures:
    """One job each 20 ms to one idle worker: from the start of the enqueue call to the first line of the body."""

    async def send_paced() -> None:
        async with driver.sender(options.url) as sender:
            await sender.one(0)
            await workers.until(lambda counted: counted.ran >= 1, seconds=options.limit_seconds)
            next_at = time.monotonic()
            for number in range(WARM_UP_JOBS + options.jobs):
                next_at = max(next_at + PACE_SECONDS, time.monotonic())
                await asyncio.sleep(next_at - time.monotonic())
                await sender.one(time.monotonic_ns() if number >= WARM_UP_JOBS else 0)
            await workers.until(lambda counted: len(counted.samples_ns) >= options.jobs, seconds=options.limit_seconds)

    driver.run(driver.prepare(options.url))
    with (
        tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder,
        WorkerProcesses(_commands(driver, options), Path(folder)) as workers,
    ):
        driver.run(send_paced())
        samples = sorted(workers.counted().samples_ns)
    return {"jobs": options.jobs, **{f"p{p}_ms": _percentile(samples, p) / 1e6 for p in (50, 95, 99)}}


def _percentile(ordered: list[int], percent: int) -> int:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def _wal(before: int | None, ledger: Ledger, jobs: int) -> float | None:
    after = ledger.wal_bytes()
    return None if before is None or after is None else (after - before) / jobs


__all__ = ["Driver", "Ledger", "Sender", "Unsupported", "async_body", "body", "main"]
