"""A worker that holds jobs of every fate, and the recovery that takes them back."""

from __future__ import annotations

from typing import Any

from tenure.lifecycle.operations import Commit
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, QUEUED, SUCCEEDED, Status
from tenure.seams import SYSTEM
from tenure.workers.maintenance import recovery
from tests.crash.acts import ABANDONED, Act, Scene, running

BATCH = 3
"""So that a scan of five jobs has two batches, and can be broken off between them."""

FATES: dict[int, tuple[dict[str, Any], Status]] = {
    1: ({}, QUEUED),
    2: ({"on_lost": "fail"}, FAILED),
    3: ({"on_lost": "dead_letter"}, DEAD_LETTERED),
    4: ({"max_attempts": 1, "on_exhausted": "fail"}, FAILED),
    5: ({}, SUCCEEDED),
}
"""What a job's policy says, and where recovery must bring it. The last one is committed before its owner dies."""


async def hold(scene: Scene) -> None:
    """Take jobs, commit one of them, and get no further."""
    held = [
        await running(scene.drive, number=number, policy={**ABANDONED, **policy})
        for number, (policy, _) in FATES.items()
    ]
    await scene.drive.apply(held[-1], Commit('"paid"'))


def recover_as(name: str) -> Any:
    async def recover(scene: Scene) -> int:
        recovery.BATCH = BATCH
        return await recovery.RecoveryWorker(scene.store, SYSTEM, name=name).scan()

    return recover


DYING: tuple[Act, ...] = (Act("hold", hold), Act("recover", recover_as("second")))
