"""`tenure demo`: it reports what happened, also when something is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from tenure.cli.demo_app import DOOMED, call
from tenure.cli.demo_run import effect_problems, job_problems
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import Status
from tenure.seams import SYSTEM
from tests.support.command import tenure
from tests.support.running_command import started
from tests.support.server_process import children_of, is_alive, wait_until


def test_nothing_is_lost_and_nothing_is_done_twice_when_a_worker_is_killed(tmp_path: Path) -> None:
    answer = tenure("demo", "--jobs", "80", "--json", "--keep", str(tmp_path / "kept"))
    assert answer.code == 0, answer
    found = answer.json
    assert (found["ok"], found["problems"], found["jobs"]) == (True, [], 80)
    assert found["ended"] == {"succeeded": 79, "dead_lettered": 1}
    assert found["effects"] == 79
    assert found["killed"]["running"] >= 1
    assert answer.err == ""
    database = f"sqlite:///{tmp_path / 'kept' / 'jobs.db'}"
    assert tenure("verify", "--database", database).code == 0
    again = tenure("demo", "--keep", str(tmp_path / "kept"))
    assert (again.code, again.out) == (2, "")
    assert "earlier run" in again.err


def test_it_prints_its_steps_and_removes_its_folder(tmp_path: Path) -> None:
    answer = tenure("demo", "--jobs", "60", env={"TMPDIR": str(tmp_path)})
    assert answer.code == 0, answer
    assert "killed: worker " in answer.out
    assert answer.out.endswith("every record matches its events\n")
    assert "60 jobs enqueued" in answer.err
    assert "killed with SIGKILL while it ran" in answer.err
    assert list(tmp_path.iterdir()) == []


def effects(database: Path) -> list[str]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        try:
            return [job for (job,) in connection.execute("select job from effects order by rowid")]
        except sqlite3.OperationalError:
            return []


def test_an_effect_that_is_doubled_or_missing_makes_it_fail(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    with started("demo", "--jobs", "80", "--json", "--keep", str(tmp_path), folder=tmp_path) as demo:
        assert wait_until(lambda: len(effects(database)) >= 3, seconds=60), demo.log
        doubled, missing, *_ = effects(database)
        with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
            connection.execute("insert into effects select * from effects where job = ?", (doubled,))
            connection.execute("delete from effects where job = ?", (missing,))
        assert demo.ended(seconds=90) == 1, demo.log
        found = json.loads(demo.log)
    assert found["ok"] is False
    assert found["problems"] == [
        f"1 job succeeded without an effect: {missing}",
        f"1 job had more than one effect: {doubled}",
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_takes_its_workers_with_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with started("demo", folder=tmp_path, env={"TMPDIR": str(tmp_path)}) as demo:
        demo.wait_for_log("300 jobs enqueued")
        workers = children_of(demo.process.pid)
        assert len(workers) == 2
        demo.signal(number)
        assert demo.ended(seconds=20) == code, demo.log
        assert not any(is_alive(pid) for pid in workers)
        assert "Traceback" not in demo.log
    assert not list(tmp_path.glob("tenure-demo-*"))


def test_killed_it_does_not_leave_its_workers_behind(tmp_path: Path) -> None:
    with started("demo", "--keep", str(tmp_path / "kept"), folder=tmp_path) as demo:
        demo.wait_for_log("300 jobs enqueued")
        workers = children_of(demo.process.pid)
        demo.process.kill()
        assert wait_until(lambda: not any(map(is_alive, workers)), seconds=30), log_of(tmp_path)


def log_of(folder: Path) -> str:
    return (folder / "kept" / "workers.log").read_text()


@pytest.mark.parametrize("options", [("--jobs", "3"), ("--jobs", "many"), ("--keep", "/dev/null/x"), ("--nonsense",)])
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...]) -> None:
    answer = tenure("demo", *options)
    assert (answer.code, answer.out) == (2, ""), answer


def job(kind: str, status: Status) -> Job:
    number = 13 if kind == DOOMED else 2
    origin = msgspec.structs.replace(call(number).enqueue.origin, id=SYSTEM.random.job_id())
    at = SYSTEM.clock.now()
    return Job(origin=origin, status=status, rev=1, created_at=at, updated_at=at)


def by_id(*jobs: Job) -> dict[UUID, Job]:
    return {one.id: one for one in jobs}


def test_a_job_that_is_gone_or_ended_otherwise_is_a_problem() -> None:
    good, doomed = job("charge", Status.SUCCEEDED), job(DOOMED, Status.DEAD_LETTERED)
    assert job_problems([good, doomed], by_id(good, doomed)) == []
    assert job_problems([good, doomed], by_id(doomed)) == [f"1 job lost: {good.id}"]
    stuck, spared = job("charge", Status.RUNNING), job(DOOMED, Status.SUCCEEDED)
    [problem] = job_problems([stuck, spared], by_id(stuck, spared))
    assert problem.startswith("2 jobs with a wrong status: ")
    assert f"charge {stuck.id} is running" in problem


def test_an_effect_of_a_job_that_did_not_succeed_is_a_problem() -> None:
    good, doomed = job("charge", Status.SUCCEEDED), job(DOOMED, Status.DEAD_LETTERED)
    jobs = by_id(good, doomed)
    assert effect_problems(jobs, {good.id: 1}) == []
    assert effect_problems(jobs, {good.id: 1, doomed.id: 1}) == [
        f"1 job had an effect and did not succeed: {doomed.id}"
    ]
    assert len(effect_problems(jobs, {good.id: 2})) == 1
    assert len(effect_problems(jobs, {})) == 1
