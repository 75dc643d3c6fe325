"""Scenarios of queues: pausing, limits, and claims under limits."""

from __future__ import annotations

from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job
from tenure.stores.contract import QueueRecord
from tenure.testing.driver import OPERATOR, Driver
from tests.crash.scenario import LONG, TOKEN, Context, Scenario, job_id

MONTH = 31 * 86_400.0
"""The period is so long that its slices are days, so that repetitions fall into the same slice."""
LIMITS = QueueLimits(
    concurrency_max=4, key_concurrency_max=2, rate=Rate(50, MONTH), key_rate=Rate(40, MONTH), fair=True
)
KEY_LIMITS = QueueLimits(key_concurrency_max=2, key_rate=Rate(40, MONTH))


async def put(context: Context) -> QueueRecord:
    return await context.store.queues.put("default", LIMITS, actor=OPERATOR)


async def pause(context: Context) -> QueueRecord:
    return await context.store.queues.pause("default", actor=OPERATOR)


async def resume(context: Context) -> QueueRecord | None:
    return await context.store.queues.resume("default", actor=OPERATOR)


async def forget(context: Context) -> bool:
    return await context.store.queues.forget("default", actor=OPERATOR)


async def paused(drive: Driver) -> list[Job]:
    await drive.store.queues.pause("default", actor=OPERATOR)
    return []


async def four_under_limits(drive: Driver) -> list[Job]:
    await drive.store.queues.put("default", LIMITS, actor=OPERATOR)
    return await _four(drive)


async def four_under_key_limits(drive: Driver) -> list[Job]:
    await drive.store.queues.put("default", KEY_LIMITS, actor=OPERATOR)
    return await _four(drive)


async def _four(drive: Driver) -> list[Job]:
    keys = (None, "a", "a", "b")
    return [await drive.add(id=job_id(n), policy=LONG, partition_key=keys[n - 1]) for n in range(1, 5)]


async def claim(context: Context) -> list[Job]:
    return await context.store.claim(context.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim"))


QUEUE_SCENARIOS = (
    Scenario("put queue", put),
    Scenario("pause queue", pause),
    Scenario("resume queue", resume, paused),
    Scenario("forget queue", forget, four_under_limits),
    Scenario("claim under limits", claim, four_under_limits),
    Scenario("claim under key limits", claim, four_under_key_limits),
)
