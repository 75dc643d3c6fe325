"""`tenure jobs enqueue`, `tenure jobs retry` and `--app`, in processes of their own on real databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Complete, DeadLetter, Fail, Halt
from tenure.lifecycle.records import Job
from tenure.stores import JobFilter
from tenure.testing.driver import ERROR, OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.running_command import started

APP = """
import tenure

app = tenure.App({url!r})


@app.job(queue="mail", max_attempts=7)
def send(to: str, times: int = 1) -> str:
    return to * times
"""


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    (tmp_path / "post.py").write_text(APP.format(url=database.url))
    return tmp_path


def enqueue(folder: Path, *arguments: str) -> Answer:
    return tenure("jobs", "enqueue", *arguments, "--app", "post:app", cwd=folder)


async def all_jobs(database: Database) -> list[Job]:
    async with database.opened() as store:
        return (await store.find(JobFilter(), limit=100)).jobs


async def test_a_job_is_enqueued_as_its_app_declares_it(database: Database, folder: Path) -> None:
    assert tenure("migrate", "--app", "post:app", cwd=folder).code == 0
    answer = enqueue(folder, "send", '{"to": "ada"}')
    assert answer.code == 0, answer
    [job] = await all_jobs(database)
    assert answer.out == f"{job.id} enqueued\n"
    assert (job.kind, job.queue, job.policy.max_attempts, job.origin.payload) == ("send", "mail", 7, '{"to":"ada"}')
    async with database.opened() as store:
        [event] = (await store.history([job.id]))[job.id]
    assert event.actor.startswith("client:cli/")


async def test_options_replace_those_of_the_declaration(database: Database, folder: Path) -> None:
    tenure("migrate", "--app", "post:app", cwd=folder)
    options = ("--queue", "urgent", "--priority", "9", "--max-attempts", "2", "--at", "2090-01-31T09:00")
    answer = enqueue(folder, "send", '{"to": "ada"}', *options, "--tag", "a=b", "--dedupe-key", "k", "--json")
    assert (answer.code, answer.json["created"]) == (0, True), answer
    [job] = await all_jobs(database)
    assert answer.json["job"]["id"] == str(job.id)
    assert (job.queue, job.origin.priority, job.policy.max_attempts) == ("urgent", 9, 2)
    assert (job.due_at and job.due_at.isoformat(), job.origin.tags) == ("2090-01-31T09:00:00+00:00", {"a": "b"})
    again = enqueue(folder, "send", '{"to": "bob"}', "--dedupe-key", "k")
    assert again.out == f"{job.id} was there already and is queued\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("send", '{"to": 7}'), "Expected `str`, got `int` - at `to`"),
        (("send",), "the argument `to` is missing"),
        (("send", "ada"), "send"),
        (("sned", "{}"), "'sned' is not declared; known are: send"),
        (("send", '{"to": "ada"}', "--at", "noon"), "'noon' is not a time like 2030-01-31T09:00"),
    ],
)
def test_what_does_not_fit_the_app_is_refused(
    database: Database, folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    tenure("migrate", "--app", "post:app", cwd=folder)
    answer = enqueue(folder, *arguments)
    assert (answer.code, answer.out) == (2, ""), answer
    assert problem in answer.err


async def ended(database: Database) -> dict[str, Job]:
    """Ended jobs of each kind."""
    async with database.opened() as store:
        driver = Driver(store)
        buried = DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, ERROR)
        jobs = {
            "failed": await driver.apply(await driver.running(), Fail(ERROR)),
            "dead_lettered": await driver.apply(await driver.running(), buried),
            "halted": await driver.apply(await driver.running(), Halt("budget", "null")),
            "discarded": await driver.apply(await driver.running(), buried),
            "succeeded": await driver.apply(await driver.running(), Complete("1")),
        }
        await store.resolve_dead_letters([jobs["discarded"].id], how="discarded", actor=OPERATOR)
        return jobs


async def test_failed_dead_lettered_and_halted_jobs_are_retried_by_id_alike(database: Database) -> None:
    jobs = await ended(database)
    ids = [str(jobs[name].id) for name in ("failed", "dead_lettered", "halted")]
    answer = tenure("jobs", "retry", *ids, "--json", "--database", database.url)
    assert answer.code == 0, answer
    assert [(row["id"], row["created"], row["status"]) for row in answer.json["jobs"]] == [
        (job_id, True, "queued") for job_id in ids
    ]
    again = tenure("jobs", "retry", ids[0], "--database", database.url)
    assert f"{ids[0]} was retried before as " in again.out
    refused = tenure("jobs", "retry", str(jobs["succeeded"].id), "--database", database.url)
    assert refused.code == 1
    assert "only dead-lettered, failed and halted jobs can be redriven" in refused.err


async def test_all_that_match_are_retried_but_not_discarded_dead_letters(database: Database) -> None:
    jobs = await ended(database)
    asked = tenure("jobs", "retry", "--all-matching", "--database", database.url)
    assert (asked.code, "confirm it with --yes" in asked.err) == (2, True)
    some = tenure("jobs", "retry", "--all-matching", "--status", "failed", "--yes", "--database", database.url)
    assert (some.code, some.out) == (0, "1 retried, 0 retried before, 0 unchanged\n"), some
    answer = tenure("jobs", "retry", "--all-matching", "--yes", "--json", "--database", database.url)
    report = answer.json
    assert (answer.code, report["redriven"], report["already_redriven"]) == (0, 2, 1), answer
    retried = {job.origin.redrive_of for job in await all_jobs(database) if job.origin.redrive_of}
    assert retried == {jobs[name].id for name in ("failed", "dead_lettered", "halted")}
    wrong = tenure("jobs", "retry", "--all-matching", "--status", "succeeded", "--yes", "--database", database.url)
    assert (wrong.code, "use failed, dead_lettered or halted" in wrong.err) == (2, True)


def test_every_command_takes_the_database_of_an_app(database: Database, folder: Path) -> None:
    missing = tenure("stats", "--app", "post:app", cwd=folder, env={"TENURE_DATABASE": "sqlite:///other.db"})
    assert (missing.code, missing.out) == (3, "")
    assert "run `tenure migrate --database '" in missing.err
    applied = tenure("migrate", "--app", "post:app", cwd=folder)
    assert applied.out.startswith("applied 0001_initial to ")
    for command in (("stats",), ("jobs", "ls"), ("dlq", "ls"), ("doctor",), ("migrate", "sql"), ("queues", "ls")):
        answer = tenure(*command, "--app", "post:app", cwd=folder)
        assert answer.code == 0, (command, answer)
    assert "0001" not in tenure("migrate", "--app", "post:app", "sql", cwd=folder).out
    other = tenure("migrate", "--app", "post:app", "--database", f"sqlite:///{folder / 'own.db'}", cwd=folder)
    assert "own.db" in other.out


def test_an_app_that_cannot_be_imported_shows_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with started("stats", "--app", "broken:app", folder=tmp_path) as command:
        assert command.ended() == 1, command.log
        assert "line 1" in command.log
        assert command.log.splitlines()[-1] == "tenure: importing broken failed: ZeroDivisionError: division by zero"


def test_the_payload_may_be_json_text_of_any_spacing(database: Database, folder: Path) -> None:
    tenure("migrate", "--app", "post:app", cwd=folder)
    answer = enqueue(folder, "send", json.dumps({"to": "ada", "times": 2}, indent=2), "--json")
    assert answer.json["job"]["payload"] == {"to": "ada", "times": 2}
