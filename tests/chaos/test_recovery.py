"""Concurrent recovery: each lost job is recovered once, also when a recovery is killed midway."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import QUEUED, SUCCEEDED
from tenure.stores.contract import Store
from tenure.testing.driver import Driver
from tests.chaos.checks import check_everything, of_type
from tests.chaos.process_options import Point
from tests.chaos.processes import WorkerProcesses, until
from tests.support.databases import Database

pytestmark = [pytest.mark.requirement("WC-10", "SM-07"), pytest.mark.timeout(150)]

ORPHANS = 1000
BATCH = 500
"""The batch size of recovery."""
TWO_BATCHES = 600
KILLED = -9
POLICY: dict[str, object] = {"lease_seconds": 1.0, "max_attempts": 5, "on_exhausted": "fail"}


async def orphans(store: Store, count: int) -> list[UUID]:
    """Jobs whose worker was killed, of a kind that no process runs, all with expired leases."""
    drive = Driver(store)
    ids: set[UUID] = set()
    for start in range(0, count, 500):
        await store.enqueue([drive.enqueue("unknown", policy=POLICY) for _ in range(min(500, count - start))])
    while len(ids) < count:
        ids |= {job.id for job in await drive.claim(limit=500, kinds=("unknown",), worker="ghost")}

    async def all_are_lost() -> bool:
        return len(await store.recoverable(limit=count)) == count

    await until(all_are_lost, f"{count} leases have run out")
    return sorted(ids)


async def taken_back(store: Store, ids: list[UUID]) -> None:
    async def none_is_held() -> bool:
        return all(job.status is QUEUED for job in (await store.read(ids)).values())

    await until(none_is_held, f"{len(ids)} lost jobs are queued again", pause_seconds=0.2)


async def winners(store: Store, ids: list[UUID]) -> list[str]:
    """Which worker recovered each job. Each has one event of the loss and one of the requeue."""
    found: list[str] = []
    for job_id, events in (await store.history(ids)).items():
        [stall] = of_type(events, EventType.STALLED)
        [requeue] = of_type(events, EventType.REQUEUED)
        assert (stall.actor, stall.rev + 1) == (requeue.actor, requeue.rev), f"job {job_id}"
        assert len(events) == 5, "enqueued, claimed, started, stalled, requeued"
        found.append(stall.actor)
    return found


@pytest.mark.requirement("SM-02", "SM-03")
async def test_of_two_recovery_workers_one_wins_each_of_a_thousand_orphans(
    store: Store, processes: WorkerProcesses
) -> None:
    """Both have read the first 500 before either writes."""
    ids = await orphans(store, ORPHANS)
    both = [processes.start(name, recovers_after_readers=2) for name in ("one", "two")]
    await taken_back(store, ids)
    assert len(processes.notes.all("read-by-")) == 2, "they did not race"
    found = await winners(store, ids)
    assert len(found) == ORPHANS
    assert all(any(worker.signed(actor) for worker in both) for actor in found)
    assert all(worker.exit_code is None for worker in both)
    await check_everything(store)


@pytest.mark.deep
@pytest.mark.parametrize("point", [Point.AFTER_FIRST_RECOVERY, Point.AMID_RECOVERY])
async def test_when_a_recovery_worker_is_killed_in_its_work_another_finishes(
    point: Point, store: Store, processes: WorkerProcesses
) -> None:
    """Killed after its first batch, or while it is written: then the batch is there as a whole, or not at all."""
    ids = await orphans(store, TWO_BATCHES)
    victim = processes.start("victim", killed_at=point)
    assert await victim.ended() == KILLED
    other = processes.start("other")
    await taken_back(store, ids)
    found = await winners(store, ids)
    # By the log, and only now: the server may still be writing what a killed process has sent.
    done = sum(victim.signed(actor) for actor in found)
    assert done in ((BATCH,) if point is Point.AFTER_FIRST_RECOVERY else (0, BATCH))
    assert sum(other.signed(actor) for actor in found) == TWO_BATCHES - done
    await check_everything(store)


async def test_a_recovery_that_was_paused_after_its_scan_changes_no_other_workers_job(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    """It continues with what it read long ago: others have recovered the jobs by then, and run them."""
    drive = Driver(store)
    await store.enqueue([drive.enqueue("nap", policy=POLICY, payload='{"seconds":0}') for _ in range(20)])
    ids = [job.id for job in await drive.claim(limit=20, kinds=("nap",), worker="ghost")]
    late = processes.start("late", claims_most=0, recovers_after_readers=2)
    await processes.noted("read-by-late")
    late.pause(database)
    processes.start("prompt", scan_seconds=0.2)

    async def all_are_done() -> bool:
        return all(job.status is SUCCEEDED for job in (await store.read(ids)).values())

    await until(all_are_done, "the prompt one has seen to all of them")
    before = await store.history(ids)
    processes.notes.leave("read-by-somebody-else")
    late.resume()
    await processes.noted("late-has-written")
    assert await store.history(ids) == before
    assert late.exit_code is None
    assert "could not help" not in late.log
    await check_everything(store)
