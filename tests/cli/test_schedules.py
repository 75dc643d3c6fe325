"""`tenure schedules` in a process of its own, on real databases."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tenure.cli.schedules import HEADINGS
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores.contract import JobFilter
from tenure.testing.driver import OPERATOR
from tests.support.command import Answer, tenure
from tests.support.databases import Database

SHOP = """
import tenure

app = tenure.App()


@app.job(queue="mail", max_attempts=7)
async def send(to: str, copies: int = 1) -> str:
    return to
"""
FAR = datetime.fromisoformat("2999-01-01T00:00:00+00:00")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


async def prepared(database: Database, *schedules: Schedule) -> None:
    async with database.opened() as store:
        for schedule in schedules:
            await store.schedules.put(schedule, next_at=FAR, paused=False, expected_rev=0, actor=OPERATOR)


def schedule(name: str = "morning", **facts: object) -> Schedule:
    return Schedule(
        **{"name": name, "cron": "0 9 * * 1-5", "kind": "send", "payload": '{"to":"ada"}', "policy": Policy(), **facts}  # type: ignore[arg-type]
    )


def schedules(database: Database, *arguments: str, cwd: Path | None = None) -> Answer:
    return tenure("schedules", *arguments, "--database", database.url, cwd=cwd)


async def test_schedules_are_listed(database: Database) -> None:
    await prepared(database)
    nothing = schedules(database, "ls")
    assert nothing.out == "no schedules; a worker registers those that its app declares when it starts\n"
    await prepared(database, schedule(timezone="Europe/Berlin", source="code"), schedule("evening", missed="all"))
    heading, first, second = schedules(database, "ls").out.splitlines()
    assert heading.split() == [column.heading for column in HEADINGS]
    assert first.startswith("evening ")
    assert " ".join(second.split()) == (
        "morning 0 9 * * 1-5 Europe/Berlin send default one 2999-01-01T00:00:00.000Z - - code"
    )
    [_, found] = schedules(database, "ls", "--json").json["schedules"]
    assert (found["name"], found["cron"], found["payload"]) == ("morning", "0 9 * * 1-5", {"to": "ada"})
    assert (found["rev"], found["source"], found["policy"]["max_attempts"]) == (1, "code", 20)


async def test_a_schedule_is_shown(database: Database) -> None:
    await prepared(database, schedule(tags={"tenant": "x"}))
    shown = schedules(database, "show", "morning")
    assert shown.code == 0
    assert re.search(r"^cron: +0 9 \* \* 1-5$", shown.out, re.MULTILINE)
    assert re.search(r'^payload: +{"to":"ada"}$', shown.out, re.MULTILINE)
    assert schedules(database, "show", "morning", "--json").json["tags"] == {"tenant": "x"}
    missing = schedules(database, "show", "evening")
    assert (missing.code, missing.out) == (2, "")
    assert "'evening' does not exist" in missing.err


async def test_a_new_schedule_is_made_of_a_job_of_the_app(database: Database, folder: Path) -> None:
    await prepared(database)
    made = schedules(
        database,
        *("put", "morning", "--app", "shop:app", "--kind", "send", "--payload", '{"to": "ada"}'),
        *("--cron", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--priority", "5", "--json"),
        cwd=folder,
    )
    assert made.code == 0, made
    facts = made.json
    assert (facts["queue"], facts["priority"], facts["policy"]["max_attempts"]) == ("mail", 5, 7)
    assert (facts["payload"], facts["source"], facts["rev"]) == ({"to": "ada"}, "operator", 1)
    again = schedules(
        database,
        "put",
        "morning",
        "--app",
        "shop:app",
        "--kind",
        "send",
        "--payload",
        '{"to":"bob"}',
        "--json",
        cwd=folder,
    )
    assert (again.json["payload"], again.json["cron"], again.json["timezone"], again.json["priority"]) == (
        {"to": "bob"},
        "0 9 * * 1-5",
        "Europe/Berlin",
        0,
    )
    assert again.json["next_at"] == facts["next_at"]


async def test_with_an_app_its_own_database_has_the_schedule(database: Database, folder: Path) -> None:
    await prepared(database)
    program = (folder / "shop.py").read_text()
    (folder / "own.py").write_text(program.replace("tenure.App(", f"tenure.App({database.url!r}, "))
    made = tenure(
        *("schedules", "put", "morning", "--app", "own:app", "--kind", "send", "--payload", '{"to": "ada"}'),
        *("--cron", "0 9 * * 1-5"),
        cwd=folder,
        env={"TENURE_DATABASE": f"sqlite:///{folder / 'other.db'}"},
    )
    assert made.code == 0, made
    assert schedules(database, "show", "morning").code == 0


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("--cron", "0 9 * * *"), "'new' does not exist"),
        (("--app", "shop:app", "--cron", "@daily"), "--app and --kind must be given together"),
        (("--app", "shop:app", "--kind", "send", "--payload", '{"to":"a"}'), "a new one needs --cron"),
        (("--app", "shop:app", "--kind", "post", "--cron", "@daily"), "'post' is not declared; known are: send"),
        (("--app", "shop:app", "--kind", "send", "--cron", "@daily"), "the argument `to` is missing"),
        (("--app", "shop:app", "--kind", "send", "--payload", '{"to":7}', "--cron", "@daily"), "Expected `str`"),
        (("--app", "shop:app", "--kind", "send", "--payload", '{"to":"a"}', "--cron", "9"), "has 1 fields"),
        (("--payload", "{"), "payload: is not JSON"),
        ((), "give an option to change"),
    ],
)
async def test_a_new_schedule_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], expected_text: str, folder: Path
) -> None:
    database = Database(f"sqlite:///{folder / 'jobs.db'}")
    await prepared(database)
    refused = schedules(database, "put", "new", *arguments, cwd=folder)
    assert (refused.code, refused.out) == (2, "")
    assert expected_text in refused.err
    assert schedules(database, "ls", "--json").json == {"schedules": []}


async def test_a_schedule_is_edited_paused_resumed_and_removed(database: Database) -> None:
    await prepared(database, schedule(source="code"))
    edited = schedules(database, "put", "morning", "--cron", "0 10 * * *", "--missed", "all", "--json").json
    assert (edited["cron"], edited["missed"], edited["source"], edited["rev"]) == ("0 10 * * *", "all", "operator", 2)
    assert edited["next_at"] < FAR.isoformat()
    assert edited["payload"] == {"to": "ada"}
    refused = schedules(database, "put", "morning", "--cron", "0 99 * * *")
    assert (refused.code, refused.err) == (2, "tenure: cron: hour: '99' must lie between 0 and 23\n")
    assert schedules(database, "pause", "morning", "--json").json["paused_at"] is not None
    assert "paused at" in schedules(database, "show", "morning").out
    assert schedules(database, "resume", "morning", "--json").json["paused_at"] is None
    removed = schedules(database, "rm", "morning")
    assert (removed.code, removed.out) == (0, "schedule morning removed\n")
    again = schedules(database, "rm", "morning", "--json")
    assert (again.code, again.out) == (2, "")


async def test_a_schedule_is_triggered_by_hand(database: Database) -> None:
    await prepared(database, schedule(dedupe_key="alone"))
    first = schedules(database, "trigger", "morning", "--json").json
    assert (first["created"], first["status"]) == (True, "queued")
    second = schedules(database, "trigger", "morning")
    assert second.out == f"not enqueued: job {first['job']} has the same dedupe key and is queued\n"
    async with database.opened() as store:
        [job] = (await store.find(JobFilter())).jobs
        assert job.origin.tags == {"tenure.schedule": "morning", "tenure.triggered": "yes"}
        record = await store.schedules.get("morning")
        assert record is not None
        assert (record.rev, record.next_at, record.last_at) == (1, FAR, None)


def test_the_next_times_are_shown_on_the_wall_clock_and_in_utc() -> None:
    over_autumn = ("next", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--after", "2026-10-24", "-n", "3")
    answer = tenure("schedules", *over_autumn)
    assert answer.out.splitlines() == [
        "local time                     UTC",
        "Sat 2026-10-24 02:30:00 +0200  2026-10-24T00:30:00.000Z",
        "Sun 2026-10-25 02:30:00 +0200  2026-10-25T00:30:00.000Z",
        "Mon 2026-10-26 02:30:00 +0100  2026-10-26T01:30:00.000Z",
    ]
    times = tenure("schedules", *over_autumn, "--json").json["times"]
    assert times[1] == {"local": "2026-10-25T02:30:00+02:00", "utc": "2026-10-25T00:30:00Z"}


async def test_the_next_times_of_a_schedule_begin_with_what_is_written_down(database: Database) -> None:
    await prepared(database, schedule(timezone="Europe/Berlin"))
    answer = schedules(database, "next", "morning", "-n", "2", "--json")
    [first, second] = [datetime.fromisoformat(time["utc"]) for time in answer.json["times"]]
    assert first == FAR
    assert timedelta(0) < second - first < timedelta(days=4)
    assert len(schedules(database, "next", "morning").out.splitlines()) == 6
    for arguments, expected_text in (
        (("nobody",), "'nobody' does not exist"),
        ((), "give either NAME or --cron"),
        (("morning", "--cron", "@daily"), "give either NAME or --cron"),
        (("morning", "--timezone", "UTC"), "--timezone needs --cron"),
        (("--cron", "@daily", "--timezone", "Mars/Olympus"), "is not an IANA name of a time zone"),
    ):
        refused = schedules(database, "next", *arguments)
        assert refused.code == 2
        assert expected_text in refused.err
