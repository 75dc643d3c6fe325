"""SIGTERM under load: no job is lost, none counts a failure, and the process exits with 0."""

from __future__ import annotations

import pytest

from tenure.lifecycle.records import EventType
from tenure.stores.contract import Store
from tests.chaos.checks import check_applied_once, ended, history, of_type, queue
from tests.chaos.processes import WorkerProcesses, until
from tests.support.databases import POSTGRES_IN_DEPTH, SQLITE_IN_DEPTH, Database

pytestmark = [pytest.mark.requirement("WC-05"), pytest.mark.timeout(150)]

POLICY: dict[str, object] = {"lease_seconds": 30.0, "max_attempts": 1, "on_exhausted": "fail"}
"""A single failure would end the job."""
LONG, SHORT = 2, 24


@SQLITE_IN_DEPTH
async def test_what_is_not_done_within_the_grace_is_handed_back_and_finished_by_another(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    long = await queue(store, "nap_at_first", LONG, policy=POLICY, seconds=120.0)
    short = await queue(store, "pay", SHORT, policy=POLICY, seconds=0.2)
    first = processes.start("first", concurrency=LONG + 4, grace_seconds=1.0)
    for job_id in long:
        await processes.noted(f"begun-{job_id}-1")
    second = processes.start("second", concurrency=4)
    await processes.up(second)

    first.ask_to_stop()
    assert await first.ended() == 0

    jobs = await ended(store, [*long, *short])
    assert {job.failures for job in jobs} == {0}
    await check_applied_once(store, database, [*long, *short])
    for job in jobs:
        events = await history(store, job.id)
        assert of_type(events, EventType.STALLED) == [], "it was left to recovery"
        released = of_type(events, EventType.RELEASED)
        assert all(first.signed(event.actor) for event in released)
        assert job.attempt == len(released) + 1
        if job.id in long:
            assert len(released) == 1
            assert second.signed(events[-1].actor)
    assert second.exit_code is None


@POSTGRES_IN_DEPTH
async def test_what_can_be_done_within_the_grace_is_done_by_the_one_that_stops(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    ids = await queue(store, "pay", 5 * SHORT, policy=POLICY, seconds=0.4)
    first = processes.start("first", concurrency=6, grace_seconds=60.0)
    await first.wait_for_log("claims jobs from")

    async def some_are_done() -> bool:
        return any(not job.live for job in (await store.read(ids)).values())

    await until(some_are_done, "it is in the middle of its work")
    first.ask_to_stop()
    assert await first.ended() == 0

    jobs = (await store.read(ids)).values()
    assert not any(job.leased for job in jobs), "it left something behind"
    assert any(job.attempt == 0 for job in jobs), "it went on claiming"
    processes.start("second", concurrency=SHORT)
    done = await ended(store, ids)
    assert {(job.failures, job.attempt) for job in done} == {(0, 1)}
    await check_applied_once(store, database, ids)


async def test_a_second_signal_hands_everything_back_at_once(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    long = await queue(store, "nap_at_first", LONG, policy=POLICY, seconds=120.0)
    first = processes.start("first", grace_seconds=100.0)
    for job_id in long:
        await processes.noted(f"begun-{job_id}-1")
    first.ask_to_stop()
    await first.wait_for_log("stopping:")
    first.ask_to_stop()
    assert await first.ended() == 0
    processes.start("second")
    jobs = await ended(store, long)
    assert {job.failures for job in jobs} == {0}
    await check_applied_once(store, database, long)
