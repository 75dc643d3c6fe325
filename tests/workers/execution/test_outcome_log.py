"""The log lines of ended attempts: one per job, with duration and attempt, and a limit on those of successes."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

import tenure
from tenure.lifecycle.records import Job
from tenure.stores.contract import Repeated
from tenure.testing.clock import ManualClock
from tenure.testing.harness.harness import Harness
from tenure.workers.execution.outcome_log import LINES_PER_SECOND, OutcomeLog
from tenure.workers.execution.outcomes import Raised, Returned
from tests.support.waiting import eventually

MANY = LINES_PER_SECOND + 150


async def drained(app: tenure.App, harness: Harness, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        await harness.run_all()
    return [record.getMessage() for record in caplog.records if record.name == "tenure.workers"]


@pytest.mark.requirement("SM-16")
async def test_each_ended_job_has_a_line_with_duration_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    app = tenure.App()

    @app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=5), on_exhausted="dead_letter")
    async def pay(cents: int) -> None:
        if cents < 0:
            raise ValueError("less than nothing")

    async with app.testing() as harness:
        paid, refused = await pay.enqueue(5), await pay.enqueue(-5)
        lines = await drained(app, harness, caplog)
    assert f"job {paid.id} (pay) succeeded in 0.00 s, attempt 1" in lines
    failed = f"job {refused.id} (pay) attempt %d failed in 0.00 s (ValueError: less than nothing), %s"
    assert any(line.startswith(failed % (1, "retrying in ")) for line in lines)
    assert failed % (2, "not retrying: the job is dead_lettered") in lines
    tracebacks = [record.__dict__["traceback"] for record in caplog.records if "failed in" in record.getMessage()]
    assert all("less than nothing" in text and "Traceback" in text for text in tracebacks)
    assert len(tracebacks) == 2


async def test_a_cancelled_job_has_its_line_too(caplog: pytest.LogCaptureFixture) -> None:
    app = tenure.App()

    @app.job()
    async def pay(ctx: tenure.Context) -> None:
        await handle.cancel()
        raise tenure.CancelRequested

    async with app.testing() as harness:
        handle = await pay.enqueue()
        lines = await drained(app, harness, caplog)
    assert lines[-1] == f"job {handle.id} (pay) cancelled in 0.00 s, attempt 1"


async def succeeded_job() -> Job:
    app = tenure.App()

    @app.job()
    async def pay() -> None:
        return None

    async with app.testing() as harness:
        handle = await pay.enqueue()
        await harness.drain()
        return msgspec.structs.replace(await handle.refresh(), committed_at=None)


async def test_above_a_rate_successes_are_counted_in_one_line_per_second(caplog: pytest.LogCaptureFixture) -> None:
    job, clock = await succeeded_job(), ManualClock()
    outcomes = OutcomeLog(clock, asyncio.get_running_loop())
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        caplog.clear()
        for _ in range(MANY):
            outcomes.ended(job, Returned("null"), Repeated(job))
        outcomes.flush()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_PER_SECOND + 1
    assert lines[-1] == "150 more jobs succeeded in the same second: 150 pay"
    assert caplog.records[-1].__dict__["counts"] == {"pay": 150}


async def test_the_count_is_logged_when_the_second_is_over(caplog: pytest.LogCaptureFixture) -> None:
    job, clock = await succeeded_job(), ManualClock()
    outcomes = OutcomeLog(clock, asyncio.get_running_loop())
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        for _ in range(MANY):
            outcomes.ended(job, Returned("null"), Repeated(job))
        await eventually(lambda: "150 more jobs" in caplog.text)
        caplog.clear()
        await clock.sleep(1.0)
        outcomes.ended(job, Returned("null"), Repeated(job))
        outcomes.flush()
    assert [record.getMessage() for record in caplog.records] == [f"job {job.id} (pay) succeeded in 0.00 s, attempt 1"]


async def test_failures_are_never_counted_only(caplog: pytest.LogCaptureFixture) -> None:
    job = await succeeded_job()
    outcomes = OutcomeLog(ManualClock(), asyncio.get_running_loop())
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        caplog.clear()
        for _ in range(MANY):
            outcomes.ended(job, Raised('{"type":"ValueError","message":"no"}'), Repeated(job))
        outcomes.flush()
    assert len(caplog.records) == MANY


async def test_at_the_level_debug_every_success_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    job = await succeeded_job()
    outcomes = OutcomeLog(ManualClock(), asyncio.get_running_loop())
    with caplog.at_level(logging.DEBUG, logger="tenure.workers"):
        caplog.clear()
        for _ in range(MANY):
            outcomes.ended(job, Returned("null"), Repeated(job))
    assert len(caplog.records) == MANY
