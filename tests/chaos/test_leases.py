"""How leases are kept and lost: by busy, paused, hung and silent workers. All times are read from the log."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType
from tenure.lifecycle.statuses import FAILED, SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import Store
from tests.chaos.checks import check_everything, ended, history, lease_end, of_type, queue
from tests.chaos.processes import WorkerProcesses, until
from tests.support.databases import SQLITE_IN_DEPTH, Database

pytestmark = pytest.mark.timeout(150)

LEASE_SECONDS = 3.0
KEPT: dict[str, object] = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": LEASE_SECONDS / 2}
"""Each heartbeat may be late by half of the lease, so that a busy machine does not lose it."""


def check_run_once(events: list[Event]) -> None:
    assert len(of_type(events, EventType.CLAIMED)) == 1
    assert of_type(events, EventType.STALLED) == []
    assert events[-1].type is EventType.SUCCEEDED


@SQLITE_IN_DEPTH
@pytest.mark.requirement("SM-05")
async def test_a_busy_loop_of_three_leases_does_not_lose_its_lease(store: Store, processes: WorkerProcesses) -> None:
    """Another worker runs recovery all the time."""
    [job_id] = await queue(store, "spin", policy=KEPT, seconds=3 * LEASE_SECONDS)
    processes.start("busy", claims_most=1)
    await until(lambda: _claimed(store, job_id), "it is claimed")
    processes.start("watching")
    await ended(store, [job_id])
    check_run_once(await history(store, job_id))
    await check_everything(store)


@pytest.mark.deep
@pytest.mark.requirement("SM-05")
async def test_a_job_that_sleeps_for_five_leases_is_run_once_and_renews_at_half_of_the_time_left(
    store: Store, processes: WorkerProcesses
) -> None:
    often = {**KEPT, "heartbeat_seconds": LEASE_SECONDS / 3}
    ids = await queue(store, "nap", policy=KEPT, seconds=5 * LEASE_SECONDS)
    ids += await queue(store, "nap", policy=often, seconds=3 * LEASE_SECONDS)
    processes.start("sleeper")
    await ended(store, ids)
    for job_id in ids:
        events = await history(store, job_id)
        check_run_once(events)
        check_renewals(events)
    await check_everything(store)


def check_renewals(events: list[Event]) -> None:
    """A heartbeat renews the lease once half of it has passed, and not before."""
    half = timedelta(seconds=LEASE_SECONDS / 2)
    ends_at = lease_end(events[: of_type(events, EventType.CLAIMED)[0].rev], attempt=1)
    beats = of_type(events, EventType.HEARTBEAT)
    for beat in beats:
        assert (beat.until_at is not None) == (ends_at - beat.at <= half), f"{beat.id}: {ends_at - beat.at} were left"
        ends_at = beat.until_at or ends_at
    assert sum(beat.until_at is not None for beat in beats) >= 3


@SQLITE_IN_DEPTH
@pytest.mark.requirement("SM-05", "EH-03")
@pytest.mark.parametrize("kind", ["hang", "hang_in_a_thread"])
async def test_a_job_that_hangs_ends_at_its_threshold_and_its_worker_continues(
    kind: str, store: Store, processes: WorkerProcesses
) -> None:
    """It has one slot: the next job runs only after the hung one was abandoned."""
    limit_seconds = 2.0
    policy = {**KEPT, "timeouts": Timeouts(running_seconds=limit_seconds), "on_timeout": "fail"}
    [hung] = await queue(store, kind, policy=policy)
    worker = processes.start("worker", concurrency=1)
    await until(lambda: _claimed(store, hung), "it is claimed")
    [waiting] = await queue(store, "nap", policy=KEPT, seconds=0.0)
    [job, other] = await ended(store, [hung, waiting])
    assert job.status is FAILED
    assert load(job.error or "")["type"] == "Timeout"
    events = await history(store, hung)
    assert events[-1].cause == "timeout"
    assert len(of_type(events, EventType.HEARTBEAT)) >= 1, "it hung without a heartbeat, which is another case"
    [started] = of_type(events, EventType.STARTED)
    assert events[-1].at - started.at >= timedelta(seconds=limit_seconds)
    assert other.status is SUCCEEDED
    assert worker.signed((await history(store, waiting))[-1].actor)
    assert worker.exit_code is None
    await check_everything(store)


@pytest.mark.deep
@pytest.mark.requirement("SM-06")
async def test_two_missed_heartbeats_under_a_lease_that_still_runs_make_an_orphan(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    policy: dict[str, object] = {
        "lease_seconds": 60.0,
        "heartbeat_seconds": 0.5,
        "max_attempts": 5,
        "on_exhausted": "fail",
    }
    [job_id] = await queue(store, "nap_at_first", policy=policy, seconds=120.0)
    silent = processes.start("silent")
    await processes.noted(f"begun-{job_id}-1")
    silent.pause(database)
    processes.start("other")
    [job] = await ended(store, [job_id])
    assert job.status is SUCCEEDED
    events = await history(store, job_id)
    [stall] = of_type(events, EventType.STALLED)
    last_sign = max(event.at for event in events if event.rev < stall.rev)
    assert stall.cause == "heartbeats_missed"
    assert stall.at >= last_sign + timedelta(seconds=2 * 0.5)
    assert stall.at < lease_end(events, attempt=1)
    await check_everything(store)


async def _claimed(store: Store, job_id: object) -> bool:
    return (await store.read([job_id]))[job_id].attempt == 1  # type: ignore[index,list-item]
