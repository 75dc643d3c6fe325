"""`--metrics`: the metrics of a command that works for ever, served for as long as it does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.observe.database_gauges import Level
    from tenure.observe.snapshot import Snapshot
    from tenure.stores import Store

log = logging.getLogger("tenure.worker")


@asynccontextmanager
async def served(
    wanted: str | None,
    *,
    sources: Sequence[Callable[[], Snapshot]],
    here: Callable[[], Sequence[Level]],
    open_store: Callable[[], Awaitable[Store]],
) -> AsyncIterator[None]:
    """Serve at the address that is wanted, if any: what the sources count, how things stand here and in the database.

    An address that cannot be had is refused before anything is done.
    """
    if wanted is None:
        yield
        return
    from tenure.observe.database_gauges import Depths
    from tenure.observe.metrics_server import PATH, Address, MetricsServer
    from tenure.observe.prometheus import Collector, text

    depths: Depths | None = None

    def levels() -> list[Level]:
        return [*here(), *(depths.read() if depths is not None else ())]

    collector = Collector(*sources, levels=levels)
    server = MetricsServer(Address.parsed(wanted), lambda: text(collector), SYSTEM)
    depths = Depths(open_store, SYSTEM)
    log.info("metrics at http://%s%s", server.address, PATH)
    try:
        yield
    finally:
        server.close()
        await depths.close()
