"""Completions per second under load, compared with the rate without it, and the stop of the workers afterwards.

Run as `python -m benchmarks.pressure --help`. Jobs have 256 bytes and wait a millisecond; workers are processes of
their own, through the public API, on PostgreSQL with fsync. Each scenario has a database of its own. The rate without
load is measured before and after each: the workers always have jobs, and the queue stays short. It writes a table
(Markdown), all figures (JSON) and a plot over time (SVG) to the folder that --out names.

By default one worker process has few slots, so that the worker limits the rate. With more slots the cores limit it, and
the processes that enqueue and read share them: then an overload or a reader always costs completions, and a burst of
ten times the rate is impossible. The table has the load of the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import asyncpg

from benchmarks.gauges import Cores
from benchmarks.growth_plots import Chart, Line, drawn
from benchmarks.measuring.channel import WorkerOptions
from benchmarks.measuring.jobs import app
from benchmarks.measuring.records import NotMeasured
from benchmarks.measuring.worker_processes import WorkerProcesses
from benchmarks.pressure_report import COLOURS, Outcome, Sample, figures, markdown, rate, slices
from benchmarks.pressure_worker import pressed_workers
from benchmarks.pressures import Producer, an_idle_transaction, lasting, overlapping_readers
from tenure.stores import store_for
from tests.support.postgres import PostgresServer

QUEUE = "pressure"
SAMPLE_SECONDS = 1.0
WARM_UP_SECONDS = 5.0
OVERLOAD = 1.5
"""How many times faster jobs are enqueued than the workers complete them without load."""

DEAD = """
select coalesce(sum(n_dead_tup), 0)::bigint as dead_tuples,
    pg_relation_size('tenure.jobs_ready') as ready_bytes,
    (select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where relname = 'jobs') as dead_jobs
from pg_stat_user_tables
where schemaname = 'tenure'
"""
LEASED = "select count(*) from tenure.jobs where status in ('claimed', 'running')"


class Scenario(StrEnum):
    """A scenario: the load beside the workers."""

    CLEAN = "clean"
    IDLE = "idle transaction"
    OVERLOAD = "overload"
    READERS = "readers"
    BURST = "burst"


@dataclass
class Measuring:
    """One scenario on its database."""

    url: str
    scenario: Scenario
    options: argparse.Namespace
    log: Path
    seconds: float
    clean_rate: float | None

    async def outcome(self) -> Outcome:
        app.database = self.url
        producer = Producer(QUEUE)
        options = WorkerOptions(database=self.url, queue=QUEUE, concurrency=self.options.concurrency)
        try:
            async with pressed_workers(self.options.processes, options, log=self.log) as members:
                members.go()
                async with lasting(producer.keep(lambda: members.succeeded)):
                    await asyncio.sleep(WARM_UP_SECONDS)
                async with self._in_the_way(producer, members):
                    before = Cores.now()
                    samples = await self._watch(members, producer)
                    busy = Cores.now().busy_since(before)
                    stop_seconds, problem = await _stopped(members)
        finally:
            await app.close()
        held, verified = await _held(self.url), await self._verified()
        return Outcome(
            scenario=str(self.scenario),
            samples=samples,
            cores_busy=busy,
            enqueued=producer.enqueued,
            offered_per_second=self.clean_rate if self.scenario is Scenario.BURST else None,
            burst_per_second=producer.in_bursts / producer.burst_seconds if producer.burst_seconds else None,
            stop_seconds=stop_seconds,
            stop_problem=problem or (f"{held} jobs were left held" if held else None),
            verified=verified,
        )

    @asynccontextmanager
    async def _in_the_way(self, producer: Producer, members: WorkerProcesses) -> AsyncIterator[None]:
        """The producers of this scenario, and its other load."""
        match self.scenario:
            case Scenario.OVERLOAD:
                producing = producer.pace(OVERLOAD * self._clean())
            case Scenario.BURST:
                producing = producer.bursts(self._clean())
            case _:
                producing = producer.keep(lambda: members.succeeded)
        async with lasting(producing):
            if self.scenario is Scenario.IDLE:
                async with an_idle_transaction(self.url):
                    yield
            elif self.scenario is Scenario.READERS:
                async with overlapping_readers(self.url, seconds=self.seconds / 10):
                    yield
            else:
                yield

    def _clean(self) -> float:
        assert self.clean_rate is not None, "the clean rate is measured first"
        return self.clean_rate

    async def _watch(self, members: WorkerProcesses, producer: Producer) -> list[Sample]:
        """Sample the counts each second."""
        connection = await asyncpg.connect(self.url)
        samples: list[Sample] = []
        began = time.monotonic()
        try:
            for number in range(int(self.seconds / SAMPLE_SECONDS) + 1):
                await asyncio.sleep(max(0.0, began + number * SAMPLE_SECONDS - time.monotonic()))
                row = await connection.fetchrow(DEAD)
                assert row is not None, "an aggregate has one row"
                samples.append(
                    Sample(
                        seconds=time.monotonic() - began,
                        succeeded=members.succeeded,
                        backlog=producer.enqueued - members.succeeded,
                        **{name: int(value) for name, value in row.items()},
                    )
                )
        finally:
            await connection.close()
        return samples

    async def _verified(self) -> str:
        """The result of `tenure verify`."""
        if not self.options.verify_seconds:
            return "not run"
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenure", "verify", "--database", self.url, "--json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.options.verify_seconds):
                output, errors = await program.communicate()
        except TimeoutError:
            return f"unfinished after {self.options.verify_seconds:.0f} s"
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        if program.returncode not in (0, 1):
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            return f"ended with {program.returncode}: {' '.join(last)}"
        report = json.loads(output)
        return f"clean: {report['jobs']:,} jobs" if report["ok"] else f"{len(report['problems'])} problems"


async def _stopped(members: WorkerProcesses) -> tuple[float, str | None]:
    """How long the workers took to stop, and the problems of the stop."""
    began = time.monotonic()
    try:
        await members.stop()
    except NotMeasured as problem:
        return time.monotonic() - began, str(problem)
    return time.monotonic() - began, None


async def _held(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(LEASED))
    finally:
        await connection.close()


async def measured(
    server: PostgresServer, scenario: Scenario, options: argparse.Namespace, *, clean_rate: float | None
) -> Outcome:
    """One scenario on a database of its own."""
    url = server.create_database()
    try:
        store = store_for(url)
        await store.migrate()
        await store.close()
        with tempfile.TemporaryDirectory(prefix="tenure-pressure-") as folder:
            seconds = min(options.seconds, options.clean_seconds) if scenario is Scenario.CLEAN else options.seconds
            log = Path(folder) / "workers.log"
            return await Measuring(url, scenario, options, log, seconds, clean_rate).outcome()
    finally:
        server.drop_database(url)


def in_turn(wanted: Sequence[Scenario]) -> list[Scenario]:
    """Clean work first, after each scenario, and so also last.

    >>> [str(one) for one in in_turn([Scenario.IDLE, Scenario.BURST])]
    ['clean', 'idle transaction', 'clean', 'burst', 'clean']
    """
    troubled = [scenario for scenario in wanted if scenario is not Scenario.CLEAN]
    return [Scenario.CLEAN, *(one for scenario in troubled for one in (scenario, Scenario.CLEAN))]


def plot(outcomes: Sequence[Outcome]) -> str:
    """Completions per second, the backlog and dead rows over time; of the clean runs the last."""
    shown_once = {outcome.scenario: outcome for outcome in outcomes}
    shown: list[tuple[str, Callable[[Outcome], list[tuple[float, float]]]]] = [
        ("Completions per second", slices),
        ("Jobs waiting", lambda one: [(sample.seconds, float(sample.backlog)) for sample in one.samples]),
        ("Dead rows of jobs", lambda one: [(sample.seconds, float(sample.dead_jobs)) for sample in one.samples]),
    ]
    return drawn(
        [
            Chart(
                title,
                "seconds",
                [Line(one.scenario, COLOURS[one.scenario], points(one)) for one in shown_once.values()],
                logarithmic=False,
            )
            for title, points in shown
        ]
    )


async def run(options: argparse.Namespace) -> int:
    """Run all scenarios; the exit code, which is 1 if one fell below 95 % of the rate without load, or did not stop
    cleanly."""
    outcomes: list[Outcome] = []
    clean_rate: float | None = None
    with PostgresServer(fsync=True, settings={"shared_buffers": "1GB", "max_wal_size": "4GB"}) as server:
        for scenario in in_turn([*map(Scenario, options.scenarios)]):
            outcome = await measured(server, scenario, options, clean_rate=clean_rate)
            clean_rate = rate(outcome) if scenario is Scenario.CLEAN else clean_rate
            outcomes.append(outcome)
            print(f"{scenario}: {rate(outcome):,.0f} completions/s", file=sys.stderr, flush=True)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        fact = (
            f"PostgreSQL {server.version} with fsync, {os.cpu_count()} cores, {options.processes} worker processes "
            f"with {options.concurrency} jobs at a time each, 256-byte payloads, 1 ms of waiting; "
            f"each after {WARM_UP_SECONDS:.0f} s of clean work. "
            f"Load of the machine at the end (1, 5, 15 min): {load}."
        )
    options.out.mkdir(parents=True, exist_ok=True)
    report = figures(outcomes, fact)
    (options.out / "pressure.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (options.out / "pressure.md").write_text(markdown(outcomes, fact), encoding="utf-8")
    (options.out / "pressure.svg").write_text(plot(outcomes), encoding="utf-8")
    print(markdown(outcomes, fact))
    return int(not all(verdict["ok"] for verdict in report["verdicts"]))


def options_given() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/pressure"), help="folder for the results")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each scenario is measured")
    troubles = [str(scenario) for scenario in Scenario if scenario is not Scenario.CLEAN]
    parser.add_argument("--scenarios", nargs="*", default=troubles, choices=troubles)
    parser.add_argument("--clean-seconds", type=float, default=120.0, help="at most, for each of the clean runs")
    parser.add_argument("--processes", type=int, default=1, help="worker processes")
    parser.add_argument("--concurrency", type=int, default=20, help="jobs at a time in each of them")
    parser.add_argument("--verify-seconds", type=float, default=3600.0, help="limit of `tenure verify`; 0: not run")
    return parser.parse_args()


def main() -> None:
    sys.exit(asyncio.run(run(options_given())))


if __name__ == "__main__":
    main()
