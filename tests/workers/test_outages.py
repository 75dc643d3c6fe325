"""The database is unavailable: what a worker logs of it, and what becomes of jobs whose function meets it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tenure
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.lifecycle.json_text import load
from tenure.lifecycle.statuses import FAILED
from tenure.seams import Seams
from tenure.stores import store_for
from tenure.testing.clock import ManualClock
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url)
    yield app
    await app.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def unavailable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tenure.App]:
    """An app whose database cannot be reached."""
    url = f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}" if request.param == "sqlite" else "postgresql://[::1]:1/none"
    other = tenure.App(url)
    yield other
    await other.close()


@pytest.mark.requirement("WC-05", "SM-18", "SM-09")
async def test_an_outage_of_another_database_fails_the_attempt_and_ends_at_max_attempts(
    app: tenure.App, unavailable: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    @unavailable.job()
    async def elsewhere() -> None:
        return None

    @app.job(max_attempts=3, backoff=AT_ONCE, on_exhausted="fail")
    async def relays() -> None:
        await elsewhere.enqueue()

    async with working(app):
        with caplog.at_level(logging.WARNING, logger="tenure.workers"):
            job = await (await relays.enqueue()).wait(60)
    assert (job.status, job.attempt, job.failures) == (FAILED, 3, 3)
    assert load(job.error or "")["type"] == "StoreUnavailable"
    assert "attempt 3 failed in" in caplog.text


@pytest.mark.requirement("WC-05")
async def test_an_unavailable_user_database_releases_the_job_with_a_log_line(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    """By the error of the job's own store, which need not be down for the rest of the worker."""

    @app.job(max_attempts=1)
    async def reads(ctx: tenure.Context) -> str:
        if ctx.attempt == 1:
            raise StoreUnavailable("did not answer", where=(await app.store()).where)
        return "read"

    async with working(app):
        with caplog.at_level(logging.WARNING, logger="tenure.workers"):
            handle = await reads.enqueue()
            assert await handle.result(60) == "read"
    job = await handle.refresh()
    assert (job.attempt, job.failures) == (2, 0)
    assert "attempt 1 released, running again in 1.0 s: database_unavailable" in caplog.text


def test_an_outage_is_logged_once_and_its_end_once_all_parts_have_had_a_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    availability = DatabaseAvailability(Seams(clock=clock))
    claims, writes = (ReconnectBackoff(Seams(clock=clock), availability) for _ in range(2))
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        claims.reset()
        for _ in range(5):
            claims.failed("claim", StoreUnavailable("connection refused"))
            writes.failed("write of 3 outcomes", StoreUnavailable("connection refused"))
        clock.advance(7.5)
        claims.reset()
        assert len(caplog.records) == 1
        writes.reset()
        writes.reset()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "database unavailable, retrying: connection refused"),
        ("INFO", "database available again after 7.5 s"),
    ]


def test_an_error_of_a_database_that_replies_is_logged_each_time(caplog: pytest.LogCaptureFixture) -> None:
    backoff = ReconnectBackoff(Seams(clock=ManualClock()))
    with caplog.at_level(logging.INFO, logger="tenure.workers"):
        for _ in range(2):
            backoff.failed("claim", InvalidInput("queue", "is odd"))
        backoff.reset()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "claim failed, retrying in 0." in caplog.text


@pytest.mark.requirement("WC-05")
async def test_a_worker_logs_one_line_when_its_server_goes_away_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PostgresServer(fsync=False) as server:
        app = tenure.App(server.create_database())

        @app.job(lease_seconds=60)
        async def double(number: int) -> int:
            return 2 * number

        store = store_for(app.database)
        await store.migrate()
        await store.close()
        with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, logger="tenure.workers"):
            async with working(app, scan_seconds=0.2):
                assert await (await double.enqueue(2)).result(60) == 4
                caplog.clear()
                server.stop()
                await eventually(lambda: "database unavailable" in caplog.text, seconds=60)
                # The parts that rarely use the database have met the outage, too.
                await eventually(lambda: "outbox claim failed" in caplog.text, seconds=60)
                await eventually(lambda: "event publishing failed" in caplog.text, seconds=60)
                server.start()
                await eventually(lambda: "database available again" in caplog.text, seconds=60)
                assert await (await double.enqueue(4)).result(60) == 8
        await app.close()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert sum("database unavailable, retrying: " in line for line in lines) == 1, lines
    assert sum("database available again after " in line for line in lines) == 1, lines
    assert not any("failed, retrying" in line for line in lines), lines
