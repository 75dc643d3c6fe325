"""What every driver has in common: its command line, the workloads, and how they are timed.

    python -m benchmarks.workflows.drivers.NAME WORKLOAD URL [--limit-seconds N]

The answer is one line of JSON on standard output. Client and worker are one process, so that a signal and the code that
it resumes have one clock. Steps and children do nothing. A measurement ends when the engine has recorded the end of
every run, read over a connection of our own. Only the standard library is used, since this runs in every environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")

RUNS, STEPS_EACH = 200, 10
LONG_STEPS = 1_000
CHILDREN = 500
SIGNALS = 60
PACE_SECONDS = 0.05
SUSPENDED_AFTER_SECONDS = 3.0
"""After this time every run that waits for a signal is counted as suspended."""
LOOK_SECONDS = 0.003

Figures = dict[str, float | int | str | None]


class Ledger(Protocol):
    """The engine's own records, read from outside."""

    def done(self) -> int | None:
        """How many runs are recorded as succeeded, children among them."""
        ...

    def wal_bytes(self) -> int | None:
        """The position of the write-ahead log in bytes, if there is one."""
        ...

    def settle(self) -> None:
        """Vacuum now, so that autovacuum does not start in the timed part."""
        ...


class Runs(Protocol):
    """An engine whose worker is running."""

    async def start(self, count: int, steps: int) -> None:
        """Start this many runs, each of this many steps, by the fastest call for it. Each ends with `TALLY.end()`."""
        ...

    async def start_waiting(self, count: int) -> None:
        """Start runs, numbered from 0, that call `TALLY.wait()`, wait for a signal, and then `TALLY.resume(number)`."""
        ...

    async def signal(self, number: int) -> None:
        """Send the run of this number its signal."""
        ...

    async def start_parent(self, children: int) -> None:
        """Start a run that spawns so many children, awaits all results, and then calls `TALLY.end()`."""
        ...


@dataclass
class Tally:
    """What the functions of this process have done. It is written by threads, too."""

    ended: int = 0
    waiting: int = 0
    resumed_ns: dict[int, int] = field(default_factory=dict)

    def end(self) -> None:
        self.ended += 1

    def wait(self) -> None:
        self.waiting += 1

    def resume(self, number: int) -> None:
        self.resumed_ns.setdefault(number, time.monotonic_ns())


TALLY = Tally()


class Driver(ABC):
    """One engine, configured as well as its documentation allows."""

    configuration: ClassVar[str]
    uvloop: ClassVar[bool] = False

    @abstractmethod
    async def prepare(self, url: str) -> None:
        """Create the engine's tables in a new database."""

    @abstractmethod
    def working(self, url: str) -> AbstractAsyncContextManager[Runs]: ...

    @abstractmethod
    def ledger(self, url: str) -> AbstractContextManager[Ledger]: ...

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.uvloop:
            return asyncio.run(work)
        import uvloop  # type: ignore[import-not-found, unused-ignore]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)


Workload = Callable[[Runs, Ledger, float], Awaitable[Figures]]


def main(driver: Driver) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("url")
    parser.add_argument("--limit-seconds", type=float, default=120.0)
    options = parser.parse_args()

    async def measure() -> Figures:
        await driver.prepare(options.url)
        async with driver.working(options.url) as runs:
            with driver.ledger(options.url) as ledger:
                # The first run plans statements and fills caches.
                await _until_done(runs.start(1, 1), ledger, runs=1, limit_seconds=options.limit_seconds)
                TALLY.ended = 0
                ledger.settle()
                return await WORKLOADS[options.workload](runs, ledger, options.limit_seconds)

    figures = driver.run(measure())
    print(json.dumps({**figures, "configuration": driver.configuration}), flush=True)


async def _many(runs: Runs, ledger: Ledger, limit_seconds: float) -> Figures:
    return await _steps(runs, ledger, RUNS, STEPS_EACH, limit_seconds)


async def _long(runs: Runs, ledger: Ledger, limit_seconds: float) -> Figures:
    return await _steps(runs, ledger, 1, LONG_STEPS, limit_seconds)


async def _steps(runs: Runs, ledger: Ledger, count: int, steps: int, limit_seconds: float) -> Figures:
    wal = ledger.wal_bytes()
    seconds = await _until_done(runs.start(count, steps), ledger, runs=count, limit_seconds=limit_seconds)
    after = ledger.wal_bytes()
    total = count * steps
    written = None if wal is None or after is None else (after - wal) / total
    return {"steps": total, "per_second": total / seconds, "wal_bytes": written}


async def _children(runs: Runs, ledger: Ledger, limit_seconds: float) -> Figures:
    before = ledger.done() or 0
    began = time.monotonic()
    await runs.start_parent(CHILDREN)
    await _until(lambda: TALLY.ended >= 1, began, limit_seconds)
    await _until(lambda: (ledger.done() or 0) - before >= CHILDREN + 1, began, limit_seconds)
    return {"children": CHILDREN, "seconds": time.monotonic() - began}


async def _signals(runs: Runs, ledger: Ledger, limit_seconds: float) -> Figures:
    """One signal each 50 ms: from the start of the call that sends it to the first line after the wait."""
    began = time.monotonic()
    await runs.start_waiting(SIGNALS)
    await _until(lambda: TALLY.waiting >= SIGNALS, began, limit_seconds)
    await asyncio.sleep(SUSPENDED_AFTER_SECONDS)
    sent_ns, next_at = {}, time.monotonic()
    for number in range(SIGNALS):
        next_at = max(next_at + PACE_SECONDS, time.monotonic())
        await asyncio.sleep(next_at - time.monotonic())
        sent_ns[number] = time.monotonic_ns()
        await runs.signal(number)
    await _until(lambda: len(TALLY.resumed_ns) >= SIGNALS, began, limit_seconds)
    samples = sorted(TALLY.resumed_ns[number] - at for number, at in sent_ns.items())
    return {"signals": SIGNALS, **{f"p{p}_ms": _percentile(samples, p) / 1e6 for p in (50, 95)}}


async def _until_done(start: Awaitable[None], ledger: Ledger, *, runs: int, limit_seconds: float) -> float:
    """Seconds from the first call until all these runs are recorded as ended."""
    before, ended_before = ledger.done() or 0, TALLY.ended
    began = time.monotonic()
    await start
    await _until(lambda: TALLY.ended - ended_before >= runs, began, limit_seconds)
    await _until(lambda: (ledger.done() or 0) - before >= runs, began, limit_seconds)
    return time.monotonic() - began


async def _until(is_so: Callable[[], bool], began: float, limit_seconds: float) -> None:
    while not is_so():
        if time.monotonic() - began > limit_seconds:
            raise SystemExit(f"not done in {limit_seconds:.0f} s: {TALLY.ended} runs ended, {TALLY.waiting} wait")
        await asyncio.sleep(LOOK_SECONDS)


def _percentile(ordered: list[int], percent: int) -> int:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


WORKLOADS: dict[str, Workload] = {"many": _many, "long": _long, "signal": _signals, "children": _children}
