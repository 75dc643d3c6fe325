"""kill -9 of a worker at each point of an attempt. Another one finishes every job: right status, effect once, in time.

"In time" is read from the log: between the expiry of the lost lease and the event that records the loss lies at most
one scan, and `SLACK_SECONDS` for a busy machine.
"""

from __future__ import annotations

import pytest

from tenure.lifecycle.records import Event, EventType, Job
from tenure.stores.contract import Store
from tests.chaos.checks import check_applied_once, check_recovered_in_time, ended, history, of_type, queue
from tests.chaos.process_options import Point
from tests.chaos.processes import WorkerProcess, WorkerProcesses
from tests.support.databases import POSTGRES_IN_DEPTH, Database

pytestmark = [
    pytest.mark.requirement("EL-05", "EL-06", "EL-08", "SM-02", "SM-03", "SM-07", "WC-10"),
    pytest.mark.timeout(150),
]

JOBS = 3
SCAN_SECONDS = 0.2
SLACK_SECONDS = 30.0
POLICY: dict[str, object] = {"lease_seconds": 4.0, "max_attempts": 5, "on_exhausted": "fail"}
KILLED = -9

POINTS = (
    Point.AFTER_CLAIM,
    Point.AFTER_START,
    Point.INSIDE_COMMIT,
    Point.AFTER_COMMIT,
    Point.BEFORE_COMPLETION,
    Point.AFTER_COMPLETION,
)
COMMITTED = (Point.AFTER_COMMIT, Point.BEFORE_COMPLETION)


Seen = list[tuple[Job, list[Event]]]


async def finished_by_another(processes: WorkerProcesses, store: Store) -> dict[Point, Seen]:
    """The jobs and their logs by the point at which their first worker was killed. Each killed worker has its own
    queue; one survivor recovers all of them."""
    ids = {point: await queue(store, "pay", JOBS, policy=POLICY, to=point) for point in POINTS}
    survivor = processes.start(
        "survivor", queues=POINTS, scan_seconds=SCAN_SECONDS, claims_after_note="victims-are-dead"
    )
    await processes.up(survivor)
    victims = [
        processes.start(point, queues=(point,), concurrency=JOBS, killed_at=point, recovers=False) for point in POINTS
    ]
    assert [await victim.ended() for victim in victims] == [KILLED] * len(victims)
    processes.notes.leave("victims-are-dead")
    await ended(store, [job_id for of_one in ids.values() for job_id in of_one])
    assert survivor.exit_code is None
    return {point: [(job, await history(store, job.id)) for job in await ended(store, ids[point])] for point in POINTS}


async def test_every_job_of_a_worker_that_is_killed_at_any_point_ends_right_and_once(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    by_point = await finished_by_another(processes, store)
    survivor, *victims = processes.workers
    await check_applied_once(store, database, [job.id for seen in by_point.values() for job, _ in seen])
    for (point, seen), victim in zip(by_point.items(), victims, strict=True):
        assert {job.result for job, _ in seen} == {'"paid"'}, point
        assert all(victim.signed(events[1].actor) for _, events in seen), f"{point}: not its jobs"
        for _, events in seen:
            check_recovered_in_time(events, scan_seconds=SCAN_SECONDS, slack_seconds=SLACK_SECONDS)
        check_losses(point, seen)
        if point in COMMITTED:
            check_reconciled(seen, survivor=survivor, victim=victim)


def check_losses(point: Point, seen: Seen) -> None:
    """How many attempts and failures a kill at this point leads to."""
    lost = [job for job, events in seen if of_type(events, EventType.STALLED)]
    if point is Point.AFTER_CLAIM:
        assert [(job.attempt, job.failures) for job in lost] == [(2, 0)] * JOBS, "only claimed: no failure is counted"
    if point is Point.AFTER_START:
        assert [(job.attempt, job.failures) for job in lost] == [(2, 1)] * JOBS
    if point is Point.AFTER_COMPLETION:
        assert len(lost) < JOBS, "completed jobs need no recovery"
    else:
        assert lost, f"nothing was lost by dying at {point}"


def check_reconciled(seen: Seen, *, survivor: WorkerProcess, victim: WorkerProcess) -> None:
    """A job that was committed before its worker was killed is reconciled with its result and without a second
    attempt."""
    committed = [
        (job, events)
        for job, events in seen
        if any(victim.signed(event.actor) for event in of_type(events, EventType.COMMITTED))
    ]
    assert committed
    for job, events in committed:
        assert (job.attempt, job.failures) == (1, 0)
        assert events[-1].type is EventType.SUCCEEDED
        assert events[-1].actor.startswith("recovery:")
        assert survivor.signed(events[-1].actor)


@POSTGRES_IN_DEPTH
@pytest.mark.requirement("WC-05")
async def test_a_worker_that_is_started_after_the_only_other_one_died_finishes_its_jobs(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    ids = await queue(store, "pay", JOBS, policy=POLICY)
    assert await processes.start("victim", concurrency=JOBS, killed_at=Point.INSIDE_COMMIT).ended() == KILLED
    processes.start("successor", scan_seconds=SCAN_SECONDS)
    await ended(store, ids)
    await check_applied_once(store, database, ids)
