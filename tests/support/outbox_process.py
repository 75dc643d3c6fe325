"""An outbox processor in a process of its own: `python -m tests.support.outbox_process DATABASE URL…`.

Each endpoint, which is named after the last part of its URL, is served by a webhook. Leases and pauses are short, so
that a test can kill processes of this kind.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import suppress

from tenure.errors import StoreUnavailable
from tenure.outbox.addresses import AddressGuard
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import Sink
from tenure.outbox.webhook import WebhookSink
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tests.support.webhook_receiver import LOOPBACK

KEY = base64.b64encode(b"a key of the tests: thirty bytes").decode()
OPTIONS = ProcessorOptions(
    lease_seconds=4.0,
    delivery_seconds_max=2.0,
    messages_max=20,
    poll_seconds=0.05,
    retry=RetrySchedule(delays_seconds=(0.05,) * 1000),
)


async def main(database: str, *urls: str) -> None:
    guard = AddressGuard(LOOPBACK)
    sinks: dict[str, Sink] = {
        url.rpartition("/")[2]: WebhookSink(url, ["env:KEY"], guard=guard, environment={"KEY": KEY}) for url in urls
    }
    store = store_for(database)
    await store.open()
    name = SYSTEM.random.name()
    await OutboxProcessor(store.outbox, lambda one: sinks.get(one.name), SYSTEM, name=name, options=OPTIONS).run()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, StoreUnavailable):
        asyncio.run(main(*sys.argv[1:]))
