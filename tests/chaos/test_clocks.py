"""Workers whose wall clocks are an hour ahead or behind: the database's clock decides.

On PostgreSQL that is the server's. An SQLite file has the clock of its machine, which all of its processes share; there
the worker's own wall clock is wrong (`ProcessOptions.store`).
"""

from __future__ import annotations

import pytest

from tenure.lifecycle.records import EventType
from tenure.stores.contract import Store
from tests.chaos.checks import (
    check_applied_once,
    check_everything,
    check_recovered_in_time,
    ended,
    history,
    of_type,
    queue,
)
from tests.chaos.processes import WorkerProcesses
from tests.support.databases import POSTGRES_IN_DEPTH, Database

pytestmark = [pytest.mark.requirement("LC-05", "SM-02"), pytest.mark.timeout(150)]

HOUR_SECONDS = 3600.0
LEASE_SECONDS = 3.0
SCAN_SECONDS = 0.2
POLICY: dict[str, object] = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": LEASE_SECONDS / 2}
AHEAD_OR_BEHIND = pytest.mark.parametrize("off", [HOUR_SECONDS, -HOUR_SECONDS], ids=["ahead", "behind"])


@POSTGRES_IN_DEPTH
async def test_no_job_under_a_valid_lease_is_recovered_however_wrong_the_clocks_are(
    store: Store, processes: WorkerProcesses
) -> None:
    ids = await queue(store, "nap", 4, policy=POLICY, seconds=3 * LEASE_SECONDS)
    staff = [
        processes.start(name, clock_off_seconds=off, scan_seconds=SCAN_SECONDS, concurrency=2, claims_most=2)
        for name, off in (("ahead", HOUR_SECONDS), ("behind", -HOUR_SECONDS))
    ]
    await ended(store, ids)
    for job_id in ids:
        events = await history(store, job_id)
        assert of_type(events, EventType.STALLED) == []
        assert len(of_type(events, EventType.CLAIMED)) == 1
        assert len(of_type(events, EventType.HEARTBEAT)) >= 2
    owners = {event.owner for job_id in ids for event in of_type(await history(store, job_id), EventType.CLAIMED)}
    assert len(owners) == len(staff), "only one of them has worked, so that no lease could have been taken over"
    await check_everything(store)


@pytest.mark.deep
@AHEAD_OR_BEHIND
@pytest.mark.requirement("WC-10")
async def test_a_lost_job_is_recovered_however_wrong_the_clocks_are(
    off: float, database: Database, store: Store, processes: WorkerProcesses
) -> None:
    """One is killed with its job, and the other, wrong in the other direction, recovers it in time."""
    policy = {**POLICY, "max_attempts": 5, "on_exhausted": "fail"}
    [job_id] = await queue(store, "nap_at_first", policy=policy, seconds=120.0)
    victim = processes.start("victim", clock_off_seconds=off)
    await processes.noted(f"begun-{job_id}-1")
    survivor = processes.start("survivor", clock_off_seconds=-off, scan_seconds=SCAN_SECONDS)
    await processes.up(survivor)
    victim.kill9()
    await ended(store, [job_id])
    events = await history(store, job_id)
    [stall] = of_type(events, EventType.STALLED)
    assert survivor.signed(stall.actor)
    check_recovered_in_time(events, scan_seconds=SCAN_SECONDS, slack_seconds=30.0)
    await check_applied_once(store, database, [job_id])
