"""A worker that is killed with leased jobs of every recovery policy, and the recovery that follows."""

from __future__ import annotations

from typing import Any

from tenure.lifecycle.operations import Commit
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, QUEUED, SUCCEEDED, Status
from tenure.seams import SYSTEM
from tenure.workers.maintenance import recovery
from tests.crash.scenario import ABANDONED, Context, Scenario, running

BATCH = 3
"""A scan of five jobs has two batches, and can be interrupted between them."""

CASES: dict[int, tuple[dict[str, Any], Status]] = {
    1: ({}, QUEUED),
    2: ({"on_lost": "fail"}, FAILED),
    3: ({"on_lost": "dead_letter"}, DEAD_LETTERED),
    4: ({"max_attempts": 1, "on_exhausted": "fail"}, FAILED),
    5: ({}, SUCCEEDED),
}
"""A job's policy, and the status that recovery must lead to. The last job is committed before its owner is killed."""


async def claim_and_commit(context: Context) -> None:
    """Claim jobs, commit one of them, and stop."""
    held = [
        await running(context.drive, number=number, policy={**ABANDONED, **policy})
        for number, (policy, _) in CASES.items()
    ]
    await context.drive.apply(held[-1], Commit('"paid"'))


def recover_as(name: str) -> Any:
    async def recover(context: Context) -> int:
        recovery.BATCH = BATCH
        return await recovery.RecoveryWorker(context.store, SYSTEM, name=name).scan()

    return recover


RECOVERY_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("claim and commit", claim_and_commit),
    Scenario("recover", recover_as("second")),
)
