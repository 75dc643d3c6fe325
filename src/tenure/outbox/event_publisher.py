"""Turns events of the log into messages for the endpoints that subscribe to them.

It reads the log, so no path that ends a job can leave a message out. One publisher at a time has the lease of the
cursor; messages and cursor are written in one transaction. It cannot change a job, and delivers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tenure.errors import StoreUnavailable, TenureError
from tenure.lifecycle.records import Event, Origin
from tenure.observe.event_translator import EventTranslator
from tenure.outbox.event_messages import event_messages, names_events, wanted_vocabularies
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import ReadStore
from tenure.stores.contract.log_cursors import EventMessage, LogCursor, LogCursorStore
from tenure.stores.contract.outbox import EndpointRecord
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

CURSOR = "events"
LEASE_SECONDS = 30.0
PAGE_EVENTS = 500
POLL_SECONDS = 1.0

log = logging.getLogger("tenure.outbox")


class EndpointReader(Protocol):
    """The part of the outbox that the publisher reads."""

    async def endpoints(self) -> list[EndpointRecord]: ...


class PublisherStore(ReadStore, Protocol):
    """The part of a store that the publisher uses."""

    @property
    def log_cursors(self) -> LogCursorStore: ...

    @property
    def outbox(self) -> EndpointReader: ...


class EventPublisher:
    """Publishes the events of one store, while it has the lease of the cursor."""

    def __init__(
        self,
        store: PublisherStore,
        seams: Seams = SYSTEM,
        *,
        name: str,
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._store, self._seams, self._name = store, seams, name
        self._token = seams.random.token()
        self._backoff = ReconnectBackoff(seams, availability)
        self._since: dict[str, datetime] = {}
        self._translator: EventTranslator | None = None

    async def run(self) -> None:
        """Publish until cancelled. Another publisher takes over once the lease has ended."""
        while True:
            try:
                more = await self.publish_page()
                self._backoff.reset()
                if not more:
                    await self._seams.clock.sleep(POLL_SECONDS)
            except StoreUnavailable as error:
                await self._seams.clock.sleep(self._backoff.failed("event publishing", error))
            except TenureError:
                log.exception("event publishing failed, retrying")
                await self._backoff.wait()

    async def publish_page(self) -> bool:
        """Publish one page of the log. Returns whether more may follow at once."""
        cursors = self._store.log_cursors
        cursor = await cursors.lease(CURSOR, owner=self._name, token=self._token, lease_seconds=LEASE_SECONDS)
        if cursor is None:
            return False
        self._use(await self._subscriptions())
        if not self._since:
            await self._skip(cursor)
            return False
        page = await self._store.tail(after=cursor.position, limit=PAGE_EVENTS)
        for row in page.unreadable:
            log.error("event not published: %s; run `tenure verify`", row)
        messages = await self._messages(page.events)
        if page.position == cursor.position:
            return False
        written = await cursors.publish(cursor, token=self._token, position=page.position, messages=messages)
        return written and len(page.events) + len(page.unreadable) >= PAGE_EVENTS

    async def close(self) -> None:
        """Release the cursor, so that another publisher need not wait for the end of the lease."""
        await self._store.log_cursors.release(CURSOR, token=self._token)

    async def _subscriptions(self) -> dict[str, datetime]:
        """The topics that name events, each with the time since which an endpoint with it exists."""
        since: dict[str, datetime] = {}
        for endpoint in await self._store.outbox.endpoints():
            for topic in (one.topic for one in endpoint.subscriptions if names_events(one.topic)):
                since[topic] = min(since.get(topic, endpoint.created_at), endpoint.created_at)
        return since

    def _use(self, since: dict[str, datetime]) -> None:
        if since.keys() != self._since.keys():
            chosen = wanted_vocabularies(since)
            self._translator = EventTranslator(self._store, chosen) if chosen else None
        self._since = since

    async def _skip(self, cursor: LogCursor) -> None:
        """Without a subscription the cursor follows the end of the log, so that a new one need not read all of it."""
        end = await self._store.end()
        if end != cursor.position:
            await self._store.log_cursors.publish(cursor, token=self._token, position=end)

    async def _messages(self, events: Sequence[Event]) -> list[EventMessage]:
        origins = await self._origins({event.job_id for event in events})
        found = []
        for event in events:
            # An endpoint receives no events from before it was created.
            patterns = [topic for topic, since_at in self._since.items() if since_at <= event.at]
            translated = await self._translator.translate(event) if self._translator and patterns else []
            found += event_messages(event, origins.get(event.job_id), translated, patterns=patterns)
        return found

    async def _origins(self, job_ids: set[UUID]) -> dict[UUID, Origin]:
        jobs = await self._store.read(sorted(job_ids)) if job_ids else {}
        return {job_id: job.origin for job_id, job in jobs.items()}
