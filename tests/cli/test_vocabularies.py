"""`tenure jobs … --vocabulary` in a process of its own, on a real database."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tenure.lifecycle.operations import Complete, Fail, Progress, Retry, Suspend
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import Status
from tenure.observe.event_translator import EventTranslator
from tenure.testing.driver import ERROR, OPERATOR, Driver, prune_finished
from tenure.vocabularies import VOCABULARY_NAMES, translate, vocabularies, vocabulary
from tenure.vocabularies.vocabulary import histories
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.running_command import started
from tests.support.sample_jobs import one_of_each
from tests.support.server_process import wait_until

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"
BOTH = ("--vocabulary", "engine", "--vocabulary", "engine-old")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'jobs.db'}")


def jobs(database: Database, *arguments: str) -> Answer:
    return tenure("jobs", *arguments, "--database", database.url)


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer
    return [json.loads(line) for line in answer.out.splitlines()]


async def ended(database: Database) -> Job:
    async with database.opened() as store:
        driver = Driver(store)
        job = await driver.running(submitted_by="ada", payload='{"setup":7}')
        job = await driver.apply(job, Progress(40))
        return await driver.apply(job, Complete('{"secret":"xyzzy"}'))


@pytest.mark.requirement("EH-08")
@pytest.mark.parametrize("name", VOCABULARY_NAMES)
async def test_jobs_are_listed_in_the_requested_vocabulary_without_content(database: Database, name: str) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        made = [*await one_of_each(driver), await driver.running(payload='{"secret":"xyzzy"}')]
        expected = sorted(made, key=lambda job: str(job.id))
        logs = await store.history([job.id for job in made])
    words = vocabulary(name)
    answer = jobs(database, "ls", "--oldest", "--json", "--vocabulary", name)
    assert answer.code == 0, answer
    assert (answer.json["vocabulary"], answer.json["after"]) == (name, None)
    listed = [{**job, "status": job.get("status", job.get("state"))} for job in answer.json["jobs"]]
    assert [job["status"] for job in listed] == [words.status(job, logs[job.id]) for job in expected]
    assert [set(job) for job in answer.json["jobs"]] == [
        set(words.job(job, logs[job.id], content=False)) for job in expected
    ]
    assert "xyzzy" not in answer.out
    in_words = jobs(database, "ls", "--oldest", "--vocabulary", name)
    heading, *rows = in_words.out.splitlines()
    assert heading.split() == ["id", "status", "kind", "queue", "attempt", "created", "note"]
    assert [row.split()[:2] for row in rows] == [[str(job.id), words.status(job, logs[job.id])] for job in expected]
    assert {job.status for job in made} == set(Status)


async def test_filters_pages_and_empty_lists_are_as_without_a_vocabulary(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        first, second = await driver.add(), await driver.add()
        await driver.apply(await driver.running(), Fail(ERROR))
    page = jobs(database, "ls", "--oldest", "--json", "--status", "queued", "--limit", "1", "--vocabulary", "engine")
    assert ([job["jobId"] for job in page.json["jobs"]], page.json["after"]) == ([str(first.id)], str(first.id))
    in_words = jobs(database, "ls", "--oldest", "--status", "queued", "--limit", "1", "--vocabulary", "engine")
    assert in_words.out.splitlines()[-1] == f"more jobs: --after {first.id}"
    rest = jobs(
        database, "ls", "--oldest", "--status", "queued", "--after", str(first.id), "--json", "--vocabulary", "contract"
    )
    assert [job["id"] for job in rest.json["jobs"]] == [str(second.id)]
    assert jobs(database, "ls", "--kind", "none", "--vocabulary", "engine").out == "no jobs match\n"
    nothing = jobs(database, "ls", "--kind", "none", "--json", "--vocabulary", "engine").json
    assert nothing == {"vocabulary": "engine", "jobs": [], "after": None}


@pytest.mark.requirement("EH-07", "EH-08")
async def test_one_job_is_shown_with_all_that_happened_to_it(database: Database) -> None:
    job = await ended(database)
    shown = jobs(database, "show", str(job.id), "--json", "--events", "--vocabulary", "engine").json
    assert shown["vocabulary"] == "engine"
    assert (shown["job"]["status"], shown["job"]["payload"], shown["job"]["userId"]) == (
        "completed",
        {"setup": 7},
        "ada",
    )
    assert [event["name"] for event in shown["events"]] == [
        *("JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING", "JOB_PROGRESS", "JOB_COMPLETED")
    ]
    assert set(shown["events"][-1]["event"]) == {"jobId", "engineId", "completedAt", "duration"}
    in_words = jobs(database, "show", str(job.id), "--events", "--vocabulary", "engine").out.splitlines()
    assert next(line for line in in_words if line.startswith("status:")).split() == ["status:", "completed"]
    assert [line.split()[0] for line in in_words[-5:]] == [event["name"] for event in shown["events"]]
    assert "events" not in jobs(database, "show", str(job.id), "--json", "--vocabulary", "engine").json


@pytest.mark.parametrize("name", VOCABULARY_NAMES)
async def test_every_vocabulary_shows_a_job_in_both_forms(database: Database, name: str) -> None:
    job = await ended(database)
    shown = jobs(database, "show", str(job.id), "--json", "--events", "--vocabulary", name)
    assert shown.code == 0, shown
    in_words = jobs(database, "show", str(job.id), "--events", "--vocabulary", name)
    assert in_words.code == 0, in_words
    for field in shown.json["job"]:
        assert f"\n{field}:" in f"\n{in_words.out}"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ls", "--vocabulary", "klingon"), 2, "'engine-old'"),
        (("ls", "--vocabulary", "klingon"), 2, "'klingon' is not one of"),
        (("tail", "--vocabulary", "klingon"), 2, "'klingon' is not one of"),
        (("tail", *BOTH, "--vocabulary", "worker"), 2, "at most 2 different ones"),
        (("tail", "--vocabulary", "worker", "--vocabulary", "worker"), 2, "at most 2 different ones"),
        (("show", UNKNOWN, "--provenance", "--vocabulary", "worker"), 2, "without --vocabulary"),
        (("show", UNKNOWN, "--vocabulary", "worker"), 1, "does not exist"),
    ],
)
def test_wrong_options_are_refused(database: Database, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert tenure("migrate", "--database", database.url).code == 0
    answer = jobs(database, *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


@pytest.mark.requirement("EH-10")
async def test_a_stream_can_have_the_old_and_the_new_names_at_once_or_only_the_new_ones(
    database: Database,
) -> None:
    job = await ended(database)
    both = lines(jobs(database, "tail", str(job.id), "--json", *BOTH))
    assert [(line["vocabulary"], line["name"]) for line in both] == [
        ("engine", "JOB_QUEUED"),
        ("engine-old", "JOB_QUEUED"),
        ("engine", "JOB_DISPATCHED"),
        ("engine", "JOB_RUNNING"),
        ("engine-old", "JOB_STARTED"),
        ("engine", "JOB_PROGRESS"),
        ("engine-old", "JOB_PROGRESS"),
        ("engine", "JOB_COMPLETED"),
        ("engine-old", "JOB_FINISHED"),
    ]
    alone = lines(jobs(database, "tail", str(job.id), "--json", "--vocabulary", "engine"))
    assert [line["event"] for line in alone] == [line["event"] for line in both if line["vocabulary"] == "engine"]
    assert {line["vocabulary"] for line in alone} == {"engine"}
    ours = lines(jobs(database, "tail", str(job.id), "--json"))
    assert [event["type"] for event in ours] == ["enqueued", "claimed", "started", "progress", "succeeded"]


async def test_only_the_last_line_of_an_event_has_its_position(database: Database) -> None:
    """So a reader that resumes after the last position it read has every line before it."""
    job = await ended(database)
    ours = lines(jobs(database, "tail", str(job.id), "--json"))
    translated = lines(jobs(database, "tail", str(job.id), "--json", "--vocabulary", "ledger"))
    assert [line["name"] for line in translated] == [
        *("PENDING", "LEASED", "RUNNING", "IN_PROGRESS", "COMMITTED", "DONE", "SUCCEEDED")
    ]
    positions = [line["position"] for line in translated]
    at = {event["type"]: event["position"] for event in ours}
    assert positions == [at["enqueued"], None, at["claimed"], at["started"], None, None, at["succeeded"]]


@pytest.mark.requirement("SM-19", "EH-12")
async def test_the_stream_marks_extensions(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        job = await driver.running()
        await driver.apply(job, Retry(ERROR, delay_seconds=0))
        [again] = await driver.claim()
        await driver.apply(again, Complete("1"))
    found = [
        line["transition"] for line in lines(jobs(database, "tail", str(job.id), "--json", "--vocabulary", "engine"))
    ]
    assert [(one["from"], one["to"]) for one in found if one["extension"]] == [("running", "queued")]
    assert {one["subject"] for one in found} == {str(job.id)}
    printed = jobs(database, "tail", str(job.id), "--vocabulary", "engine").out
    assert [line.split("  ")[2] for line in printed.splitlines()][:4] == [
        *("JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING", "JOB_QUEUED (extension)")
    ]
    shown = jobs(database, "show", str(job.id), "--json", "--events", "--vocabulary", "engine").json["events"]
    assert [one["transition"] for one in shown] == found
    assert "JOB_QUEUED (extension)" in jobs(database, "show", str(job.id), "--events", "--vocabulary", "engine").out


async def test_in_text_each_line_names_its_vocabulary(database: Database) -> None:
    job = await ended(database)
    answer = jobs(database, "tail", str(job.id), *BOTH)
    assert answer.code == 0, answer
    cells = [line.split("  ") for line in answer.out.splitlines()]
    assert [cell[1:3] for cell in cells[-2:]] == [["engine", "JOB_COMPLETED"], ["engine-old", "JOB_FINISHED"]]
    assert json.loads(cells[-1][3])["jobId"] == str(job.id)


@pytest.mark.requirement("EH-07", "EH-09")
async def test_the_tail_resumes_from_any_position_in_another_vocabulary(database: Database, tmp_path: Path) -> None:
    """Also from the middle of a job's life, and for jobs whose lives cross."""
    async with database.opened() as store:
        driver = Driver(store)
        a, b = await driver.running(submitted_by="ada"), await driver.running()
        middle = (await store.tail(limit=1000)).position
        await driver.apply(a, Retry(ERROR, delay_seconds=0))
        await driver.apply(b, Suspend(delay_seconds=0))
        for _ in range(2):
            [job] = await driver.claim()
            await driver.apply(job, Complete("1"))
        expected = []
        logs = await store.history([a.id, b.id])
        translated = {
            (one.job_id, one.rev): vocabulary("engine").translate(history)
            for job in (a, b)
            for one, history in zip(logs[job.id], histories(job.origin, logs[job.id]), strict=True)
        }
        for event in (await store.tail(after=middle, limit=1000)).events:
            expected += [(line.name, line.fields) for line in translated[event.job_id, event.rev]]
    arguments = ("--json", "--from", middle, "--vocabulary", "engine", "--database", database.url)
    with started("jobs", "tail", *arguments, folder=tmp_path) as tail:
        assert wait_until(lambda: len(_whole_lines(tail.log)) >= len(expected), seconds=30), tail.log
        tail.signal(signal.SIGINT)
        assert tail.ended() == 130
    assert [(line["name"], line["event"]) for line in _whole_lines(tail.log)] == expected
    assert [name for name, _ in expected].count("JOB_COMPLETED") == 2


def _whole_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]


async def test_an_erased_job_is_shown_without_its_content(database: Database) -> None:
    job = await ended(database)
    async with database.opened() as store:
        driver = Driver(store)
        kept = await driver.apply(await driver.running(), Complete("1"))
        await store.erase(job.id, reason="privacy", actor=OPERATOR)
    erased = jobs(database, "show", str(job.id), "--json", "--vocabulary", "engine").json["job"]
    assert (erased["payload"], erased["status"]) == (None, "completed")
    listed = jobs(database, "ls", "--oldest", "--json", "--vocabulary", "contract").json["jobs"]
    assert {one["id"]: one["status"] for one in listed} == dict.fromkeys((str(job.id), str(kept.id)), "succeeded")


@pytest.mark.parametrize("jobs_kept", [0, 1, 1000])
async def test_a_stream_is_the_same_however_few_logs_are_cached(
    database: Database, monkeypatch: pytest.MonkeyPatch, jobs_kept: int
) -> None:
    monkeypatch.setattr("tenure.observe.event_translator.JOBS_CACHED_MAX", jobs_kept)
    async with database.opened() as store:
        driver = Driver(store)
        made = await one_of_each(driver)
        logs = await store.history([job.id for job in made])
        chosen = vocabularies(("engine", "ledger"))
        expected = {
            (event.job_id, event.rev): translate(chosen, history)
            for job in made
            for event, history in zip(logs[job.id], histories(job.origin, logs[job.id]), strict=True)
        }
        translator = EventTranslator(store, chosen)
        for event in (await store.tail(limit=1000)).events:
            assert await translator.translate(event) == expected[event.job_id, event.rev]
        assert len(translator._cache) <= jobs_kept


async def test_what_retention_removed_before_it_was_streamed_is_null(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        job = await driver.apply(await driver.running(), Complete("1"))
        *_, last = await driver.events_of(job.id)
        translator = EventTranslator(store, vocabularies(("engine",)))
        assert await prune_finished(store, older_than_seconds=0) == 1
        [translated] = await translator.translate(last)
    assert (translated.name, translated.fields["engineId"], translated.fields["duration"]) == (
        "JOB_COMPLETED",
        None,
        None,
    )
