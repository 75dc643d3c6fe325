"""Jobs that workers release because their payload has an argument that the workers' code does not have."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import STALLED
from tenure.stores import EventFilter
from tenure.workers.execution.outcomes import UNKNOWN_ARGUMENT

if TYPE_CHECKING:
    from tenure.stores.contract import ReadStore

LOOK_BACK_SECONDS = 600
EVENTS_PER_PAGE, PAGES_MAX = 1000, 10


class SkewedKind(msgspec.Struct, frozen=True):
    """How many jobs of a kind in a queue wait for a worker with newer code."""

    queue: str
    kind: str
    jobs: int


async def skewed_kinds(store: ReadStore) -> list[SkewedKind]:
    """The kinds of the jobs that were released for newer code of late, and were not claimed since."""
    ids = sorted(await _released_jobs(store))
    jobs = (await store.read(ids)).values() if ids else ()
    counts = Counter((job.origin.queue, job.origin.kind) for job in jobs if job.status is STALLED)
    return [SkewedKind(queue, kind, count) for (queue, kind), count in sorted(counts.items())]


async def _released_jobs(store: ReadStore) -> set[UUID]:
    since = await store.now() - timedelta(seconds=LOOK_BACK_SECONDS)
    wanted = EventFilter(types=(EventType.RELEASED,), since=since)
    found: set[UUID] = set()
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await store.events(wanted, after=after, limit=EVENTS_PER_PAGE)
        found.update(event.job_id for event in page.events if event.cause == UNKNOWN_ARGUMENT)
        if len(page.events) < EVENTS_PER_PAGE:
            break
        after = page.position
    return found
