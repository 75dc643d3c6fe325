"""Retention under faults: only finished jobs that are old enough are removed. Removed jobs are kept for the checks."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from simulation.invariants import InvariantViolated
from tenure.lifecycle.records import Job
from tenure.lifecycle.retention import DAY_SECONDS, Retention
from tenure.stores.contract import FinishedJobs, Prunable, PrunedBatch, Store
from tenure.testing.history.checker import HistorySnapshot, snapshot
from tenure.testing.store_check import all_jobs

KEPT_SECONDS = 90.0
"""Longer than any request of a run is repeated, also when the clock jumps: a pruned job's requests are forgotten."""
VERBOSE_SECONDS = 5.0
RETENTION = Retention(
    finished_days=KEPT_SECONDS / DAY_SECONDS,
    dead_lettered_days=KEPT_SECONDS / DAY_SECONDS,
    verbose_days=VERBOSE_SECONDS / DAY_SECONDS,
    workers_days=VERBOSE_SECONDS / DAY_SECONDS,
)


class SimulatedRetention:
    """Carries out prunes at the database, and checks each."""

    def __init__(self) -> None:
        self.removed = HistorySnapshot((), {}, ())

    @property
    def jobs(self) -> dict[UUID, Job]:
        """The jobs that were removed, as they were."""
        return {job.id: job for job in self.removed.jobs}

    async def prune(self, store: Store, prunable: Prunable, *, limit: int) -> PrunedBatch:
        """Prune, or raise InvariantViolated if a job was removed that had to be kept."""
        if not isinstance(prunable, FinishedJobs):
            return await store.prune(prunable, limit=limit)
        before = await snapshot(store)
        batch = await store.prune(prunable, limit=limit)
        now, left = await store.now(), {job.id for job in await all_jobs(store)}
        gone = [job for job in before.jobs if job.id not in left]
        for job in gone:
            age = None if job.finished_at is None else now - job.finished_at
            if age is None or age < timedelta(seconds=KEPT_SECONDS - 0.001):
                raise InvariantViolated(f"retention removed {job!r}, which ended {age} ago")
        if batch.removed != len(gone):
            raise InvariantViolated(f"retention reported {batch.removed} removed jobs, and {len(gone)} are gone")
        self.removed = self.removed.plus(before.only({job.id for job in gone}))
        return batch
