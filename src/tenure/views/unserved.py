"""Who is there to run what: the workers that are alive, and the jobs that none of them takes. Pure."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from tenure.lifecycle.statuses import LIVE
from tenure.stores.contract import Stats, WorkerRecord


class Unserved(msgspec.Struct, frozen=True):
    """Live jobs of a kind in a queue that no worker takes."""

    queue: str
    kind: str
    jobs: int


ALIVE_SECONDS = 60.0
"""A worker that was not seen for this long is taken for gone."""


def alive(stats: Stats, *, within_seconds: float = ALIVE_SECONDS) -> list[WorkerRecord]:
    """The workers that were seen lately, by the database's clock. One that was killed never said that it stopped."""
    since = stats.at - timedelta(seconds=within_seconds)
    return [worker for worker in stats.workers if worker.stopped_at is None and worker.seen_at >= since]


def unserved(stats: Stats) -> list[Unserved]:
    """Kinds that have live jobs in a queue, and no living worker that has both the queue and the kind."""
    served = {(queue, kind) for worker in alive(stats) for queue in worker.queues for kind in worker.kinds}
    waiting: dict[tuple[str, str], int] = {}
    for tally in stats.tallies:
        if tally.status in LIVE and (tally.queue, tally.kind) not in served:
            waiting[tally.queue, tally.kind] = waiting.get((tally.queue, tally.kind), 0) + tally.jobs
    return [Unserved(queue, kind, jobs) for (queue, kind), jobs in sorted(waiting.items())]
