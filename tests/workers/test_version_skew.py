"""A worker whose code is older than a payload releases the job for others, and gives up after some releases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import tenure
from tenure.cli.doctor import find_problems
from tenure.client.handle import Handle
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED, STALLED, SUCCEEDED
from tenure.testing.harness.harness import Harness
from tenure.workers.execution import outcomes
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

RELEASES_MAX = 10


@pytest.fixture
async def newer(database: Database) -> AsyncIterator[tenure.App]:
    """An app of newer code, whose job has one argument more."""
    async with database.opened():
        pass
    app = tenure.App(database.url)

    @app.job(kind="greet", max_attempts=2)
    async def greet(name: str, language: str) -> str:
        return f"{language} {name}"

    yield app
    await app.close()


@pytest.fixture
async def older(database: Database) -> AsyncIterator[tenure.App]:
    app = tenure.App(database.url)

    @app.job(kind="greet", max_attempts=2)
    async def greet(name: str) -> str:
        return name

    yield app
    await app.close()


async def enqueued(app: tenure.App) -> Handle[Any]:
    return await app.submit("greet", '{"language":"english","name":"ada"}')


async def events_of(app: tenure.App, job: Job) -> list[Event]:
    return (await (await app.store()).history([job.id]))[job.id]


def releases(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type is EventType.RELEASED]


@pytest.mark.requirement("SM-11")
async def test_a_worker_of_older_code_releases_the_job_with_a_delay_and_counts_no_failure(
    newer: tenure.App, older: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await enqueued(newer)

    async def is_released() -> bool:
        return (await handle.refresh()).status is STALLED

    async with working(older):
        await eventually(is_released)
    job = await handle.refresh()
    assert (job.status, job.attempt, job.failures, job.lost) == (STALLED, 1, 0, False)
    [released] = releases(await events_of(newer, job))
    assert released.cause == "unknown_argument"
    assert job.due_at is not None
    assert (job.due_at - released.at).total_seconds() == outcomes.UNKNOWN_ARGUMENT_SECONDS
    answer = command("stats", "--database", newer.database, "--json")
    assert answer.json["unknown_arguments"] == [{"queue": "default", "kind": "greet", "jobs": 1}]
    assert "unknown to a worker's code" in command("stats", "--database", newer.database).out
    [finding] = [one for one in await find_problems(newer.database) if one.about == "code version"]
    assert finding.message.startswith("kind 'greet' has 1 job in queue 'default' with an argument")
    line = f"job {job.id} (greet) attempt 1 not run: its argument 'language' is unknown to this worker's code"
    assert caplog.text.count(line) == 1


@pytest.mark.requirement("SM-11")
async def test_a_worker_of_newer_code_runs_the_job_meanwhile(
    newer: tenure.App, older: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "UNKNOWN_ARGUMENT_SECONDS", 0.01)
    handle = await enqueued(newer)

    async def is_released() -> bool:
        return bool(releases(await events_of(newer, handle.job)))

    async with working(older):
        await eventually(is_released)
    async with working(newer):
        assert await handle.result(timeout_seconds=60) == "english ada"
    job = await handle.refresh()
    assert (job.status, job.failures) == (SUCCEEDED, 0)


@pytest.mark.requirement("SM-11")
async def test_after_ten_releases_the_job_is_a_dead_letter_of_stage_input(
    newer: tenure.App, older: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "UNKNOWN_ARGUMENT_SECONDS", 0.0)
    handle = await enqueued(newer)
    async with working(older):
        job = await handle.wait(60)
    letter = await (await newer.store()).dead_letter(handle.id)
    assert letter is not None
    assert (job.status, job.attempt, letter.attempts) == (DEAD_LETTERED, RELEASES_MAX + 1, RELEASES_MAX + 1)
    assert (letter.reason_code, letter.stage) == (ReasonCode.VALIDATION_FAILED, Stage.INPUT)
    assert "language" in letter.last_error
    assert len(releases(await events_of(newer, job))) == RELEASES_MAX


@pytest.mark.requirement("SM-11")
async def test_releases_for_other_reasons_are_not_counted(
    newer: tenure.App, older: tenure.App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "UNKNOWN_ARGUMENT_SECONDS", 0.0)
    handle = await enqueued(newer)
    snoozing = tenure.App(database.url)

    @snoozing.job(kind="greet")
    async def greet(name: str, language: str) -> None:
        raise tenure.Snooze(0.0)

    async def has_snoozed() -> bool:
        return len(releases(await events_of(newer, handle.job))) >= RELEASES_MAX

    async with snoozing, working(snoozing):
        await eventually(has_snoozed)
    snoozed = len(releases(await events_of(newer, handle.job)))
    async with working(older):
        job = await handle.wait(60)
    assert job.status is DEAD_LETTERED
    assert len(releases(await events_of(newer, job))) == snoozed + RELEASES_MAX


class TestUpgrades:
    """A payload that `upgrade` was meant for, and one that may be newer."""

    @pytest.fixture
    def app(self) -> tenure.App:
        return tenure.App("sqlite:///:memory:")

    @pytest.fixture
    async def harness(self, app: tenure.App) -> AsyncIterator[Harness]:
        async with app.testing() as harness:
            yield harness

    async def test_a_payload_that_the_upgrade_cannot_read_is_released(self, app: tenure.App, harness: Harness) -> None:
        @app.job(kind="send")
        def before(address: str) -> None: ...

        await before.enqueue("ada")
        app.kinds.clear()

        @app.job(kind="send", upgrade=lambda arguments: {"to": arguments["nonsense"]})
        def send(to: str) -> None: ...

        [job] = (await harness.drain()).jobs
        assert (job.status, job.failures) == (STALLED, 0)

    async def test_a_payload_under_an_alias_is_of_older_code_and_a_dead_letter(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job(kind="mail")
        def before(address: str) -> None: ...

        await before.enqueue("ada")
        app.kinds.clear()

        @app.job(kind="send", aliases=["mail"])
        def send(to: str) -> None: ...

        [job] = (await harness.drain()).jobs
        assert job.status is DEAD_LETTERED
