"""`tenure replay` in a process of its own, on real databases: a job as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.lifecycle.operations import Complete, Progress, Retry
from tenure.lifecycle.records import Job
from tenure.testing.driver import ERROR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


def replay(database: Database, *arguments: object) -> Answer:
    return tenure("replay", *map(str, arguments), "--database", database.url)


async def lived(database: Database) -> list[Job]:
    """A job's records, one after the other: claimed and started, tried in vain, tried again with success."""
    async with database.opened() as store:
        drive = Driver(store)
        first = await drive.add(payload='{"to":"ada"}')
        running = (await drive.claim())[0]
        progressed = await drive.apply(running, Progress(40, "half way"))
        waiting = await drive.apply(progressed, Retry(ERROR, 0.0))
        again = (await drive.claim())[0]
        return [first, running, progressed, waiting, again, await drive.apply(again, Complete('"done"'))]


def facts(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer
    found: dict[str, Any] = answer.json["job"]
    return found


def known(job: Job) -> dict[str, Any]:
    return {"status": job.status, "rev": job.rev, "attempt": job.attempt, "progress": job.progress, "owner": job.owner}


@pytest.mark.requirement("EH-09", "SM-12")
async def test_every_revision_can_be_seen_again_as_it_was(database: Database) -> None:
    lives = await lived(database)
    for job in lives:
        seen = facts(replay(database, job.id, "--rev", job.rev, "--json"))
        assert {name: seen[name] for name in known(job)} == known(job)
        assert "token" not in seen
    assert facts(replay(database, lives[0].id, "--json"))["result"] == "done"


async def test_a_replay_until_a_time_shows_the_record_at_that_time(database: Database) -> None:
    lives = await lived(database)
    for job in lives:
        seen = facts(replay(database, job.id, "--at", job.updated_at.isoformat(), "--json"))
        assert seen["rev"] >= job.rev
        assert seen["updated_at"] == job.updated_at.isoformat().replace("+00:00", "Z")


async def test_the_text_output_mentions_later_events(database: Database) -> None:
    lives = await lived(database)
    answer = replay(database, lives[1].id, "--rev", lives[1].rev, "--events")
    assert answer.code == 0
    assert f"running, revision {lives[1].rev}" in answer.out
    assert f"{lives[-1].rev - lives[1].rev} later events, the next at" in answer.out
    assert "enqueued" in answer.out
    assert "succeeded" not in answer.out


async def test_a_time_before_the_job_existed_is_an_error(database: Database) -> None:
    lives = await lived(database)
    beyond = replay(database, lives[0].id, "--rev", 99)
    assert beyond.code == 1
    assert f"has no revision 99; its last one is {lives[-1].rev}" in beyond.err
    early = replay(database, lives[0].id, "--at", "2001-01-01T00:00")
    assert early.code == 1
    assert "did not exist at 2001-01-01" in early.err
    unknown = replay(database, UNKNOWN)
    assert unknown.code == 1
    assert UNKNOWN in unknown.err


@pytest.mark.parametrize(
    "arguments", [["--rev", "0"], ["--rev", "x"], ["--at", "yesterday"], ["--rev", "1", "--at", "2h"]]
)
async def test_a_question_that_makes_no_sense_is_refused(database: Database, arguments: list[str]) -> None:
    lives = await lived(database)
    assert replay(database, lives[0].id, *arguments).code == 2
