"""`--metrics`: serve the metrics of a long-running command while it runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.observe.database_gauges import GaugeValue
    from tenure.observe.snapshot import MetricsSnapshot
    from tenure.stores import Store

log = logging.getLogger("tenure.worker")


@asynccontextmanager
async def serve_metrics(
    address: str | None,
    *,
    sources: Sequence[Callable[[], MetricsSnapshot]],
    process_gauges: Callable[[], Sequence[GaugeValue]],
    open_store: Callable[[], Awaitable[Store]],
) -> AsyncIterator[None]:
    """Serve the sources, the gauges of this process and those of the database; nothing without an address.

    An address that cannot be used is InvalidInput, raised on entry.
    """
    if address is None:
        yield
        return
    from tenure.observe.database_gauges import DatabaseGauges
    from tenure.observe.metrics_server import PATH, ListenAddress, MetricsServer
    from tenure.observe.prometheus import Collector, text

    database_gauges: DatabaseGauges | None = None

    def gauges() -> list[GaugeValue]:
        return [*process_gauges(), *(database_gauges.read() if database_gauges is not None else ())]

    collector = Collector(*sources, gauges=gauges)
    server = MetricsServer(ListenAddress.parse(address), lambda: text(collector), SYSTEM)
    database_gauges = DatabaseGauges(open_store, SYSTEM)
    log.info("serving metrics at http://%s%s", server.address, PATH)
    try:
        yield
    finally:
        server.close()
        await database_gauges.close()
