"""A claim and its start are one row of tenure_events, and two events for every reader."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure.lifecycle.operations import Complete, Release, Signal
from tenure.lifecycle.records import Event, EventType
from tenure.stores.contract import EventFilter
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.sqlite.values import micros
from tenure.testing.driver import CLIENT, Driver

TYPES = (EventType.ENQUEUED, EventType.CLAIMED, EventType.STARTED, EventType.SUCCEEDED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def drive(path: Path) -> AsyncIterator[Driver]:
    """Jobs that were claimed with and without their start, at the first revision and later."""
    store = SqliteStore(path)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    for number in range(3):
        await drive.apply(await drive.running(correlation_id=f"c{number % 2}"), Complete("1"))
    signalled = await drive.add(kind="signalled")
    await drive.apply(signalled.id, Signal("go"), actor=CLIENT)
    [first] = await drive.claim(kinds=("signalled",), code_version="7")
    await drive.apply(first, Release())
    await drive.add(kind="alone")
    await drive.claim(kinds=("alone",), start=False)
    yield drive
    await store.close()


async def whole(drive: Driver) -> list[Event]:
    return (await drive.store.tail()).events


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as shell:
        return shell.execute(statement).fetchall()


@pytest.mark.requirement("LC-08")
async def test_a_claim_and_its_start_are_one_row(path: Path, drive: Driver) -> None:
    found = rows(path, "select rev, from_status, to_status from tenure_events where type in ('claimed', 'started')")
    assert found == [*[(3, "queued", "running")] * 3, (4, "queued", "running"), (2, "queued", "claimed")]
    claims = [(e.rev, e.type.value, e.from_status, e.to_status) for e in await whole(drive) if e.type in TYPES[1:3]]
    pair = [(2, "claimed", "queued", "claimed"), (3, "started", "claimed", "running")]
    later = [(3, "claimed", "queued", "claimed"), (4, "started", "claimed", "running")]
    assert claims == [*pair * 3, *later, pair[0]]


async def test_only_the_claim_has_its_details(drive: Driver) -> None:
    claim, start = [e for e in await whole(drive) if e.type in TYPES[1:3] and e.rev in (3, 4)][-2:]
    assert (claim.cause, start.cause) == ("due", "claimed")
    assert claim.detail is not None
    assert claim.until_at is not None
    assert (start.detail, start.until_at, start.digest) == (None, None, None)
    assert (start.at, start.actor, start.request_id, start.attempt) == (
        claim.at,
        claim.actor,
        claim.request_id,
        claim.attempt,
    )


@pytest.mark.requirement("SM-12")
@pytest.mark.parametrize(
    "types", [(), *itertools.combinations(TYPES, 1), *itertools.combinations(TYPES, 2)], ids=", ".join
)
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_from_any_position_have_every_event_once(
    drive: Driver, types: tuple[EventType, ...], limit: int
) -> None:
    log = await whole(drive)
    job = log[0].job_id
    filters = {
        EventFilter(types=types): log,
        EventFilter(types=types, job_id=job): [event for event in log if event.job_id == job],
        EventFilter(types=types, correlation_id="c0"): [event for event in log if event.correlation_id == "c0"],
    }
    for wanted, among in filters.items():
        expected = [event for event in among if not types or event.type in types]
        for after in [None, *(event.position for event in log)]:
            found: list[Event] = []
            position = after
            while (page := await drive.store.events(wanted, after=position, limit=limit)).events:
                assert len(page.events) <= limit
                found += page.events
                position = page.position
            assert found == [event for event in expected if int(event.position or 0) > int(after or 0)]


async def test_the_end_of_the_log_is_after_a_start(drive: Driver) -> None:
    await drive.running(kind="last")
    assert (await whole(drive))[-1].type is EventType.STARTED
    assert (await drive.store.tail(after=await drive.store.end())).events == []


@pytest.mark.requirement("SM-17")
async def test_the_view_has_the_events_that_the_store_reads(path: Path, drive: Driver) -> None:
    columns = "position, job_id, rev, type, from_status, to_status, at, attempt, cause, detail, until_at, request_id"
    assert rows(path, f"select {columns} from tenure_log order by position") == [
        (
            int(event.position or 0),
            str(event.job_id),
            event.rev,
            event.type.value,
            event.from_status and event.from_status.value,
            event.to_status.value,
            micros(event.at),
            event.attempt,
            event.cause,
            event.detail,
            event.until_at and micros(event.until_at),
            event.request_id,
        )
        for event in await whole(drive)
    ]


async def test_attempts_by_the_view_are_those_of_the_log(path: Path, drive: Driver) -> None:
    jobs = {event.job_id for event in await whole(drive)}
    executions = [one for job in sorted(jobs) for one in await drive.store.executions(job)]
    assert rows(path, "select exec_id, status, leased_at, started_at from tenure_executions order by job_id") == [
        (one.exec_id, one.status, micros(one.leased_at), one.started_at and micros(one.started_at))
        for one in executions
    ]


async def test_an_imported_log_reads_the_same_from_two_rows(tmp_path: Path, drive: Driver) -> None:
    copy = SqliteStore(tmp_path / "copy.db")
    await copy.migrate()
    await copy.open()
    log = await whole(drive)
    async with drive.store.archive.snapshot() as snapshot, copy.archive.restore(runs=1) as restore:
        assert (await snapshot.totals()).events == len(log)
        async for events in snapshot.log(limit=2):
            await restore.write_events(events)
        async for jobs in snapshot.jobs(limit=100):
            await restore.write_jobs(jobs)
    restored = (await copy.tail()).events
    assert [replace(event, position=None) for event in restored] == [replace(event, position=None) for event in log]
    assert rows(tmp_path / "copy.db", "select count(*) from tenure_events") == [(len(log),)]
    await copy.close()
