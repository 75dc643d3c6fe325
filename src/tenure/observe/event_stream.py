"""Following the log: every event once, in its order, as it comes. Nothing is skipped that commits late.

Whoever follows has the position of the last event that they were given, and can go on from there later.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import UUID

from tenure.errors import JobNotFound
from tenure.lifecycle.records import Event
from tenure.lifecycle.statuses import TERMINAL
from tenure.seams import Clock
from tenure.stores.contract import EventFilter, ReadStore

PAGE = 1000
LOOK_SECONDS = 0.2


async def follow(
    store: ReadStore, clock: Clock, *, after: str | None, for_ever: bool = True
) -> AsyncGenerator[Event, None]:
    """The log from a position on (None: from its beginning): for ever, or up to what is settled now."""
    while True:
        page = await store.tail(after=after, limit=PAGE)
        for event in page.events:
            yield event
        after = page.position
        if len(page.events) < PAGE:
            if not for_ever:
                return
            await clock.sleep(LOOK_SECONDS)


async def follow_job(store: ReadStore, clock: Clock, job_id: UUID) -> AsyncGenerator[Event, None]:
    """One job's events from its first to the one that ends it; fewer where retention removes it meanwhile."""
    if job_id not in await store.read([job_id]):
        raise JobNotFound(job_id)
    position: str | None = None
    while True:
        page = await store.events(EventFilter(job_id=job_id), after=position, limit=PAGE)
        for event in page.events:
            yield event
            if event.to_status in TERMINAL:
                return
        position = page.position
        if not page.events and job_id not in await store.read([job_id]):
            return
        if len(page.events) < PAGE:
            await clock.sleep(LOOK_SECONDS)
