"""Scenarios of schedules: writing, changing and removing one, and a firing that enqueues its jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Firing, Schedule, job_of
from tenure.stores.contract import EnqueueRequest
from tenure.testing.driver import CLIENT, OPERATOR, Driver
from tests.crash.scenario import Context, Scenario, job_id

DUE = tuple(datetime(2026, 1, 1, 9, tzinfo=UTC) + timedelta(days=number) for number in range(2))
NEXT = datetime(2999, 1, 1, 9, tzinfo=UTC)
SCHEDULE = Schedule(
    name="morning",
    cron="0 9 * * *",
    kind="mail",
    payload='{"to":"ada"}',
    policy=Policy(),
    missed="all",
    tags={"tenant": "x"},
)
FIRING = Firing(name="morning", rev=1, due=DUE, until=DUE[-1], next_at=NEXT)


async def put(context: Context) -> int:
    """Returns how many schedules were written: 0 for a repetition."""
    written = await context.store.schedules.put(SCHEDULE, next_at=DUE[0], paused=False, expected_rev=0, actor=OPERATOR)
    return int(written is not None)


async def a_schedule(drive: Driver) -> list[Job]:
    assert await put(Context(drive.store, "", [])) == 1
    return []


async def change(context: Context) -> int:
    written = await context.store.schedules.put(SCHEDULE, next_at=NEXT, paused=True, expected_rev=1, actor=OPERATOR)
    return int(written is not None)


async def remove(context: Context) -> int:
    return int(await context.store.schedules.remove("morning", actor=OPERATOR))


async def fire(context: Context) -> int:
    """Returns how many jobs were enqueued: 0 if the schedule was fired before."""
    requests = [
        EnqueueRequest(job_of(SCHEDULE, due, job_id=job_id(30 + number)), CLIENT) for number, due in enumerate(DUE)
    ]
    return len(await context.store.schedules.fire(FIRING, requests) or ())


SCHEDULE_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("put a schedule", put),
    Scenario("change a schedule", change, a_schedule),
    Scenario("remove a schedule", remove, a_schedule),
    Scenario("fire a schedule", fire, a_schedule),
)
