"""Memory: of a worker that holds many running jobs, and of `tenure verify` and `tenure jobs tail` over a growing log.

Run as `python -m benchmarks.memory --help`, on Linux. The worker is that of the heartbeats workload, while its jobs run
and their leases are renewed. The commands run as processes of their own, of which the peak counts. The results are a
table (Markdown) and all figures (JSON) in the folder that --out names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.filling import filler_for, payload_of
from benchmarks.measuring.records import Effort, Workload
from benchmarks.measuring.workloads import Benchmark
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
WORKER_BYTES_MAX = 300_000_000
GROWTH_MAX = 1.1
"""The allowed growth from one log to one ten times as long: constant, except for the variation of an allocator.

The longest is compared with the one before it, since SQLite first fills its cache of pages, which has a fixed size.
"""
EVENTS_A_JOB = 4
PAYLOAD_BYTES = 256
LOOK_SECONDS = 0.05
LINES_A_LOOK = 1000
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Peak:
    """How much memory one of them had at one size."""

    store: str
    what: str
    size: int
    rss_bytes: int
    seconds: float


async def worker_peak(url: str, store: str, running: int, folder: Path) -> Peak:
    """A worker that runs so many jobs at once, each of which waits."""
    measured = await Benchmark(url, effort=Effort(running=running), folder=folder).measure(Workload.HEARTBEATS)
    return Peak(store, "worker", running, int(measured.figures["rss_bytes"]), measured.seconds)


def verify_peak(url: str, store: str, events: int, *, seconds_max: float) -> Peak:
    """`tenure verify` over so many events; it must find nothing wrong."""
    began, most = time.monotonic(), 0
    with _command("verify", "--json", url=url) as program:
        while program.poll() is None:
            most = max(most, peak_bytes(program.pid))
            _within(began, seconds_max, "verify")
            time.sleep(LOOK_SECONDS)
        assert program.stdout is not None, "it is a pipe"
        report = json.loads(program.stdout.read())
    if not report["ok"] or report["events"] < events:
        raise SystemExit(
            f"verify found {report['events']:,} of {events:,} events, and {len(report['problems'])} problems"
        )
    return Peak(store, "verify", events, most, time.monotonic() - began)


def tail_peak(url: str, store: str, events: int, *, seconds_max: float) -> Peak:
    """`tenure jobs tail` from the start of the log, until it has printed so many events."""
    began, most, printed = time.monotonic(), 0, 0
    with _command("jobs", "tail", "--from", "start", "--json", url=url) as program:
        assert program.stdout is not None, "it is a pipe"
        for _ in program.stdout:
            printed += 1
            if printed % LINES_A_LOOK == 0 or printed == events:
                most = max(most, peak_bytes(program.pid))
                _within(began, seconds_max, "tail")
            if printed == events:
                break
    if printed < events:
        raise SystemExit(f"the tail ended after {printed:,} of {events:,} events")
    return Peak(store, "event tail", events, most, time.monotonic() - began)


@contextmanager
def _command(*words: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours as a process, which is ended however this is left."""
    command = [sys.executable, "-m", "tenure", *words, "--database", url]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield program
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGINT)
        try:
            program.wait(timeout=10)
        except subprocess.TimeoutExpired:
            program.kill()
        program.communicate()


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had since its program began; 0 once it is gone.

    Not the kernel's ru_maxrss, which begins with what the parent had.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(found[0][1]) * 1024 if found else 0


def _within(began: float, seconds_max: float, what: str) -> None:
    if time.monotonic() - began > seconds_max:
        raise SystemExit(f"{what} took longer than {seconds_max:.0f} s")


def verdicts(peaks: Sequence[Peak]) -> Iterator[dict[str, Any]]:
    """The limits: a number of bytes for a worker; for a command, the memory that the next shorter log needed."""
    for store, what in dict.fromkeys((peak.store, peak.what) for peak in peaks):
        mine = sorted((peak for peak in peaks if (peak.store, peak.what) == (store, what)), key=lambda peak: peak.size)
        most = mine[-1]
        verdict = {"store": store, "what": what, "size": most.size, "rss_bytes": most.rss_bytes}
        if what == "worker":
            yield verdict | {
                "limit": f"under {WORKER_BYTES_MAX / MEGABYTE:.0f} MB",
                "ok": most.rss_bytes < WORKER_BYTES_MAX,
            }
        elif len(mine) > 1:
            factor = most.rss_bytes / mine[-2].rss_bytes
            limit = f"{factor:.2f} times that of {mine[-2].size:,} events; constant is up to {GROWTH_MAX}"
            yield verdict | {"limit": limit, "factor": factor, "ok": factor <= GROWTH_MAX}


def markdown(peaks: Sequence[Peak], fact: str) -> str:
    """The tables, after the facts about the run."""
    lines = [fact, "", "| what | store | running jobs or events | memory, MB | seconds |", "|---|---|---:|---:|---:|"]
    lines += [
        f"| {peak.what} | {NAMES[peak.store]} | {peak.size:,} | {peak.rss_bytes / MEGABYTE:.1f} | {peak.seconds:.0f} |"
        for peak in sorted(peaks, key=lambda peak: (peak.what, peak.store, peak.size))
    ]
    lines.append("")
    lines += [
        f"- {verdict['what']} on {NAMES[verdict['store']]}, {verdict['size']:,}: "
        f"{verdict['rss_bytes'] / MEGABYTE:.1f} MB ({verdict['limit']}): "
        f"{'as it should be' if verdict['ok'] else '**too much**'}"
        for verdict in verdicts(peaks)
    ]
    return "\n".join(lines) + "\n"


@dataclass
class Run:
    """One run on the chosen stores."""

    options: argparse.Namespace
    folder: Path
    server: PostgresServer | None

    async def peaks(self) -> AsyncIterator[Peak]:
        for store in self.options.stores:
            for running in self.options.running:
                async with self._database(store) as url:
                    yield await worker_peak(url, store, running, self.folder)
            async with self._database(store) as url:
                filler, held = filler_for(url), 0
                for events in sorted(self.options.events):
                    jobs = -(-events // EVENTS_A_JOB)
                    await filler.fill(jobs - held, queue="memory", payload=payload_of(PAYLOAD_BYTES), finished=True)
                    held = jobs
                    for peak in (verify_peak, tail_peak):
                        yield await asyncio.to_thread(peak, url, store, events, seconds_max=self.options.seconds_max)

    @asynccontextmanager
    async def _database(self, kind: str) -> AsyncIterator[str]:
        """A new one, with its schema."""
        with ExitStack() as stack:
            if kind == "sqlite":
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder))
                url = f"sqlite:///{folder}/jobs.db"
            else:
                assert self.server is not None, "there is a server for PostgreSQL"
                url = self.server.create_database()
                stack.callback(self.server.drop_database, url)
            store = store_for(url)
            await store.migrate()
            await store.close()
            yield url


async def run(options: argparse.Namespace) -> int:
    """Run all measurements; the exit code, which is 1 if a limit is exceeded."""
    peaks: list[Peak] = []
    with tempfile.TemporaryDirectory(prefix="tenure-memory-") as folder, ExitStack() as stack:
        server = None
        if "postgres" in options.stores:
            settings = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
            server = stack.enter_context(PostgresServer(fsync=True, settings=settings))
        async for peak in Run(options, Path(folder), server).peaks():
            print(f"{peak.store}, {peak.what}, {peak.size:,}: {peak.rss_bytes / MEGABYTE:.1f} MB", file=sys.stderr)
            peaks.append(peak)
    fact = f"Python {sys.version.split()[0]}, {os.cpu_count()} cores. MB are millions of bytes of resident memory."
    options.out.mkdir(parents=True, exist_ok=True)
    found = [*verdicts(peaks)]
    report = {"facts": [fact], "peaks": [{name: getattr(peak, name) for name in Peak.__slots__} for peak in peaks]}
    (options.out / "memory.json").write_text(
        json.dumps(report | {"verdicts": found}, indent=2) + "\n", encoding="utf-8"
    )
    (options.out / "memory.md").write_text(markdown(peaks, fact), encoding="utf-8")
    print(markdown(peaks, fact))
    return int(not all(verdict["ok"] for verdict in found))


def options_given() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/memory"), help="folder for the results")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    parser.add_argument("--running", type=int, nargs="*", default=[100, 10_000], help="jobs that a worker holds")
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="length of the log")
    parser.add_argument("--seconds-max", type=float, default=1800.0, help="limit of each command")
    return parser.parse_args()


def main() -> None:
    sys.exit(asyncio.run(run(options_given())))


if __name__ == "__main__":
    main()
