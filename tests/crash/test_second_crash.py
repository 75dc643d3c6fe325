"""A worker is killed with leased jobs, and the recovery that follows is killed too, at each of its statements. A third
process finishes the rest."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Event, EventType
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM
from tenure.stores import Store, store_for
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.crash.crash_checks import Baseline, prepare, reach_crash_points, shared_store
from tests.crash.crash_points import CrashPoint
from tests.crash.crash_processes import CrashProcesses
from tests.crash.databases import CrashDatabase
from tests.crash.recovery_scenarios import CASES, RECOVERY_SCENARIOS
from tests.crash.scenario import job_id, wait_until_recoverable

CLAIM_AND_COMMIT, RECOVER = RECOVERY_SCENARIOS
JOBS = [job_id(number) for number in CASES]


async def leave_orphans(database: CrashDatabase, processes: CrashProcesses) -> None:
    """A process claims jobs, commits one, and is killed before it completes it. That state is saved."""
    held = await prepare(CLAIM_AND_COMMIT, database)
    last = len(reach_crash_points(held, processes)) - 1
    database.restore()
    assert processes.run(held.command(crash_at=last)).signal == signal.SIGKILL
    database.wait_until_idle()
    store = store_for(database.url)
    await store.open()
    for orphan in JOBS:
        await wait_until_recoverable(Driver(store), orphan)
    await store.close()
    database.wait_until_idle()
    database.save()


async def histories(store: Store) -> dict[UUID, list[Event]]:
    return await store.history(JOBS)


def stalls(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type is EventType.STALLED]


async def check_finished(store: Store) -> None:
    """Each job has the status that its policy leads to, was lost once, and the committed one kept its result."""
    jobs = await store.read(JOBS)
    assert {number: jobs[job_id(number)].status for number in CASES} == {n: status for n, (_, status) in CASES.items()}
    for events in (await histories(store)).values():
        assert len(stalls(events)) == 1, "a loss was recorded more than once"
        assert len({(event.attempt, event.rev) for event in events}) == len(events)
    assert jobs[job_id(5)].result == '"paid"'
    assert sum(event.commits for event in (await histories(store))[job_id(5)]) == 1
    await check_store(store)


@pytest.mark.requirement("EL-06", "SM-04", "WC-11")
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)], indirect=True)
async def test_a_recovery_killed_at_any_statement_is_finished_by_another(
    database: CrashDatabase, processes: CrashProcesses
) -> None:
    await leave_orphans(database, processes)
    second = await prepare(RECOVER, database, keeps=False)
    points = reach_crash_points(second, processes)
    done_before: dict[bytes | int, int] = {}
    async with shared_store(second):
        for number, point in enumerate(points):
            database.restore()
            end = processes.run(second.command(crash_at=number))
            assert end.signal == signal.SIGKILL, f"not killed at {point}: {end}"
            database.wait_until_idle()
            # If the file is byte for byte as after an earlier crash, the earlier result holds.
            fingerprint = database.fingerprint() or number
            if fingerprint not in done_before:
                async with third_process(second) as store:
                    done_before[fingerprint] = await finish_as_third_process(store, database, point)
    amounts = set(done_before.values())
    assert {0, len(JOBS)} < amounts, f"no recovery was killed between two batches: {amounts}"
    print(f"{database.kind}: recovery: {len(points)} crash points")


@asynccontextmanager
async def third_process(second: Baseline) -> AsyncIterator[Store]:
    store = second.shared or store_for(second.database.url)
    await store.open()
    try:
        yield store
    finally:
        if store is not second.shared:
            await store.close()


async def finish_as_third_process(store: Store, database: CrashDatabase, point: CrashPoint) -> int:
    """Recover the rest, and return how many jobs the killed recovery had changed."""
    await check_store(store)
    recovered = sum(bool(stalls(events)) for events in (await histories(store)).values())
    third = RecoveryWorker(store, SYSTEM, name="third")
    assert await third.scan() == len(JOBS) - recovered, f"killed at {point}: another number was left"
    await check_finished(store)
    left = database.state()
    assert await third.scan() == 0
    assert database.state() == left, "a scan without recoverable jobs changed something"
    drive = Driver(store)
    [again] = await drive.claim(worker="worker-2")
    assert again.id == JOBS[0]
    assert again.attempt == 2
    assert (await drive.apply(again, Complete("2"))).status is SUCCEEDED
    return recovered
