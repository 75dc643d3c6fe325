"""`tenure dlq` in a process of its own, on real databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.bulk import MORE_LEFT
from tenure.client.admin import DeadLetterFilter, JobFilter
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Complete, DeadLetter, Fail
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import QUEUED
from tenure.testing.driver import ERROR, OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.terminal import terminal

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


def dlq(database: Database, *arguments: str) -> Answer:
    return tenure("dlq", *arguments, "--database", database.url)


async def buried(
    driver: Driver,
    reason: ReasonCode = ReasonCode.VALIDATION_FAILED,
    stage: Stage = Stage.INPUT,
    error: str = ERROR,
    **facts: Any,
) -> Job:
    return await driver.apply(await driver.running(**facts), DeadLetter(reason, stage, error))


async def open_letters(database: Database) -> list[str]:
    async with database.opened() as store:
        return [str(letter.job_id) for letter in (await store.dead_letters(DeadLetterFilter())).letters]


async def redrives(database: Database) -> dict[str, str]:
    """Old id → new id of everything that was redriven and waits."""
    async with database.opened() as store:
        queued = (await store.find(JobFilter(statuses=(QUEUED,)))).jobs
    return {str(job.origin.redrive_of): str(job.id) for job in queued if job.origin.redrive_of is not None}


@pytest.mark.requirement("SM-11")
async def test_dead_letters_are_listed_with_what_is_known_of_them(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        job = await buried(driver, queue="post", correlation_id="order-7", error='{"type":"E","message":"\\u001b[2J"}')
        await driver.apply(await driver.running(), Fail(ERROR))
    answer = dlq(database, "ls", "--oldest", "--json")
    assert answer.code == 0, answer
    [letter] = answer.json["dead_letters"]
    assert (letter["job_id"], letter["reason_code"], letter["stage"]) == (str(job.id), "validation_failed", "input")
    assert (letter["attempts"], letter["last_owner"], letter["correlation_id"]) == (1, "worker-1", "order-7")
    assert (letter["kind"], letter["queue"], letter["last_error"]) == (
        "mail",
        "post",
        {"type": "E", "message": "\x1b[2J"},
    )
    assert letter["last_lease_expires_at"] is not None
    in_words = dlq(database, "ls")
    heading, line = in_words.out.splitlines()
    assert heading.split() == ["id", "reason", "stage", "kind", "queue", "attempts", "at", "error"]
    assert line.startswith(f"{job.id}  validation_failed  input  mail  post   1 ")
    assert line.endswith(r"E: \x1b[2J")


@pytest.mark.requirement("SM-11")
async def test_dead_letters_are_chosen_by_what_the_filters_say(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        a = await buried(driver, kind="mail", queue="post")
        b = await buried(driver, ReasonCode.TIMEOUT, Stage.EXEC, kind="mail", queue="cash")
        c = await buried(driver, ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, kind="bill", correlation_id="order-7")
        handled = await buried(driver, kind="old")
        await store.resolve_dead_letters([handled.id], how="discarded", actor=OPERATOR)
    expected: dict[tuple[str, ...], list[Job]] = {
        (): [a, b, c],
        ("--handled",): [a, b, c, handled],
        ("--reason", "timeout"): [b],
        ("--reason", "timeout", "--reason", "exhausted_retries"): [b, c],
        ("--stage", "exec"): [b, c],
        ("--stage", "exec", "--kind", "bill"): [c],
        ("--queue", "cash"): [b],
        ("--correlation-id", "order-7"): [c],
        ("--since", "1h"): [a, b, c],
        ("--until", "1h"): [],
    }
    for options, wanted in expected.items():
        listed = [
            letter["job_id"] for letter in dlq(database, "ls", "--oldest", "--json", *options).json["dead_letters"]
        ]
        assert listed == [str(job.id) for job in wanted], options
    page = dlq(database, "ls", "--oldest", "--json", "--limit", "2")
    assert page.json["after"] == str(b.id)
    rest = dlq(database, "ls", "--oldest", "--json", "--limit", "2", "--after", str(b.id))
    assert ([letter["job_id"] for letter in rest.json["dead_letters"]], rest.json["after"]) == ([str(c.id)], None)
    assert f"more dead letters: --after {b.id}" in dlq(database, "ls", "--oldest", "--limit", "2").out


async def test_no_dead_letters_is_no_failure(database: Database) -> None:
    async with database.opened():
        pass
    empty = dlq(database, "ls")
    assert (empty.code, empty.out, empty.err) == (0, "no dead letters match\n", "")
    assert dlq(database, "ls", "--oldest", "--json").json == {"dead_letters": [], "after": None}


@pytest.mark.requirement("SM-11")
async def test_a_dead_letter_is_shown_with_its_job(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        error = {"type": "ValueError", "message": "no", "traceback": '  File "mail.py", line 7\n    send\x1b[2J()'}
        job = await buried(driver, error=json.dumps(error), payload='{"to":"ada"}')
        fine = await driver.apply(await driver.running(), Complete("1"))
    shown = dlq(database, "show", str(job.id), "--json").json
    assert shown["dead_letter"]["last_error"] == error
    assert (shown["job"]["payload"], shown["attempts"][0]["cause"]) == ({"to": "ada"}, "validation_failed")
    in_words = dlq(database, "show", str(job.id))
    for words in (str(job.id), "validation_failed", "ValueError: no", '{"to":"ada"}', "1 attempt"):
        assert words in in_words.out
    assert '\n  File "mail.py", line 7\n    send\\x1b[2J()\n' in in_words.out
    other = dlq(database, "show", str(fine.id))
    assert (other.code, other.out) == (1, "")
    assert other.err == (
        f"tenure: job {fine.id} is succeeded and has no dead letter; show it with: tenure jobs show {fine.id}\n"
    )


@pytest.mark.requirement("SM-11")
async def test_dead_letters_are_redriven_by_their_ids(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        dead, erased = await buried(driver), await buried(driver)
        failed = await driver.apply(await driver.running(), Fail(ERROR))
        done = await driver.apply(await driver.running(), Complete("1"))
        await store.erase(erased.id, reason="asked", actor=OPERATOR)
    answer = dlq(database, "redrive", *(str(job.id) for job in (dead, erased, failed, done)))
    assert answer.code == 1
    new = await redrives(database)
    assert new.keys() == {str(dead.id), str(failed.id)}
    assert answer.out == "".join(f"{old} redriven as {new[old]}\n" for old in (str(dead.id), str(failed.id)))
    assert "its content was erased" in answer.err
    assert f"job {done.id} is succeeded" in answer.err
    assert await open_letters(database) == [str(erased.id)]
    again = dlq(database, "redrive", str(dead.id))
    assert (again.code, again.out) == (0, f"{dead.id} was redriven before as {new[str(dead.id)]}, which is queued\n")
    as_json = dlq(database, "redrive", str(dead.id), UNKNOWN, "--json")
    assert as_json.code == 1
    [same, unknown] = as_json.json["jobs"]
    assert same == {"id": str(dead.id), "redriven_as": new[str(dead.id)], "created": False, "status": "queued"}
    assert "does not exist" in unknown["refused"]


@pytest.mark.requirement("SM-11")
async def test_all_dead_letters_that_match_are_redriven(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        mails = [await buried(driver, kind="mail") for _ in range(3)]
        bill = await buried(driver, kind="bill")
    chosen = ("redrive", "--all", "--kind", "mail")
    unsure = dlq(database, *chosen)
    assert (unsure.code, unsure.out) == (2, "")
    assert "this would redrive 3 dead letters; confirm it with --yes" in unsure.err
    assert await redrives(database) == {}
    some = dlq(database, *chosen, "--yes", "--limit", "1")
    assert (some.code, some.err) == (0, "")
    assert some.out.startswith(f"1 redriven, 0 redriven before, 0 unchanged\n{MORE_LEFT}")
    rest = dlq(database, *chosen, "--yes", "--json")
    assert (rest.code, rest.json) == (0, {"skipped": [], "more": False, "redriven": 2, "already_redriven": 0})
    assert (await redrives(database)).keys() == {str(job.id) for job in mails}
    assert await open_letters(database) == [str(bill.id)]


@pytest.mark.requirement("SM-11")
async def test_dead_letters_are_discarded_by_id_and_by_filter(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        one, two, redriven = await buried(driver), await buried(driver, kind="bill"), await buried(driver, kind="bill")
        late = await buried(driver, ReasonCode.TIMEOUT, Stage.EXEC)
        failed = await driver.apply(await driver.running(), Fail(ERROR))
    assert dlq(database, "redrive", str(redriven.id)).code == 0
    answer = dlq(database, "discard", str(one.id), str(failed.id), str(redriven.id))
    assert (answer.code, answer.out) == (1, f"{one.id} discarded\n")
    assert "it is not a dead letter" in answer.err
    assert "it was redriven already" in answer.err
    assert await open_letters(database) == [str(two.id), str(late.id)]
    as_json = dlq(database, "discard", str(one.id), "--json")
    assert (as_json.code, as_json.json["jobs"][0]["handled_as"]) == (0, "discarded")
    many = dlq(database, "discard", "--all", "--reason", "validation_failed", "--yes")
    assert (many.code, many.out) == (0, "1 discarded, 0 unchanged\n")
    assert await open_letters(database) == [str(late.id)]
    assert dlq(database, "discard", "--all", "--yes", "--json").json == {"skipped": [], "more": False, "discarded": 1}


async def test_a_person_is_asked_before_many_are_discarded(database: Database) -> None:
    async with database.opened() as store:
        job = await buried(Driver(store))
    for typed, code, still_open in (("n\n", 130, [str(job.id)]), ("y\n", 0, [])):
        with terminal("dlq", "discard", "--all", "--database", database.url) as shown:
            shown.read_until("This will discard 1 dead letter. Continue? [y/N]")
            shown.type(typed)
            assert shown.end() == code, shown.text
        assert await open_letters(database) == still_open


@pytest.mark.parametrize("command", ["show", "redrive", "discard"])
async def test_a_bad_id_is_a_wrong_call_and_an_unknown_one_a_finding(database: Database, command: str) -> None:
    async with database.opened():
        pass
    bad = dlq(database, command, "12")
    assert (bad.code, bad.out) == (2, "")
    assert "'12' is not a job id" in bad.err
    unknown = dlq(database, command, UNKNOWN)
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == f"tenure: job {UNKNOWN} does not exist; it was never enqueued, or retention removed it\n"


@pytest.mark.parametrize("command", ["redrive", "discard"])
@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        ((), "give ids, or --all with filters"),
        (("--reason", "timeout"), "add --all to select all that match"),
        ((UNKNOWN, "--all"), "give either ids, or --all with filters"),
        ((UNKNOWN, "--stage", "exec"), "give either ids, or --all with filters"),
        (("--all", "--reason", "boredom"), "'boredom' is not one of"),
        (("--all", "--stage", "moon"), "'moon' is not one of"),
    ],
)
def test_ids_and_filters_cannot_be_combined(
    tmp_path: Path, command: str, arguments: tuple[str, ...], expected_text: str
) -> None:
    where = f"sqlite:///{tmp_path / 'jobs.db'}"
    answer = tenure("dlq", command, "--database", where, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert expected_text in answer.err
