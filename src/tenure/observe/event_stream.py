"""Tailing the log: every event once, in the order of the log, as it is committed. A late commit is never skipped.

A reader that keeps the position of the last event can resume after it later.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from uuid import UUID

from tenure.errors import JobNotFound
from tenure.lifecycle.records import Event
from tenure.lifecycle.statuses import TERMINAL
from tenure.seams import Clock
from tenure.stores.contract import EventFilter, EventPage, ReadStore

PAGE_EVENTS = 1000
POLL_SECONDS = 0.2

log = logging.getLogger("tenure.observe")


class EventStream:
    """Reads the log of a store page by page, and polls at its end."""

    def __init__(self, store: ReadStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def tail(self, *, after: str | None, follow: bool = True) -> AsyncGenerator[Event, None]:
        """The log after a position (None: from its start). Without `follow` it ends at the last settled event."""
        while True:
            page = await self._store.tail(after=after, limit=PAGE_EVENTS)
            _log_unreadable(page)
            for event in page.events:
                yield event
            after = page.position
            if len(page.events) + len(page.unreadable) < PAGE_EVENTS:
                if not follow:
                    return
                await self._clock.sleep(POLL_SECONDS)

    async def tail_job(self, job_id: UUID) -> AsyncGenerator[Event, None]:
        """One job's events from the first to the terminal one; it ends early when retention removes the job."""
        if job_id not in await self._store.read([job_id]):
            raise JobNotFound(job_id)
        position: str | None = None
        while True:
            page = await self._store.events(EventFilter(job_id=job_id), after=position, limit=PAGE_EVENTS)
            _log_unreadable(page)
            for event in page.events:
                yield event
                if event.to_status in TERMINAL:
                    return
            position = page.position
            if not page.events and job_id not in await self._store.read([job_id]):
                return
            if len(page.events) < PAGE_EVENTS:
                await self._clock.sleep(POLL_SECONDS)


def _log_unreadable(page: EventPage) -> None:
    """An event that cannot be decoded is skipped: the stream would otherwise end there for ever."""
    for row in page.unreadable:
        log.error("event skipped: %s; run `tenure verify`", row)
