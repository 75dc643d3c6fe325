"""The worker ends an attempt that has run for as long as its policy allows, on time and without recovery."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import tenure
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import EventType, Policy
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, SUCCEEDED
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

SELDOM = 3600.0
"""So seldom that recovery does not scan while a test runs."""
AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)
SHORT: dict[str, Any] = {"timeouts": tenure.Timeouts(running_seconds=0.3), "lease_seconds": 30.0, "backoff": AT_ONCE}


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url)
    yield app
    await app.close()


def hanging(app: tenure.App, where: str, release: threading.Event, **options: Any) -> Any:
    """A job that hangs in a task or in a thread."""

    @app.job(kind="hangs", **{**SHORT, **options})
    async def hangs_in_task() -> None:
        await asyncio.Event().wait()

    if where == "task":
        return hangs_in_task
    app.kinds.clear()

    @app.job(kind="hangs", **{**SHORT, **options})
    def hangs_in_thread(ctx: tenure.Context) -> None:
        while not ctx.lease_lost and not release.wait(0.01):
            pass

    return hangs_in_thread


async def letter_of(app: tenure.App, handle: Any) -> DeadLetterRecord:
    letter = await (await app.store()).dead_letter(handle.id)
    assert letter is not None
    return letter


@pytest.fixture
def release() -> Any:
    """Ends threads that a failing test would leave behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.requirement("EH-03", "SM-09")
@pytest.mark.parametrize("where", ["task", "thread"])
async def test_a_timeout_is_a_failure_like_any_other_and_the_last_one_follows_on_exhausted(
    app: tenure.App, where: str, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = hanging(app, where, release, max_attempts=3, on_exhausted="dead_letter")
    with caplog.at_level(logging.WARNING, logger="tenure.workers"):
        async with working(app, scan_seconds=SELDOM) as worker:
            handle = await hangs.enqueue()
            job = await handle.wait(60)
            await eventually(lambda: worker.running == 0)
    assert (job.status, job.attempt, job.failures, job.losses) == (DEAD_LETTERED, 3, 3, 0)
    events = await handle.events()
    retries = [event for event in events if event.type is EventType.RETRY_SCHEDULED]
    assert [event.cause for event in retries] == ["timeout", "timeout"]
    assert all(event.actor.startswith("runner:") for event in (*retries, events[-1]))
    letter = await letter_of(app, handle)
    assert (letter.reason_code, letter.stage, letter.attempts) == ("timeout", "exec", 3)
    assert load(letter.last_error)["type"] == "Timeout"
    assert "attempt 1 timed out after 0.3 s, retrying in" in caplog.text


@pytest.mark.requirement("EH-03")
@pytest.mark.parametrize("where", ["task", "thread"])
async def test_on_timeout_fail_ends_the_job_at_its_first_timeout(
    app: tenure.App, where: str, release: threading.Event
) -> None:
    hangs = hanging(app, where, release, max_attempts=3, on_timeout="fail", on_exhausted="dead_letter")
    async with working(app, scan_seconds=SELDOM):
        handle = await hangs.enqueue()
        job = await handle.wait(60)
    assert (job.status, job.attempt, job.failures) == (FAILED, 1, 1)
    assert load(job.error or "")["type"] == "Timeout"
    assert (await handle.events())[-1].cause == "timeout"


@pytest.mark.requirement("EH-03", "SM-11")
async def test_on_timeout_dead_letter_ends_the_job_at_its_first_timeout(
    app: tenure.App, release: threading.Event
) -> None:
    hangs = hanging(app, "task", release, max_attempts=3, on_timeout="dead_letter", on_exhausted="fail")
    async with working(app, scan_seconds=SELDOM):
        handle = await hangs.enqueue()
        job = await handle.wait(60)
    assert (job.status, job.attempt) == (DEAD_LETTERED, 1)
    letter = await letter_of(app, handle)
    assert (letter.reason_code, letter.stage) == ("timeout", "exec")


@pytest.mark.requirement("EH-03")
async def test_a_job_with_attempts_left_runs_again_after_a_timeout(app: tenure.App) -> None:
    @app.job(max_attempts=2, **SHORT)
    async def hangs_once(ctx: tenure.Context) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "done"

    async with working(app, scan_seconds=SELDOM):
        handle = await hangs_once.enqueue()
        assert await handle.result(60) == "done"
    assert (await handle.refresh()).failures == 1


@pytest.mark.requirement("EH-03", "EL-06")
async def test_a_job_that_committed_before_its_timeout_has_succeeded(app: tenure.App) -> None:
    @app.job(**SHORT, on_timeout="fail")
    async def commits_and_hangs(ctx: tenure.Context) -> str:
        async with ctx.commit(result="committed"):
            pass
        await asyncio.Event().wait()
        return "committed"

    async with working(app, scan_seconds=SELDOM):
        job = await (await commits_and_hangs.enqueue()).wait(60)
    assert (job.status, job.result, job.failures) == (SUCCEEDED, '"committed"', 0)


@pytest.mark.requirement("EH-03")
async def test_what_a_function_does_after_its_timeout_is_not_recorded(app: tenure.App) -> None:
    @app.job(**SHORT, on_timeout="fail")
    async def ignores_its_end() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "too late"

    async with working(app, scan_seconds=SELDOM):
        job = await (await ignores_its_end.enqueue()).wait(60)
    assert (job.status, job.result) == (FAILED, None)


@pytest.mark.requirement("EH-03")
async def test_the_strict_profile_is_a_set_of_options(app: tenure.App) -> None:
    @app.job(**tenure.STRICT)
    async def strict() -> None: ...

    @app.job(timeouts=tenure.STRICT["timeouts"], on_timeout="dead_letter")
    async def partly_strict() -> None: ...

    policy = app.kinds["strict"].options.policy
    assert policy == Policy(
        max_attempts=policy.max_attempts,
        on_exhausted=policy.on_exhausted,
        timeouts=tenure.Timeouts(queued_seconds=30, claimed_seconds=10, running_seconds=60),
        on_lost="fail",
        on_timeout="fail",
        backoff=tenure.Backoff(max_seconds=60),
    )
    assert app.kinds["partly_strict"].options.policy.timeouts == policy.timeouts
    # The job is stored with it, whatever the declaration is by the time it runs.
    assert (await (await strict.enqueue()).refresh()).policy == policy
