"""`tenure bench`: it counts only what succeeded, and touches nothing but its own jobs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tenure.cli import bench_workloads
from tenure.cli.bench_workloads import Benchmark, Effort, Workload
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import QUEUED, TERMINAL, Status
from tenure.stores import JobFilter, Store
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.running_command import started
from tests.support.server_process import children_of
from tests.support.waiting import eventually

SMALL = ("--jobs", "100", "--rounds", "1", "--samples", "3")
RATES = ["enqueue-one", "enqueue-many", "drain"]


def bench(database: Database, *options: str) -> Answer:
    return tenure("bench", "--database", database.url, *SMALL, *options)


async def jobs_of(store: Store, queue: str) -> list[Job]:
    page = await store.find(JobFilter(queues=(queue,)), limit=10_000)
    assert page.after is None
    return page.jobs


def test_every_workload_has_its_figures_on_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    answer = tenure("bench", *SMALL, "--json", env={"TMPDIR": str(tmp_path)}, cwd=tmp_path)
    assert (answer.code, answer.err) == (0, ""), answer
    found = {one["workload"]: one for one in answer.json["workloads"]}
    assert list(found) == [*RATES, "latency"]
    assert all(one["problem"] is None for one in found.values())
    assert all(found[name]["figures"]["jobs_per_second"] > 0 for name in RATES)
    latency = found["latency"]["figures"]
    assert 0 < latency["p50_ms"] <= latency["p95_ms"] <= latency["p99_ms"]
    assert [found[name]["jobs"] for name in RATES] == [10, 100, 100]
    assert list(tmp_path.iterdir()) == []


def test_it_prints_where_it_writes_and_what_it_keeps(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    answer = bench(database, "--workloads", "drain,latency")
    assert answer.code == 0, answer
    first, headings, *rows = answer.out.splitlines()
    assert first.startswith(f"measuring {database.url}: jobs go to queue bench-")
    assert first.endswith("and stay until they are pruned")
    assert headings.split() == ["workload", "jobs", "median", "rounds"]
    assert [row.split()[:2] for row in rows] == [["drain", "100"], ["latency", "3"]]
    assert "jobs/s" in rows[0]
    assert "p99" in rows[1]


async def test_in_a_database_of_others_it_touches_its_own_queue_alone(database: Database) -> None:
    async with database.opened() as store:
        [theirs] = await store.enqueue([Driver(store).enqueue(queue="default")])
        answer = bench(database, "--workloads", "enqueue-one,enqueue-many,latency", "--json")
        assert answer.code == 0, answer
        mine = await jobs_of(store, answer.json["queue"])
        assert len(mine) == 11 + 101 + 4, "each workload has its jobs and one to warm up"
        assert {job.status for job in mine} == {Status.SUCCEEDED}
        assert (await store.read([theirs.job.id]))[theirs.job.id] == theirs.job
        assert theirs.job.status is QUEUED
        assert len((await store.find(JobFilter(), limit=10_000)).jobs) == len(mine) + 1
    verified = tenure("verify", "--database", database.url)
    assert verified.code == 0, verified.out


async def test_two_runs_never_share_a_queue(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    first, second = (bench(database, "--workloads", "enqueue-one", "--json").json["queue"] for _ in range(2))
    assert first != second


async def test_its_worker_is_unregistered_at_the_end(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    assert bench(database, "--workloads", "drain").code == 0
    async with database.opened() as store:
        assert await store.workers() == []


async def test_a_job_that_does_not_succeed_leaves_its_workload_without_a_figure(database: Database) -> None:
    async with database.opened() as store:
        benchmark = Benchmark(database.url, Effort(jobs=10))
        await store.queues.pause(benchmark.queue, actor=OPERATOR)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench_workloads, "LIMIT_SECONDS", 0.0)
            found = await benchmark.run(Workload.DRAIN)
        assert (found.figures, found.problem) == ({}, "after 0 s, 0 of 10 jobs had succeeded")
        assert {job.status for job in await jobs_of(store, benchmark.queue)} == {Status.CANCELLED}


def test_a_database_that_is_not_migrated_is_refused_and_left_as_it_was(database: Database) -> None:
    answer = bench(database)
    assert (answer.code, answer.out) == (3, ""), answer
    assert "run `tenure migrate --database '" in answer.err
    assert not (database.is_sqlite and database.path.exists())


def test_the_database_of_the_environment_is_not_written_to(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'precious.db'}"
    answer = tenure("bench", *SMALL, "--workloads", "enqueue-one", env={"TENURE_DATABASE": url})
    assert answer.code == 0, answer
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--workloads", "drain,fly"),
        ("--workloads", ""),
        ("--samples", "0"),
        ("--jobs", "0"),
        ("--rounds", "0"),
        ("--database", "mysql://localhost/x"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...]) -> None:
    answer = tenure("bench", *options)
    assert (answer.code, answer.out) == (2, ""), answer


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted_it_cancels_what_is_left(tmp_path: Path, number: signal.Signals, code: int) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    tenure("migrate", "--database", database.url)
    options = ("--workloads", "drain", "--jobs", "1000", "--concurrency", "1", "--rounds", "100")
    with started("bench", *options, "--database", database.url, folder=tmp_path) as running:
        async with database.opened() as store:

            async def has_begun() -> bool:
                return bool((await store.find(JobFilter(), limit=1)).jobs)

            await eventually(has_begun, seconds=60)
        assert children_of(running.process.pid) == [], "it starts no process"
        running.signal(number)
        assert running.ended(seconds=30) == code, running.log
        assert "Traceback" not in running.log
    async with database.opened() as store:
        page = await store.find(JobFilter(statuses=tuple(set(Status) - TERMINAL)), limit=10)
    assert page.jobs == []
