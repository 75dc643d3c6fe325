"""Runs an outbox processor for the endpoints that a program declares."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast

import msgspec

from tenure.jobs.middleware import Middleware
from tenure.jobs.settings import check_type
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.sinks import CallableSink, Delivery, Sink, is_sink
from tenure.seams import Seams
from tenure.stores.contract import Store
from tenure.stores.contract.outbox import OUTBOX_WAKEUP, EndpointRecord, SubscriptionRecord
from tenure.stores.outbox_validation import validate_endpoint
from tenure.workers.reconnect import DatabaseAvailability

CALLABLE = "callable"
"""The kind of endpoints that are functions of a program."""
WEBHOOK = "webhook"

log = logging.getLogger("tenure.outbox")


Function = Callable[[Delivery], Any]


class CallableEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A function, or a sink of the program, that receives messages."""

    name: str
    function: Function | Sink
    subscriptions: tuple[SubscriptionRecord, ...]


def callable_endpoint(
    name: str,
    function: Function | Sink,
    *,
    topics: Sequence[str],
    filters: Mapping[str, Any] | None = None,
    block_seconds: float | None = None,
) -> CallableEndpoint:
    """The declaration of an endpoint. InvalidInput: a topic or a filter is not valid."""
    written = None if filters is None else encode(dict(filters), where="filters")
    subscriptions = tuple(
        SubscriptionRecord(endpoint=name, topic=topic, filters=written, block_seconds=block_seconds) for topic in topics
    )
    validate_endpoint(name, kind=CALLABLE, config=None, subscriptions=subscriptions)
    return CallableEndpoint(name=name, function=function, subscriptions=subscriptions)


class OutboxRole(Protocol):
    """Registers endpoints in a store and delivers to them, under this name. A worker passes its availability."""

    def __call__(
        self, store: Store, name: str, availability: DatabaseAvailability | None = None, /
    ) -> AbstractAsyncContextManager[OutboxProcessor]: ...


def outbox_role(
    endpoints: Mapping[str, CallableEndpoint],
    seams: Seams,
    *,
    actor: Actor,
    options: ProcessorOptions | None = None,
    middleware: Sequence[Middleware] = (),
    environment: Mapping[str, str] = os.environ,
) -> OutboxRole:
    """What registers the endpoints in the database, and delivers to them until it is left."""
    check_type(options, ProcessorOptions, "outbox_options", "tenure.outbox.processor_options.ProcessorOptions(…)")

    def sink_for(record: EndpointRecord) -> Sink | None:
        if record.kind == WEBHOOK:
            # Imported here: it needs aiohttp, which only programs with webhooks have to install.
            from tenure.outbox.webhook import open_webhook

            return open_webhook(record.config or "{}", environment=environment)
        declared = endpoints.get(record.name) if record.kind == CALLABLE else None
        if declared is None:
            return None
        function = declared.function
        return function if is_sink(function) else CallableSink(cast("Function", function), spawn=seams.spawn)

    @asynccontextmanager
    async def role(
        store: Store, name: str, availability: DatabaseAvailability | None = None, /
    ) -> AsyncIterator[OutboxProcessor]:
        for one in endpoints.values():
            await store.outbox.put_endpoint(
                one.name, kind=CALLABLE, source="code", subscriptions=one.subscriptions, actor=actor
            )
        async with store.wakeups([OUTBOX_WAKEUP]) as wakeups:
            processor = OutboxProcessor(
                store.outbox,
                sink_for,
                seams,
                name=name,
                options=options,
                wakeups=wakeups,
                middleware=middleware,
                availability=availability,
            )
            task = seams.spawn.task(processor.run(), name="tenure-outbox")
            try:
                yield processor
            finally:
                processor.stop()
                await asyncio.wait({task})
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("outbox processor %s failed", name, exc_info=error)

    return role
