"""`tenure jobs` in a process of its own, on real databases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest

from tenure.lifecycle.operations import Cancel, Commit, Complete, Fail, Progress, Retry, Suspend
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import Status
from tenure.stores import Store
from tenure.stores.contract import Artifact
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.sample_jobs import DEAD_LETTER, one_of_each
from tests.support.terminal import terminal

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


def jobs(database: Database, *arguments: str) -> Answer:
    return tenure("jobs", *arguments, "--database", database.url)


def ids_in(answer: Answer) -> list[str]:
    assert answer.code == 0, answer
    return [job["id"] for job in answer.json["jobs"]]


# ls


async def test_every_job_is_listed_oldest_first_and_without_content_or_token(database: Database) -> None:
    async with database.opened() as store:
        made = await one_of_each(Driver(store))
        held = await Driver(store).running(payload='{"secret":"xyzzy"}')
    answer = jobs(database, "ls", "--oldest", "--json")
    assert ids_in(answer) == sorted(str(job.id) for job in [*made, held])
    assert answer.json["after"] is None
    assert "xyzzy" not in answer.out
    assert str(held.token) not in answer.out
    assert {fact for job in answer.json["jobs"] for fact in job} & {"token", "payload", "result", "error"} == set()
    in_words = jobs(database, "ls", "--oldest")
    heading, *lines = in_words.out.splitlines()
    assert heading.split() == ["id", "status", "kind", "queue", "attempt", "created", "note"]
    assert [line.split()[0] for line in lines] == ids_in(answer)
    assert {line.split()[1] for line in lines} == {status.value for status in Status}
    assert str(held.token) not in in_words.out


async def test_jobs_are_chosen_by_what_the_filters_say(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        a = await driver.add("mail", queue="post", tags={"tenant": "x", "tier": "gold"}, submitted_by="ada")
        b = await driver.add("bill", queue="post", tags={"tenant": "x"}, correlation_id="order-7")
        c = await driver.add("bill", queue="cash")
        failed = await driver.apply(await driver.running(), Fail(ERROR))
        ended = await driver.apply((await driver.add()).id, Cancel("too dear"), actor=CLIENT)
        after_all = await store.now()
    everything = [a, b, c, failed, ended]
    expected: dict[tuple[str, ...], list[Job]] = {
        ("--status", "failed"): [failed],
        ("--status", "failed", "--status", "cancelled"): [failed, ended],
        ("--queue", "post"): [a, b],
        ("--queue", "post", "--kind", "bill"): [b],
        ("--kind", "bill", "--kind", "mail", "--status", "queued"): [a, b, c],
        ("--correlation-id", "order-7"): [b],
        ("--submitted-by", "ada"): [a],
        ("--tag", "tenant=x"): [a, b],
        ("--tag", "tenant=x", "--tag", "tier=gold"): [a],
        ("--reason-is", "too dear"): [ended],
        ("--since", "1h"): everything,
        ("--until", "1h"): [],
        ("--since", after_all.isoformat()): [],
        ("--until", after_all.isoformat()): everything,
        ("--until", "2001-01-01"): [],
        ("--kind", "nothing"): [],
    }
    for options, wanted in expected.items():
        assert ids_in(jobs(database, "ls", "--oldest", "--json", *options)) == [str(job.id) for job in wanted], options


async def test_a_long_list_comes_in_pages(database: Database) -> None:
    async with database.opened() as store:
        made = [await Driver(store).add() for _ in range(5)]
    seen: list[str] = []
    after: list[str] = []
    for more in (True, True, False):
        page = jobs(database, "ls", "--oldest", "--json", "--limit", "2", *after)
        seen += ids_in(page)
        after = ["--after", str(page.json["after"])]
        assert (page.json["after"] is not None) is more
    assert seen == [str(job.id) for job in made]
    assert f"more jobs: --after {made[1].id}" in jobs(database, "ls", "--oldest", "--limit", "2").out


async def test_the_newest_job_is_listed_first_also_over_pages(database: Database) -> None:
    async with database.opened() as store:
        made = [str((await Driver(store).add()).id) for _ in range(5)]
    assert ids_in(jobs(database, "ls", "--json")) == made[::-1]
    page = jobs(database, "ls", "--json", "--limit", "2")
    assert (ids_in(page), page.json["after"]) == (made[:2:-1], made[3])
    assert ids_in(jobs(database, "ls", "--json", "--after", made[3])) == made[2::-1]


async def test_the_beginning_of_an_id_is_enough_where_it_is_unique(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        ids = [UUID(f"01890a5d-{n:04x}-774b-bcce-b302099a8057") for n in (0, 1, 0x1000)]
        for job_id in ids:
            await driver.add(id=job_id)
    shown = jobs(database, "show", "01890a5d-1", "--json")
    assert shown.json["job"]["id"] == str(ids[2])
    ambiguous = jobs(database, "show", "01890A5D-000")
    assert (ambiguous.code, ambiguous.out) == (2, "")
    assert f"01890a5d000 begins more than one id, such as {ids[0]} and {ids[1]}" in ambiguous.err
    unknown = jobs(database, "show", "01890a5e")
    assert (unknown.code, "job 01890a5e… does not exist" in unknown.err) == (1, True)
    refused = jobs(database, "cancel", "01890a5d-1", "01890a5d")
    assert refused.code == 2
    assert jobs(database, "cancel", "01890a5d-1").out == f"{ids[2]} cancelled\n"
    assert len(ids_in(jobs(database, "ls", "--json", "--status", "cancelled"))) == 1


async def test_an_empty_list_is_reported_and_exits_with_0(database: Database) -> None:
    async with database.opened():
        pass
    assert (jobs(database, "ls").code, jobs(database, "ls").out) == (0, "no jobs match\n")
    assert jobs(database, "ls", "--oldest", "--json").json == {"jobs": [], "after": None}


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        (("--status", "lost"), "'lost' is not one of"),
        (("--tag", "tenant"), "'tenant' is not KEY=VALUE"),
        (("--since", "yesterday"), "'yesterday' is neither a time"),
        (("--since", "999999999d"), "age: is too long"),
        (("--after", "7"), "'7' is not a job id"),
        (("--limit", "0"), "0 is not in the range"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(tmp_path: Path, options: tuple[str, ...], expected_text: str) -> None:
    where = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert tenure("migrate", "--database", where).code == 0
    answer = tenure("jobs", "ls", "--database", where, *options)
    assert (answer.code, answer.out) == (2, "")
    assert expected_text in answer.err


# show


async def full_history(store: Store) -> Job:
    driver = Driver(store)
    job = await driver.running(
        payload='{"to":"ada"}',
        tags={"tenant": "x"},
        policy={"max_attempts": 2, "on_exhausted": "fail"},
        submitted_by="grace",
    )
    await driver.apply(job, Progress(40, "almost \x1b[31mred"), Retry(ERROR, delay_seconds=0))
    [job] = await driver.claim()
    await driver.apply(job, DEAD_LETTER)
    return job


async def test_a_job_is_shown_with_its_attempts_events_and_dead_letter(database: Database) -> None:
    async with database.opened() as store:
        job = await full_history(store)
    answer = jobs(database, "show", str(job.id), "--json", "--events")
    assert answer.code == 0, answer
    shown = answer.json
    assert (shown["job"]["id"], shown["job"]["status"], shown["job"]["kind"]) == (str(job.id), "dead_lettered", "mail")
    assert (shown["job"]["payload"], shown["job"]["tags"]) == ({"to": "ada"}, {"tenant": "x"})
    assert shown["job"]["last_error"] == json.loads(ERROR)
    assert [(one["attempt"], one["status"]) for one in shown["attempts"]] == [(1, "aborted"), (2, "aborted")]
    assert (shown["dead_letter"]["reason_code"], shown["dead_letter"]["stage"]) == ("validation_failed", "input")
    assert [event["rev"] for event in shown["events"]] == list(range(1, shown["job"]["rev"] + 1))
    assert shown["events"][3]["detail"] == {"percent": 40, "message": "almost \x1b[31mred"}
    assert shown["artifacts"] == []
    assert "token" not in shown["job"]
    assert str(job.token) not in answer.out
    assert "events" not in jobs(database, "show", str(job.id), "--json").json


async def test_the_text_output_of_a_job_has_the_same_facts_and_no_control_characters(database: Database) -> None:
    async with database.opened() as store:
        job = await full_history(store)
    answer = jobs(database, "show", str(job.id), "--events")
    assert answer.code == 0, answer
    assert "\x1b" not in answer.out
    for words in (str(job.id), "dead_lettered", '{"to":"ada"}', "tenant=x", "2 attempts", "retry_scheduled", "grace"):
        assert words in answer.out
    for words in ("dead letter", "validation_failed", "ValueError: no", "8 events", r"almost \x1b[31mred"):
        assert words in answer.out
    assert str(job.token) not in answer.out


async def test_a_waiting_job_is_shown_with_what_it_waits_for(database: Database) -> None:
    async with database.opened() as store:
        job = await Driver(store).apply(await Driver(store).running(), Suspend(waiting_for="children"))
    assert jobs(database, "show", str(job.id), "--json").json["job"]["waiting_for"] == "children"
    assert re.search(r"waiting for: +children", jobs(database, "show", str(job.id)).out)
    assert "waiting for children" in jobs(database, "ls").out


async def test_the_artifacts_of_a_job_are_listed(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        job = await driver.running()
        async with store.transaction(deadline_seconds=30) as transaction:
            await transaction.attach(job, [Artifact(name="letter.txt", media_type="text/plain", body=b"dear ada")])
            await transaction.apply(driver.request(job, Complete("1")))
    [artifact] = jobs(database, "show", str(job.id), "--json").json["artifacts"]
    assert (artifact["name"], artifact["media_type"], artifact["bytes"]) == ("letter.txt", "text/plain", 8)
    assert "letter.txt  text/plain  8" in jobs(database, "show", str(job.id)).out


@pytest.mark.requirement("WC-12", "WC-13")
async def test_the_provenance_of_an_ended_job_is_shown(database: Database) -> None:
    async with database.opened() as store:
        job = await full_history(store)
        live = await Driver(store).running()
        erased = await Driver(store).apply(live, Complete("7"))
        await store.erase(erased.id, reason="asked", actor=OPERATOR)
        waiting = await Driver(store).add()
    details = jobs(database, "show", str(job.id), "--provenance", "--json").json["provenance"]
    assert details["inputs"]["payload"] == {"to": "ada"}
    assert [attempt["error"] for attempt in details["attempts"]] == [json.loads(ERROR), json.loads(ERROR)]
    assert (details["outcome"]["status"], details["outcome"]["by"]) == ("dead_lettered", "runner:worker-1")
    in_words = jobs(database, "show", str(job.id), "--provenance")
    assert "dead_lettered by runner:worker-1" in in_words.out
    assert "payload:" in jobs(database, "show", str(erased.id), "--provenance").out
    assert (
        jobs(database, "show", str(erased.id), "--provenance", "--json").json["provenance"]["inputs"]["payload"] is None
    )
    too_soon = jobs(database, "show", str(waiting.id), "--provenance")
    assert (too_soon.code, too_soon.out) == (1, "")
    assert "it is queued, and only a terminal job has a provenance" in too_soon.err


@pytest.mark.parametrize("command", [("show",), ("tail",), ("cancel",), ("cancel", "--hard")])
async def test_a_bad_id_is_a_wrong_call_and_an_unknown_one_a_finding(
    database: Database, command: tuple[str, ...]
) -> None:
    async with database.opened():
        pass
    bad = jobs(database, *command, "12")
    assert (bad.code, bad.out) == (2, "")
    assert "'12' is not a job id" in bad.err
    unknown = jobs(database, *command, UNKNOWN)
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == (f"tenure: job {UNKNOWN} does not exist; it was never enqueued, or retention removed it\n")


async def test_a_database_without_schema_is_not_fit(database: Database) -> None:
    for command in (("ls",), ("show", UNKNOWN), ("cancel", UNKNOWN), ("tail",)):
        answer = jobs(database, *command)
        assert (answer.code, answer.out) == (3, "")
        assert "tenure migrate" in answer.err


# cancel


async def status_of(database: Database, *wanted: Job) -> list[tuple[str, bool]]:
    async with database.opened() as store:
        found = await store.read([job.id for job in wanted])
    return [(found[job.id].status.value, found[job.id].cancel_requested) for job in wanted]


@pytest.mark.requirement("SM-10")
async def test_jobs_are_cancelled_by_their_ids_and_each_refusal_is_reported(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        waiting, running = await driver.add("later"), await driver.running()
        done = await driver.apply(await driver.running(), Complete("1"))
    answer = jobs(database, "cancel", str(waiting.id), str(done.id), str(running.id), "--reason", "no need")
    assert answer.code == 1
    assert answer.out == f"{waiting.id} cancelled\n{running.id} is running, asked to stop\n"
    assert f"job {done.id} is succeeded" in answer.err
    assert await status_of(database, waiting, running) == [("cancelled", True), ("running", True)]
    hard = jobs(database, "cancel", "--hard", str(running.id), str(running.id), "--json")
    assert (hard.code, hard.json) == (
        0,
        {"jobs": [{"id": str(running.id), "status": "cancelled", "cancel_requested": True}]},
    )
    again = jobs(database, "cancel", str(running.id), "--json")
    assert again.code == 1
    assert "none, the status is terminal" in again.json["jobs"][0]["refused"]
    async with database.opened() as store:
        [last] = (await store.history([running.id]))[running.id][-1:]
    assert last.actor.startswith("client:cli/")


@pytest.mark.requirement("SM-10")
async def test_all_that_match_are_cancelled_and_what_is_left_is_counted(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        waiting = [await driver.add(tags={"tenant": "x"}) for _ in range(3)]
        held = await driver.running(tags={"tenant": "x"}, kind="held")
        committed = await driver.apply(await driver.running(tags={"tenant": "x"}, kind="kept"), Commit("1"))
        other = await driver.add(tags={"tenant": "y"})
    chosen = ("cancel", "--all-matching", "--tag", "tenant=x")
    unsure = jobs(database, *chosen)
    assert (unsure.code, unsure.out) == (2, "")
    assert "this would cancel 5 jobs; confirm it with --yes" in unsure.err
    some = jobs(database, *chosen, "--yes", "--limit", "2")
    assert (some.code, some.err) == (0, "")
    assert some.out.startswith("2 cancelled, 0 asked to stop, 0 unchanged\nthe limit was reached")
    answer = jobs(database, *chosen, "--yes", "--json")
    assert (answer.code, answer.json["cancelled"], answer.json["requested"], answer.json["more"]) == (1, 1, 1, False)
    assert [skipped["job_id"] for skipped in answer.json["skipped"]] == [str(committed.id)]
    in_words = jobs(database, *chosen, "--yes")
    assert (in_words.code, in_words.out) == (1, "0 cancelled, 1 asked to stop, 1 unchanged\n")
    assert "its effect has been applied" in in_words.err
    assert await status_of(database, *waiting) == [("cancelled", True)] * 3
    assert await status_of(database, held, other) == [("running", True), ("queued", False)]


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        ((), "give ids, or --all-matching with filters"),
        (("--kind", "mail"), "add --all-matching to select all that match"),
        ((UNKNOWN, "--all-matching"), "give either ids, or --all-matching with filters"),
        ((UNKNOWN, "--kind", "mail"), "give either ids, or --all-matching with filters"),
        (("--all-matching", "--yes", "--status", "failed"), "failed jobs have ended"),
        (("--all-matching", "--yes", "--limit", "0"), "is not in the range"),
    ],
)
def test_a_cancel_takes_either_ids_or_a_filter(tmp_path: Path, arguments: tuple[str, ...], expected_text: str) -> None:
    where = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert tenure("migrate", "--database", where).code == 0
    answer = tenure("jobs", "cancel", "--database", where, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert expected_text in answer.err


# On a terminal.


async def test_a_person_is_asked_before_many_are_cancelled(database: Database) -> None:
    async with database.opened() as store:
        waiting = [await Driver(store).add() for _ in range(2)]
    for typed, code, status in (("n\n", 130, ("queued", False)), ("y\n", 0, ("cancelled", True))):
        with terminal("jobs", "cancel", "--all-matching", "--database", database.url) as shown:
            shown.read_until("This will cancel 2 jobs. Continue? [y/N]")
            shown.type(typed)
            assert shown.end() == code, shown.text
            assert "Traceback" not in shown.text
        assert await status_of(database, *waiting) == [status] * 2


async def test_a_list_on_a_terminal_has_the_same_ids(database: Database) -> None:
    async with database.opened() as store:
        made = [await Driver(store).add("[bold]kind") for _ in range(2)]
    with terminal("jobs", "ls", "--database", database.url) as shown:
        assert shown.end() == 0
    for job in made:
        assert str(job.id) in shown.text
    assert "[bold]kind" in shown.text
