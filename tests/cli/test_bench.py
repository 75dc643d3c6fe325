"""`tenure bench`: it counts only what was done, touches nothing but its own jobs, and leaves no process behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import QUEUED, TERMINAL, Status
from tenure.stores import JobFilter, Store
from tenure.testing.driver import Driver
from tests.support.child_programs import children_of, is_alive, wait_until
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.running_command import started

SMALL = ("--jobs", "100", "--rounds", "1", "--samples", "3", "--running", "20")
RATES = ["enqueue-one", "enqueue-many", "drain", "cycle"]


def bench(database: Database, *options: str) -> Answer:
    return tenure("bench", "--database", database.url, *SMALL, *options)


async def jobs_of(store: Store, queue: str) -> list[Job]:
    page = await store.find(JobFilter(queues=(queue,)), limit=10_000)
    assert page.after is None
    return page.jobs


def test_every_workload_has_its_figures_on_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    answer = tenure("bench", *SMALL, "--json", env={"TMPDIR": str(tmp_path)}, cwd=tmp_path)
    assert (answer.code, answer.err) == (0, ""), answer
    found = {(one["workload"], one["processes"]): one for one in answer.json["workloads"]}
    shared = [(name, number) for name in ("drain", "cycle") for number in (1, 2)]
    assert list(found) == [("enqueue-one", 1), ("enqueue-many", 1), *shared, ("latency", 1), ("heartbeats", 1)]
    assert all(one["problem"] is None for one in found.values())
    assert all(one["figures"]["jobs_per_second"] > 0 for (name, _), one in found.items() if name in RATES)
    latency = found["latency", 1]["figures"]
    assert 0 < latency["p50_ms"] <= latency["p95_ms"] <= latency["p99_ms"]
    beats = found["heartbeats", 1]["figures"]
    assert beats["heartbeats_per_second"] > 0
    assert beats["rss_bytes"] > 10 * 2**20
    assert found["enqueue-one", 1]["jobs"] == 10
    assert found["drain", 2]["jobs"] == 100
    assert list(tmp_path.iterdir()) == []


def test_it_says_where_it_writes_and_what_stays(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    answer = bench(database, "--workloads", "drain,latency", "--processes", "1")
    assert answer.code == 0, answer
    first, headings, *rows = answer.out.splitlines()
    assert first.startswith(f"measuring on {database.url}: jobs are written to its queue bench-")
    assert first.endswith("and stay there until they are pruned")
    assert headings.split() == ["workload", "processes", "jobs", "median", "rounds"]
    assert [row.split()[:3] for row in rows] == [["drain", "1", "100"], ["latency", "1", "3"]]
    assert "jobs/s" in rows[0]
    assert "p99" in rows[1]


async def test_in_a_database_of_others_it_touches_its_own_queue_alone(database: Database) -> None:
    async with database.opened() as store:
        [theirs] = await store.enqueue([Driver(store).enqueue(queue="default")])
        answer = bench(database, "--workloads", "enqueue-one,enqueue-many,cycle", "--processes", "1", "--json")
        assert answer.code == 0, answer
        mine = await jobs_of(store, answer.json["queue"])
        assert len(mine) == 11 + 101 + 110, "each workload has its jobs and some to warm up"
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


async def test_two_processes_are_two_processes(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    answer = bench(database, "--workloads", "cycle", "--processes", "2", "--json")
    async with database.opened() as store:
        histories = await store.history([job.id for job in await jobs_of(store, answer.json["queue"])])
        claims = [event for history in histories.values() for event in history if event.type == "claimed"]
        workers = await store.workers(sorted({event.actor.partition(":")[2] for event in claims}))
        assert await store.workers() == [], "none is left that says it is there"
    assert len({worker.pid for worker in workers}) == len(workers)
    assert 1 <= len(workers) <= 2


def test_a_database_that_is_not_migrated_is_refused_and_left_as_it_was(database: Database) -> None:
    answer = bench(database)
    assert (answer.code, answer.out) == (3, ""), answer
    assert "run `tenure migrate`" in answer.err
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
        ("--processes", "0"),
        ("--processes", "1,many"),
        ("--jobs", "0"),
        ("--rounds", "0"),
        ("--database", "mysql://localhost/x"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...]) -> None:
    answer = tenure("bench", *options)
    assert (answer.code, answer.out) == (2, ""), answer


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted_it_takes_its_workers_with_it_and_cancels_what_is_left(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    tenure("migrate", "--database", database.url)
    options = ("--workloads", "heartbeats", "--running", "50", "--rounds", "50")
    with started("bench", *options, "--database", database.url, folder=tmp_path) as running:
        assert wait_until(lambda: len(children_of(running.process.pid)) == 1, seconds=60), running.log
        workers = children_of(running.process.pid)
        running.signal(number)
        assert running.ended(seconds=30) == code, running.log
        assert not any(is_alive(pid) for pid in workers)
        assert "Traceback" not in running.log
    async with database.opened() as store:
        jobs = (await store.find(JobFilter(), limit=10_000)).jobs
    assert len(jobs) == 50
    assert {job.status for job in jobs} <= TERMINAL


def test_killed_it_does_not_leave_its_workers_behind(tmp_path: Path) -> None:
    with started("bench", "--workloads", "heartbeats", folder=tmp_path, env={"TMPDIR": str(tmp_path)}) as running:
        assert wait_until(lambda: len(children_of(running.process.pid)) == 1, seconds=60), running.log
        workers = children_of(running.process.pid)
        running.process.kill()
        assert wait_until(lambda: not any(map(is_alive, workers)), seconds=30)
