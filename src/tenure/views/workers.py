"""The live workers, and the queues and kinds with jobs that none of them serves. Pure."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from tenure.lifecycle.statuses import LIVE
from tenure.stores.contract import PinnedJobs, Stats, WorkerRecord
from tenure.stores.findings import SEEN_SECONDS, serves_pin

SILENT_SECONDS = 15.0
"""A worker registers every 10 s. After this time it may have been killed, and is shown as silent."""


class UnservedKind(msgspec.Struct, frozen=True):
    """A kind with live jobs in a queue that no live worker serves."""

    queue: str
    kind: str
    jobs: int


class UnservedQueue(msgspec.Struct, frozen=True):
    """A queue with due jobs that no live worker serves."""

    queue: str
    due: int


def live_workers(stats: Stats) -> list[WorkerRecord]:
    """The workers that were seen recently, by the database's clock."""
    since = stats.at - timedelta(seconds=SEEN_SECONDS)
    return [worker for worker in stats.workers if worker.stopped_at is None and worker.seen_at >= since]


def silent_seconds(stats: Stats, worker: WorkerRecord) -> float | None:
    """For how long a worker has missed its registration; None if it has not."""
    seconds = (stats.at - worker.seen_at).total_seconds()
    return seconds if seconds > SILENT_SECONDS else None


def unserved_queues(stats: Stats) -> list[UnservedQueue]:
    """Queues with due jobs that no live worker serves, for whatever kinds."""
    served = {queue for worker in live_workers(stats) for queue in worker.queues}
    due: dict[str, int] = {}
    for tally in stats.tallies:
        if tally.due and tally.queue not in served:
            due[tally.queue] = due.get(tally.queue, 0) + tally.due
    return [UnservedQueue(queue, jobs) for queue, jobs in sorted(due.items())]


def unserved_kinds(stats: Stats) -> list[UnservedKind]:
    """Kinds with live jobs in a queue, and no live worker that serves both the queue and the kind."""
    served = {(queue, kind) for worker in live_workers(stats) for queue in worker.queues for kind in worker.kinds}
    jobs: dict[tuple[str, str], int] = {}
    for tally in stats.tallies:
        if tally.status in LIVE and (tally.queue, tally.kind) not in served:
            jobs[tally.queue, tally.kind] = jobs.get((tally.queue, tally.kind), 0) + tally.jobs
    return [UnservedKind(queue, kind, count) for (queue, kind), count in sorted(jobs.items())]


def unserved_pins(stats: Stats) -> list[PinnedJobs]:
    """Jobs that are pinned to a version of the code, and no live worker with that version that serves them."""
    live = live_workers(stats)
    return [one for one in stats.pinned if not any(serves_pin(worker, one) for worker in live)]
