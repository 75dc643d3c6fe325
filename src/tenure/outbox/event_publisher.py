"""Turns events of the log, and records of the operator log, into messages for the endpoints that subscribe to them.

It reads the log, so no path that ends a job can leave a message out. One publisher at a time has the lease of the
cursor; messages and cursor are written in one transaction. It cannot change a job, and delivers nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tenure.errors import StoreUnavailable, TenureError
from tenure.lifecycle.records import Event, Origin
from tenure.observe.event_translator import EventTranslator
from tenure.outbox.event_messages import (
    event_messages,
    named_vocabularies,
    names_events,
    names_operator_events,
    operator_message,
)
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import ReadStore
from tenure.stores.contract.log_cursors import EventMessage, LogCursor, LogCursorStore, OperatorEvent
from tenure.stores.contract.outbox import EndpointRecord
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

if TYPE_CHECKING:
    from tenure.workers.worker import WorkerRole

CURSOR = "events"
LEASE_SECONDS = 30.0
PAGE_EVENTS = 500
POLL_SECONDS = 1.0
REFRESH_SECONDS = 5.0
"""How often subscriptions are read; while none names events, nothing else is done."""

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
        self._cursor: LogCursor | None = None
        self._has_leased = False
        self._renew_at_seconds = self._refresh_at_seconds = seams.clock.monotonic_seconds()

    async def run(self) -> None:
        """Publish until cancelled. Another publisher takes over once this one has closed, or its lease has ended."""
        while True:
            try:
                more = await self.publish_page()
                self._backoff.reset()
                if not more:
                    await self._seams.clock.sleep(POLL_SECONDS if self._since else REFRESH_SECONDS)
            except StoreUnavailable as error:
                await self._seams.clock.sleep(self._backoff.failed("event publishing", error))
            except TenureError:
                log.exception("event publishing failed, retrying")
                await self._backoff.wait()

    async def publish_page(self) -> bool:
        """Publish one page of the log. Returns whether more may follow at once."""
        await self._read_subscriptions()
        cursor = await self._leased() if self._since else None
        if cursor is None:
            return False
        page = await self._store.tail(after=cursor.position, limit=PAGE_EVENTS)
        for row in page.unreadable:
            log.error("event not published: %s; run `tenure verify`", row)
        operator_events = await self._operator_events()
        if page.position == cursor.position and not operator_events:
            return False
        messages = [*await self._messages(page.events), *self._operator_messages(operator_events)]
        # Until the reply arrives it is unknown where the cursor is.
        self._cursor = None
        cursors = self._store.log_cursors
        ids = [one.id for one in operator_events]
        if not await cursors.publish(
            cursor, token=self._token, position=page.position, messages=messages, operator_events=ids
        ):
            return False
        self._cursor = LogCursor(name=CURSOR, position=page.position)
        return max(len(page.events) + len(page.unreadable), len(operator_events)) >= PAGE_EVENTS

    async def close(self) -> None:
        """Release the cursor, so that another publisher need not wait for the end of the lease."""
        if self._has_leased:
            self._cursor, self._has_leased = None, False
            await self._store.log_cursors.release(CURSOR, token=self._token)

    async def _leased(self) -> LogCursor | None:
        """The cursor, whose lease is renewed after a third of its time. None: another publisher has it."""
        now_seconds = self._seams.clock.monotonic_seconds()
        if self._cursor is None or now_seconds >= self._renew_at_seconds:
            cursors = self._store.log_cursors
            self._cursor = await cursors.lease(CURSOR, owner=self._name, token=self._token, lease_seconds=LEASE_SECONDS)
            self._has_leased |= self._cursor is not None
            self._renew_at_seconds = now_seconds + LEASE_SECONDS / 3
        return self._cursor

    async def _read_subscriptions(self) -> None:
        """The topics that name events, each with the time since which an endpoint with it exists."""
        now_seconds = self._seams.clock.monotonic_seconds()
        if now_seconds < self._refresh_at_seconds:
            return
        since: dict[str, datetime] = {}
        for endpoint in await self._store.outbox.endpoints():
            for topic in (one.topic for one in endpoint.subscriptions if names_events(one.topic)):
                since[topic] = min(since.get(topic, endpoint.created_at), endpoint.created_at)
        if since.keys() != self._since.keys():
            chosen = named_vocabularies(since)
            self._translator = EventTranslator(self._store, chosen) if chosen else None
        self._since, self._refresh_at_seconds = since, now_seconds + REFRESH_SECONDS

    async def _messages(self, events: Sequence[Event]) -> list[EventMessage]:
        origins = await self._origins({event.job_id for event in events})
        found = []
        for event in events:
            # An endpoint receives no events from before it was created.
            patterns = [topic for topic, since_at in self._since.items() if since_at <= event.at]
            translated = await self._translator.translate(event) if self._translator and patterns else []
            found += event_messages(event, origins.get(event.job_id), translated, patterns=patterns)
        return found

    async def _operator_events(self) -> list[OperatorEvent]:
        if not names_operator_events(self._since):
            return []
        return await self._store.log_cursors.unpublished(limit=PAGE_EVENTS)

    def _operator_messages(self, events: Sequence[OperatorEvent]) -> list[EventMessage]:
        found = []
        for event in events:
            patterns = [topic for topic, since_at in self._since.items() if since_at <= event.at]
            if (message := operator_message(event, patterns=patterns)) is not None:
                found.append(message)
        return found

    async def _origins(self, job_ids: set[UUID]) -> dict[UUID, Origin]:
        jobs = await self._store.read(sorted(job_ids)) if job_ids else {}
        return {job_id: job.origin for job_id, job in jobs.items()}


def publisher_role(seams: Seams) -> WorkerRole:
    """The publisher as it runs beside a worker, until it is left."""

    @asynccontextmanager
    async def role(
        store: PublisherStore, name: str, availability: DatabaseAvailability | None = None, /
    ) -> AsyncIterator[EventPublisher]:
        publisher = EventPublisher(store, seams, name=name, availability=availability)
        task = seams.spawn.task(publisher.run(), name="tenure-event-publisher")
        try:
            yield publisher
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("event publisher %s failed", name, exc_info=error)
            with suppress(TenureError):
                await publisher.close()

    return role
