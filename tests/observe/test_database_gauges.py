"""Gauges of the database: what they show, how seldom it is read for them, and what an outage looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from tenure.errors import StoreUnavailable
from tenure.lifecycle.statuses import QUEUED, SUCCEEDED
from tenure.observe.database_gauges import (
    READ_INTERVAL_SECONDS_MIN,
    READ_TIME_SHARE_MAX,
    DatabaseGauges,
    GaugeValue,
    gauges,
    outbox_gauges,
)
from tenure.observe.metrics import ENDPOINTS_MAX, OTHER, QUEUES_MAX
from tenure.seams import Seams
from tenure.stores.contract import Stats, Store, Tally, WorkerRecord
from tenure.stores.contract.outbox import EndpointDepth, OutboxDepth
from tenure.testing.clock import ManualClock

AT = datetime(2030, 1, 1, tzinfo=UTC)


def worker(*, seen_seconds_ago: float = 1.0, kinds: tuple[str, ...] = ("mail",)) -> WorkerRecord:
    seen = AT - timedelta(seconds=seen_seconds_ago)
    return WorkerRecord(
        id=f"w-{seen_seconds_ago}", host="h", pid=1, version="1", queues=("default",), kinds=kinds, concurrency=1,
        started_at=seen, seen_at=seen,
    )  # fmt: skip


def stats(*tallies: Tally, workers: tuple[WorkerRecord, ...] = (), dead_letters: int = 0) -> Stats:
    return Stats(at=AT, tallies=list(tallies), workers=list(workers), dead_letters=dead_letters)


def tally(queue: str = "default", kind: str = "mail", jobs: int = 1, *, waited_seconds: float | None = None) -> Tally:
    due_at = None if waited_seconds is None else AT - timedelta(seconds=waited_seconds)
    due = 0 if waited_seconds is None else jobs
    return Tally(queue=queue, kind=kind, status=QUEUED, jobs=jobs, due=due, oldest_due_at=due_at)


def shown(found: list[GaugeValue]) -> dict[tuple[str, ...], float]:
    return {(level.metric.removeprefix("tenure_"), *level.labels): level.value for level in found}


def test_a_queue_is_shown_as_a_whole_and_its_oldest_job_is_the_oldest_of_all_kinds() -> None:
    found = shown(
        gauges(
            stats(
                tally(jobs=3, waited_seconds=10),
                tally(kind="bill", jobs=2, waited_seconds=40),
                Tally(queue="default", kind="mail", status=SUCCEEDED, jobs=9),
                tally(queue="later"),
                workers=(worker(), worker(seen_seconds_ago=3600)),
                dead_letters=4,
            )
        )
    )
    assert found == {
        ("jobs", "default", "queued"): 5,
        ("jobs", "default", "succeeded"): 9,
        ("jobs", "later", "queued"): 1,
        ("jobs_due", "default"): 5,
        ("jobs_due", "later"): 0,
        ("oldest_due_seconds", "default"): 40,
        ("oldest_due_seconds", "later"): 0,
        ("open_dead_letters",): 4,
        ("workers",): 1,
        ("jobs_unserved",): 3,
        ("runs_pinned_unserved",): 0,
    }


def test_queues_beyond_the_limit_are_shown_together_and_the_largest_keep_their_names() -> None:
    many = [tally(queue=f"q-{number:04}", jobs=1 + (number == 500)) for number in range(1000)]
    found = shown(gauges(stats(*many)))
    queues = {labels[1] for labels in found if labels[0] == "jobs"}
    assert len(queues) == QUEUES_MAX + 1
    assert "q-0500" in queues
    assert found["jobs", OTHER, "queued"] == 1000 - QUEUES_MAX
    assert sum(value for labels, value in found.items() if labels[0] == "jobs") == 1001


def depth(*endpoints: EndpointDepth, unserved: int = 0) -> OutboxDepth:
    return OutboxDepth(at=AT + timedelta(seconds=60), endpoints=endpoints, unserved=unserved)


def test_the_depth_and_lag_of_each_endpoint_are_shown() -> None:
    crm = EndpointDepth(endpoint="crm", streams=2, messages=5, dead=1, oldest_at=AT)
    idle = EndpointDepth(endpoint="idle", streams=0, messages=0, dead=0)
    assert shown(outbox_gauges(depth(crm, idle, unserved=7))) == {
        ("outbox_pending", "crm"): 5,
        ("outbox_pending", "idle"): 0,
        ("outbox_lag_seconds", "crm"): 60,
        ("outbox_lag_seconds", "idle"): 0,
        ("outbox_dead_letters", "crm"): 1,
        ("outbox_dead_letters", "idle"): 0,
        ("outbox_unserved",): 7,
    }


def test_endpoints_beyond_the_limit_are_shown_together() -> None:
    many = [
        EndpointDepth(endpoint=f"e-{number:03}", streams=1, messages=1, dead=1, oldest_at=AT)
        for number in range(ENDPOINTS_MAX + 5)
    ]
    found = shown(outbox_gauges(depth(*many)))
    assert (found["outbox_pending", OTHER], found["outbox_dead_letters", OTHER]) == (5, 5)
    assert found["outbox_lag_seconds", OTHER] == 60


class Setup:
    """A database that answers after a while, does not answer, or never does."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.readings = self.closings = self.openings = 0
        self.takes_seconds = 0.0
        self.problem: Exception | None = None

    async def stats(self) -> Stats:
        self.readings += 1
        self.clock.advance(self.takes_seconds)
        if self.problem is not None:
            raise self.problem
        return stats(tally())

    @property
    def outbox(self) -> Setup:
        return self

    async def depth(self) -> OutboxDepth:
        return depth(EndpointDepth(endpoint="crm", streams=1, messages=3, dead=0, oldest_at=AT))

    async def close(self) -> None:
        self.closings += 1

    async def open_store(self) -> Store:
        self.openings += 1
        return cast(Store, self)


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[Setup, DatabaseGauges]]:
    setup = Setup(ManualClock())
    gauges = DatabaseGauges(setup.open_store, Seams(clock=setup.clock))
    try:
        yield setup, gauges
    finally:
        await gauges.close()


async def test_one_reading_is_shared_until_the_next_is_due() -> None:
    async with reading() as (setup, gauges):
        for _ in range(5):
            assert shown(gauges.read())["database_up",] == 1
        assert (setup.readings, setup.openings) == (1, 1)
        setup.clock.advance(READ_INTERVAL_SECONDS_MIN)
        gauges.read()
        assert (setup.readings, setup.openings) == (2, 1)
    assert setup.closings == 1


async def test_a_large_database_is_read_for_a_small_share_of_the_time() -> None:
    async with reading() as (setup, gauges):
        setup.takes_seconds = 4.0
        began = setup.clock.monotonic_seconds()
        for _ in range(2000):
            gauges.read()
            setup.clock.advance(0.5)
        passed = setup.clock.monotonic_seconds() - began
        assert setup.readings * setup.takes_seconds <= passed * READ_TIME_SHARE_MAX + setup.takes_seconds
        assert setup.readings > 5


@pytest.mark.parametrize("problem", [StoreUnavailable("gone"), TimeoutError()])
async def test_gauges_of_an_unreadable_database_are_absent_and_up_is_0(problem: Exception) -> None:
    async with reading() as (setup, gauges):
        setup.problem = problem
        assert shown(gauges.read()) == {("database_up",): 0}
        assert setup.closings == 1
        setup.problem = None
        setup.clock.advance(READ_INTERVAL_SECONDS_MIN)
        assert shown(gauges.read())["jobs", "default", "queued"] == 1
        assert setup.openings == 2


async def test_a_database_that_never_answers_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.observe.database_gauges.READ_TIMEOUT_SECONDS", 0.05)
    async with reading() as (setup, gauges):
        setup.stats = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        assert shown(gauges.read()) == {("database_up",): 0}


async def test_nothing_is_read_after_the_end() -> None:
    async with reading() as (setup, gauges):
        pass
    assert gauges.read() == []
    assert setup.readings == 0
