"""A figure stands for work that was done: what fails, dies or hangs is reported, and never counted."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import raw_limit, suite
from benchmarks.gauges import PostgresGauge
from benchmarks.measuring import workloads
from benchmarks.measuring.channel import WorkerOptions
from benchmarks.measuring.jobs import app, hold, nothing
from benchmarks.measuring.records import Effort, NotMeasured, Unmeasured, Workload
from benchmarks.measuring.rounds import measure_one, measure_rounds
from benchmarks.measuring.worker_processes import worker_processes
from benchmarks.measuring.workloads import Benchmark
from tenure.stores import JobFilter
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.server_process import is_alive
from tests.support.waiting import eventually

EFFORT = Effort(jobs=60, samples=2, running=10, concurrency=20)


@pytest.fixture
async def migrated(database: Database) -> Database:
    async with database.opened():
        return database


def worker_options(database: Database) -> WorkerOptions:
    return WorkerOptions(database=database.url, queue="here", concurrency=5)


async def test_a_job_that_did_not_succeed_leaves_no_figure(migrated: Database, tmp_path: Path) -> None:
    benchmark = Benchmark(migrated.url, effort=EFFORT, folder=tmp_path)
    app.database = migrated.url
    async with app:
        handles = await app.enqueue_many(map(nothing.options(queue=benchmark.queue).request, range(3)))
        await handles[1].cancel(hard=True)
        with pytest.raises(NotMeasured, match=r"3 of 3 jobs did not succeed: job .* is queued"):
            await benchmark._verified([*handles])
        with pytest.raises(NotMeasured, match=r"1 of 1 jobs did not succeed: job .* is cancelled"):
            await benchmark._verified([handles[1]])


async def test_a_job_that_is_cancelled_meanwhile_is_reported_after_the_wait(
    migrated: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "LIMIT_SECONDS", 3.0)

    async def meddle() -> Mapping[str, float]:
        """A gauge is read once the jobs are queued, and before they are run."""
        async with migrated.opened() as store:
            jobs = (await store.find(JobFilter(), limit=1)).jobs
        async with app:
            await app.cancel(jobs[0].id, hard=True)
        return {}

    benchmark = Benchmark(migrated.url, effort=EFFORT, folder=tmp_path, gauge=meddle)
    found = await measure_one(benchmark, Workload.DRAIN, 1)
    assert isinstance(found, Unmeasured)
    assert "have done 60 jobs within 4 s: 59 succeeded" in found.why


async def test_what_a_bench_gives_up_on_is_not_left_in_the_queue(
    migrated: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "LIMIT_JOBS_PER_SECOND", 1e9)
    monkeypatch.setattr(workloads, "LIMIT_SECONDS", 0.0)
    benchmark = Benchmark(migrated.url, effort=EFFORT, folder=tmp_path)
    with pytest.raises(NotMeasured, match="within 0 s"):
        await benchmark.measure(Workload.DRAIN)
    async with migrated.opened() as store:
        jobs = (await store.find(JobFilter(queues=(benchmark.queue,)), limit=1000)).jobs
    assert len(jobs) == 60
    assert not any(job.live for job in jobs)


async def test_a_worker_that_dies_is_noticed_at_once_and_the_other_is_ended(migrated: Database, tmp_path: Path) -> None:
    pids: list[int] = []

    async def lose_one() -> None:
        async with worker_processes(2, worker_options(migrated), log=tmp_path / "log") as workers:
            pids.extend(program.pid for program in workers._processes)
            workers.go()
            os.kill(pids[1], signal.SIGKILL)
            await workers.wait_until_succeeded(5, seconds=60)

    with pytest.raises(NotMeasured, match="a worker exited; it was expected to have done 5 jobs"):
        await lose_one()
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


async def test_a_worker_that_does_not_end_normally_fails_the_round(migrated: Database, tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="a worker failed while stopping"):
        async with worker_processes(1, worker_options(migrated), log=tmp_path / "log") as workers:
            os.kill(workers._processes[0].pid, signal.SIGKILL)


async def test_a_worker_that_cannot_start_reports_why(tmp_path: Path) -> None:
    missing = Database(f"sqlite:///{tmp_path / 'nowhere' / 'jobs.db'}")
    with pytest.raises(NotMeasured, match="a worker exited; it was expected to be up") as caught:
        async with worker_processes(1, worker_options(missing), log=tmp_path / "log"):
            raise AssertionError("they cannot be up")
    assert "the workers' log ends with" in str(caught.value)
    assert "nowhere" in str(caught.value)


async def test_a_worker_claims_nothing_before_its_start_signal(migrated: Database, tmp_path: Path) -> None:
    app.database = migrated.url
    async with app, worker_processes(1, worker_options(migrated), log=tmp_path / "log") as workers:
        [handle] = await app.enqueue_many([nothing.options(queue="here").request(1)])
        assert await (await app.store()).workers() == []
        assert (await handle.refresh()).attempt == 0
        workers.go()
        await workers.wait_until_succeeded(1, seconds=60)
        assert (await handle.wait(timeout_seconds=10)).result == "null"
        assert workers.last_success_seconds > 0
        assert workers.rss_bytes > 10 * 2**20
    assert [process.exit_code for process in workers._processes] == [0]


async def test_held_jobs_run_until_they_are_released(migrated: Database, tmp_path: Path) -> None:
    app.database = migrated.url
    async with app, worker_processes(1, worker_options(migrated), log=tmp_path / "log") as workers:
        handles = await app.enqueue_many(map(hold.options(queue="here").request, range(3)))
        workers.go()
        await workers.wait_until_running(3, seconds=60)
        assert workers.succeeded == 0
        workers.release()
        await workers.wait_until_succeeded(3, seconds=60)
        await eventually(lambda: workers.running == 0)
        assert [(await handle.wait(timeout_seconds=10)).result for handle in handles] == ["null"] * 3


async def test_rounds_are_interleaved_and_reported(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened():
        benchmark = Benchmark(database.url, effort=Effort(jobs=10, samples=1), folder=tmp_path)
    progress: list[tuple[str, float]] = []
    wanted = [(Workload.ENQUEUE_ONE, 1), (Workload.ENQUEUE_MANY, 1)]
    found = await measure_rounds(benchmark, wanted, rounds=2, on_progress=lambda *at: progress.append(at))
    assert [one.workload for one in found] == [Workload.ENQUEUE_ONE, Workload.ENQUEUE_MANY] * 2
    assert [share for _, share in progress] == [0.0, 0.25, 0.5, 0.75]
    assert progress[3][0] == "round 2 of 2: enqueue-many"


async def test_the_loop_by_hand_writes_the_rows_that_a_worker_writes(postgres_dsn: str, tmp_path: Path) -> None:
    """So that the share of the raw limit compares like with like: the counters agree, and the log is whole."""
    database, gauge = Database(postgres_dsn), PostgresGauge(postgres_dsn)
    async with database.opened():
        pass
    ours = await Benchmark(postgres_dsn, effort=EFFORT, folder=tmp_path, gauge=gauge).measure(Workload.DRAIN)
    app.database = postgres_dsn
    async with app:
        await app.enqueue_many(map(nothing.options(queue="raw").request, range(60)))
    before = await gauge()
    assert raw_limit.drain(postgres_dsn, "raw", processes=1)[0] == 60
    after = await gauge()
    for name in ("rows_inserted", "rows_updated", "rows_deleted"):
        # A worker also writes down itself and each of its claims, which sixty jobs have to bear.
        assert ours.gauged[name] == pytest.approx((after[name] - before[name]) / 60, abs=0.2), name
    assert ours.gauged["rows_inserted"] >= 2
    assert ours.gauged["wal_bytes"] > 500
    answer = tenure("verify", "--database", postgres_dsn, "--json")
    assert (answer.code, answer.json["jobs"]) == (0, 120), answer.out
    async with database.opened() as store:
        jobs = (await store.find(JobFilter(queues=("raw",)), limit=100)).jobs
    assert {(job.status, job.result, job.attempt, job.rev) for job in jobs} == {("succeeded", "null", 1, 4)}


async def test_the_suite_writes_a_table_figures_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "suite --stores sqlite --workloads enqueue-many drain --processes 1 --rounds 2 --jobs 50"
    monkeypatch.setattr("sys.argv", [*words.split(), "--out", str(tmp_path / "out")])
    code = await suite.run(suite.options_given(), tmp_path)
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"results.json", "results.md", "results.svg"}
    assert "| drain, 1 process | SQLite | 50 |" in capsys.readouterr().out
