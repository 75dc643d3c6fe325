"""The acts of queues: pausing, rules, and claims by them."""

from __future__ import annotations

from tenure.lifecycle.limits import QueueLimits, Rate
from tenure.lifecycle.records import Job
from tenure.stores.contract import QueueRecord
from tenure.testing.driver import OPERATOR, Driver
from tests.crash.acts import LONG, TOKEN, Act, Scene, job_id

MONTH = 31 * 86_400.0
"""The slices of so long a time are days, so that repetitions note the same one."""
RULES = QueueLimits(concurrency_max=4, key_concurrency_max=2, rate=Rate(50, MONTH), key_rate=Rate(40, MONTH), fair=True)
IN_ORDER = QueueLimits(key_concurrency_max=2, key_rate=Rate(40, MONTH))


async def put(scene: Scene) -> QueueRecord:
    return await scene.store.queues.put("default", RULES, actor=OPERATOR)


async def pause(scene: Scene) -> QueueRecord:
    return await scene.store.queues.pause("default", actor=OPERATOR)


async def resume(scene: Scene) -> QueueRecord | None:
    return await scene.store.queues.resume("default", actor=OPERATOR)


async def forget(scene: Scene) -> bool:
    return await scene.store.queues.forget("default", actor=OPERATOR)


async def paused(drive: Driver) -> list[Job]:
    await drive.store.queues.pause("default", actor=OPERATOR)
    return []


async def four_under_rules(drive: Driver) -> list[Job]:
    await drive.store.queues.put("default", RULES, actor=OPERATOR)
    return await _four(drive)


async def four_in_order(drive: Driver) -> list[Job]:
    await drive.store.queues.put("default", IN_ORDER, actor=OPERATOR)
    return await _four(drive)


async def _four(drive: Driver) -> list[Job]:
    keys = (None, "a", "a", "b")
    return [await drive.add(id=job_id(n), policy=LONG, partition_key=keys[n - 1]) for n in range(1, 5)]


async def claim(scene: Scene) -> list[Job]:
    return await scene.store.claim(scene.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim"))


OF_QUEUES = (
    Act("put queue", put),
    Act("pause queue", pause),
    Act("resume queue", resume, paused),
    Act("forget queue", forget, four_under_rules),
    Act("claim by rules", claim, four_under_rules),
    Act("claim in order by rules", claim, four_in_order),
)
