"""Claims under an old snapshot: they read on where the last ones ended, and still find everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import Applied, ClaimRequest, JobFilter, Request
from tenure.stores.postgres import watermarks
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.watermarks import (
    ENTRIES_MIN,
    FULL_SCAN_EVERY,
    LATE_EVERY_SECONDS,
    LATE_SECONDS,
    NEAR_SECONDS,
    PAGES_MIN,
    PAGES_PER_LANE,
    PRIORITY_ABOVE,
    PRIORITY_BELOW,
    Claimer,
    Scan,
)
from tenure.stores.queue_groups import GROUP_QUEUES_MAX
from tenure.testing.driver import Driver

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
FAR = 1_000_000


def row(number: int, *, priority: int = 0, queue: str = "default") -> dict[str, Any]:
    return {
        "queue": queue,
        "priority": priority,
        "due_at": NOON + timedelta(seconds=number),
        "id": UUID(int=number),
    }


def learn(
    claimer: Claimer, *rows: dict[str, Any], entries: int, at: float, pages: int = 0, lanes: Sequence[int] = ()
) -> None:
    """A claim of one second, answered at this time. One that won nothing has read these lanes until `at` after noon."""
    scan = Scan(entries, pages, NOON + timedelta(seconds=at), [("default", priority) for priority in lanes])
    claimer.learn(rows, scan, began_seconds=at - 1.0, now_seconds=at)


def known(claimer: Claimer, now_seconds: float) -> dict[tuple[str, int], float]:
    """The watermarks of the lanes that it knows, as seconds after noon."""
    values = claimer.lanes(now_seconds)
    names = zip(values["lane_queues"], values["lane_priorities"], strict=True)
    places = [(due_at - NOON).total_seconds() for due_at in values["lane_dues"]]
    return dict(zip(names, places, strict=True))


def gaps(claimer: Claimer, now_seconds: float) -> list[tuple[str, int, int]]:
    values = claimer.lanes(now_seconds)
    return list(zip(values["gap_queues"], values["gap_lows"], values["gap_highs"], strict=True))


class TestWhatAClaimerKnows:
    def test_after_a_short_scan_the_next_one_is_full(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(1), row(2), entries=ENTRIES_MIN - 1, at=5.0)
        assert known(claimer, 5.0) == {}
        assert gaps(claimer, 5.0) == [("default", PRIORITY_BELOW, PRIORITY_ABOVE)]

    def test_after_a_long_scan_each_lane_resumes_where_the_claim_ended(self) -> None:
        claimer = Claimer(["default", "mail"])
        learn(claimer, row(2), row(1), row(9, priority=3), row(4, queue="mail"), entries=FAR, at=1.0)
        assert known(claimer, 1.0 + LATE_SECONDS) == {("default", 0): 2.0, ("default", 3): 9.0, ("mail", 0): 4.0}
        assert gaps(claimer, 1.0) == [
            ("default", PRIORITY_BELOW, 0),
            ("default", 0, 3),
            ("default", 3, PRIORITY_ABOVE),
            ("mail", PRIORITY_BELOW, 0),
            ("mail", 0, PRIORITY_ABOVE),
        ]

    def test_a_scan_over_pages_of_dead_entries_is_long_too(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(1), row(2), entries=2, pages=PAGES_MIN + PAGES_PER_LANE, at=1.0)
        assert known(claimer, 1.0) == {}
        learn(claimer, row(1), row(2), entries=2, pages=PAGES_MIN + PAGES_PER_LANE + 1, at=1.0)
        assert known(claimer, 1.0 + LATE_SECONDS) == {("default", 0): 2.0}

    def test_one_lane_is_claimed_from_alone_also_from_a_watermark_on(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(1), entries=1, at=1.0)
        bottom = claimer.lane(1.0)
        assert bottom is not None
        assert (bottom["priority"], bottom["watermark_due_at"].year) == (0, 1)
        learn(claimer, row(7), entries=FAR, at=2.0)
        watermark = claimer.lane(2.0 + LATE_SECONDS)
        assert watermark is not None
        assert (watermark["watermark_due_at"], watermark["watermark_id"]) == (NOON + timedelta(seconds=7), UUID(int=7))
        again = claimer.lane(2.0 + FULL_SCAN_EVERY)
        assert again == bottom

    def test_lanes_next_to_each_other_leave_no_gap(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(1, priority=4), row(2, priority=5), entries=FAR, at=1.0)
        assert gaps(claimer, 1.0) == [("default", PRIORITY_BELOW, 4), ("default", 5, PRIORITY_ABOVE)]

    def test_a_watermark_only_rises_until_the_next_full_scan(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(7), entries=FAR, at=1.0)
        learn(claimer, row(8), entries=1, at=1.1)
        learn(claimer, row(3), entries=1, at=1.2)
        assert known(claimer, 2.0) == {("default", 0): 8.0}
        assert known(claimer, 1.0 + FULL_SCAN_EVERY) == {}

    def test_a_watermark_stays_for_a_while_below_what_was_read_last(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(7), entries=FAR, at=1.0)
        assert known(claimer, 1.0) == {("default", 0): pytest.approx(7.0 - LATE_SECONDS)}
        learn(claimer, row(8), entries=1, at=1.1)
        assert known(claimer, 1.1) == {("default", 0): pytest.approx(7.0 - LATE_SECONDS)}
        assert known(claimer, 1.0 + LATE_SECONDS) == {("default", 0): 7.0}
        assert known(claimer, 1.1 + LATE_SECONDS) == {("default", 0): 8.0}

    def test_most_claims_go_back_a_short_time_only(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, row(7), entries=FAR, at=1.0)
        late = {("default", 0): pytest.approx(7.0 - LATE_SECONDS)}
        assert known(claimer, 1.0) == late
        for number, at in ((8, 1.01), (9, 1.02), (10, 1.03)):
            learn(claimer, row(number), entries=1, at=at)
        assert known(claimer, 1.031 + NEAR_SECONDS - 0.02) == {("default", 0): 8.0}
        assert known(claimer, 1.041 + NEAR_SECONDS - 0.02) == {("default", 0): 9.0}
        assert known(claimer, 1.0 + LATE_EVERY_SECONDS) == late
        assert known(claimer, 1.011 + LATE_EVERY_SECONDS) == {("default", 0): 10.0}

    def test_after_a_long_scan_for_nothing_all_lanes_are_read_to_that_time(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, lanes=(0, 3), entries=FAR, at=50.0)
        assert known(claimer, 50.0 + LATE_SECONDS) == {("default", 0): 50.0, ("default", 3): 50.0}
        learn(claimer, lanes=(0, 3, 4), entries=1, at=60.0)
        assert known(claimer, 61.0) == {("default", 0): 60.0, ("default", 3): 60.0, ("default", 4): 60.0}

    def test_a_short_scan_for_nothing_sets_no_watermark(self) -> None:
        claimer = Claimer(["default"])
        learn(claimer, lanes=(0,), entries=10, at=1.0)
        assert known(claimer, 1.0) == {}

    def test_a_process_does_not_remember_claimers_without_end(self) -> None:
        known_claimers = watermarks.Watermarks()
        for number in range(3 * watermarks.CLAIMERS_MAX):
            known_claimers.of((f"queue-{number}",), ("mail",))
        assert len(known_claimers._claimers) <= watermarks.CLAIMERS_MAX


def asked(*, queues: Sequence[str] = ("default",), limit: int = 100, number: int = 0) -> ClaimRequest:
    return ClaimRequest(
        queues=tuple(queues),
        kinds=("mail",),
        limit=limit,
        worker="w",
        token=UUID(int=number + 1),
        request_id=f"claim-{number}",
    )


class Claims:
    """Claims and completes on a store, and writes down how many entries of the index each claim has read."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries_read: list[int] = []
        self._store, self._number = store, 0
        fetch = store._connections.fetch

        async def watched(name: str, values: Any) -> list[asyncpg.Record]:
            answers = await fetch(name, values)
            if name in ("jobs/claim", "jobs/claim_lane"):
                self.entries_read.append(answers[-1]["entries_read"])
            return answers

        monkeypatch.setattr(store._connections, "fetch", watched)

    async def next(self, limit: int = 100, *, queues: Sequence[str] = ("default",)) -> list[Job]:
        self._number += 1
        request = asked(limit=limit, number=self._number, queues=queues)
        jobs = await self._store.claim(request)
        owner = Actor(Role.RUNNER, "w", request.token)
        requests = [
            Request(job=job, operations=(Complete("null"),), actor=owner, request_id="done", fresh=True) for job in jobs
        ]
        assert all(isinstance(outcome, Applied) for outcome in await self._store.apply(requests))
        return jobs


@asynccontextmanager
async def old_snapshot(dsn: str) -> AsyncIterator[None]:
    """A session that has begun to read and has not ended."""
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("select count(*) from tenure.jobs")
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


@pytest.fixture
def claims(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Claims:
    return Claims(store, monkeypatch)


@pytest.fixture
def _soon_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan counts as long early, and a full one is not made again within the test."""
    monkeypatch.setattr(watermarks, "ENTRIES_MIN", 300)
    monkeypatch.setattr(watermarks, "ENTRIES_PER_JOB", 1)
    monkeypatch.setattr(watermarks, "FULL_SCAN_EVERY", 1_000_000)
    monkeypatch.setattr(watermarks, "LATE_SECONDS", 0.0)


async def fill(store: PostgresStore, drive: Driver, count: int, **facts: Any) -> list[UUID]:
    added = await store.enqueue([drive.enqueue("mail", **facts) for _ in range(count)])
    return [one.job.id for one in added]


async def test_without_a_snapshot_in_the_way_a_claim_reads_little_more_than_it_takes(
    store: PostgresStore, drive: Driver, claims: Claims
) -> None:
    await fill(store, drive, 1000)
    assert len(await claims.next()) == 100
    assert claims.entries_read[0] < 300


async def test_dead_entries_are_read_by_every_claim_without_watermarks(
    store: PostgresStore, drive: Driver, claims: Claims, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "ENTRIES_MIN", 10**9)
    await fill(store, drive, 1000)
    async with old_snapshot(dsn):
        while await claims.next():
            pass
    assert claims.entries_read[9] > 900


@pytest.mark.usefixtures("_soon_long")
async def test_the_length_of_a_scan_does_not_grow_with_what_was_claimed_before(
    store: PostgresStore, drive: Driver, claims: Claims, dsn: str
) -> None:
    ids = await fill(store, drive, 2000)
    async with old_snapshot(dsn):
        taken = [job.id for _ in range(20) for job in await claims.next()]
    assert taken == ids
    assert max(claims.entries_read[8:]) < 300


@pytest.mark.requirement("WC-02")
@pytest.mark.parametrize("limit", [1, 3, 7, 40])
async def test_several_lanes_are_claimed_from_in_one_order(
    store: PostgresStore, drive: Driver, claims: Claims, limit: int
) -> None:
    chance = Random(limit)
    names = ("a", "b", "c")
    for _ in range(10):
        await store.enqueue(
            [
                drive.enqueue("mail", queue=chance.choice(names), priority=chance.choice((-1, 0, 0, 5)))
                for _ in range(chance.randint(1, 8))
            ]
        )
    everything = (await store.find(JobFilter(), limit=1000)).jobs
    expected = sorted(everything, key=lambda job: (-job.origin.priority, job.due_at, job.id))
    got: list[Job] = []
    while some := await claims.next(limit, queues=names):
        assert len(some) == min(limit, len(expected) - len(got))
        got += some
    assert [job.id for job in got] == [job.id for job in expected]


async def test_a_claim_from_many_queues_reads_the_first_jobs_of_a_group_and_hardly_more_than_it_takes(
    store: PostgresStore, drive: Driver, claims: Claims
) -> None:
    names = [f"queue-{number:03d}" for number in range(100)]
    rounds = [[drive.enqueue("mail", queue=name) for name in names] for _ in range(20)]
    for requests in rounds:
        await store.enqueue(requests)
    first = {one.origin.id for one in rounds[0][:GROUP_QUEUES_MAX]}
    assert {job.id for job in await claims.next(20, queues=names)} <= first
    assert claims.entries_read[0] <= 3 * GROUP_QUEUES_MAX + 3 * 20


@pytest.mark.usefixtures("_soon_long")
async def test_a_worker_that_has_none_of_the_kinds_does_not_read_all_jobs_each_time(
    store: PostgresStore, drive: Driver, claims: Claims
) -> None:
    await store.enqueue([drive.enqueue("other") for _ in range(1000)])
    assert [await claims.next() for _ in range(4)] == [[]] * 4
    await store.enqueue([drive.enqueue("other") for _ in range(50)])
    [mine] = await fill(store, drive, 1)
    assert [job.id for job in await claims.next()] == [mine]
    assert claims.entries_read[0] >= 1000
    assert max(claims.entries_read[1:4]) < 10
    assert claims.entries_read[4] < 100


@pytest.mark.usefixtures("_soon_long")
async def test_what_commits_a_little_late_is_found_although_claims_have_gone_on(
    store: PostgresStore, drive: Driver, claims: Claims, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "LATE_SECONDS", 60.0)
    monkeypatch.setattr(watermarks, "LATE_EVERY_SECONDS", 0.0)
    await fill(store, drive, 1)
    late = drive.enqueue("mail")
    other = PostgresStore.from_url(dsn)
    await other.open()
    async with old_snapshot(dsn):
        async with other.transaction(deadline_seconds=60) as tx:
            await tx.enqueue([late])
            await fill(store, drive, 1000)
            while await claims.next():
                continue
        assert [job.id for job in await claims.next()] == [late.origin.id]
    await other.close()


@pytest.mark.usefixtures("_soon_long")
async def test_a_job_of_another_priority_is_found_at_once_above_the_watermarks(
    store: PostgresStore, drive: Driver, claims: Claims, dsn: str
) -> None:
    await fill(store, drive, 1000)
    async with old_snapshot(dsn):
        for _ in range(8):
            await claims.next()
        [urgent] = await fill(store, drive, 1, priority=9)
        [idle] = await fill(store, drive, 1, priority=-9)
        assert (await claims.next())[0].id == urgent
        assert idle in [job.id for job in [*await claims.next(200), *await claims.next(200)]]


@pytest.mark.usefixtures("_soon_long")
async def test_what_commits_late_below_a_watermark_is_found_by_the_next_full_scan(
    store: PostgresStore, drive: Driver, claims: Claims, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = drive.enqueue("mail")
    # The policy is written now, since another transaction that writes the same one would be waited for.
    await fill(store, drive, 1)
    async with old_snapshot(dsn), store.transaction(deadline_seconds=60) as tx:
        await tx.enqueue([late])
        other = PostgresStore.from_url(dsn)
        await other.open()
        theirs = Claims(other, monkeypatch)
        await fill(other, drive, 1000)
        while await theirs.next():
            continue
        known_lanes = other._claims._watermarks.of(("default",), ("mail",))
        assert known_lanes._lanes
    assert await theirs.next() == []
    known_lanes._full_scan_at_seconds = 0.0
    assert [job.id for job in await theirs.next()] == [late.origin.id]
    await other.close()
