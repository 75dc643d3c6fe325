"""A real worker in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import tenure
from tenure.lifecycle.records import EventType
from tenure.stores.contract import ReadStore
from tenure.workers.worker import Worker

QUICK: dict[str, Any] = {"poll_seconds": 0.05, "scan_seconds": 0.1, "grace_seconds": 10.0}
STOPPED_SECONDS_MAX = 40.0


@asynccontextmanager
async def working(app: tenure.App, **options: Any) -> AsyncIterator[Worker]:
    """Run it meanwhile; it is stopped at the end unless it has stopped before."""
    worker = app.worker(**{**QUICK, **options})
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        if not worker.stopping:
            worker.stop()
        await asyncio.wait_for(running, STOPPED_SECONDS_MAX)


async def is_renewed(store: ReadStore, job_id: UUID) -> bool:
    """Whether a heartbeat has renewed the job's lease."""
    events = (await store.history([job_id]))[job_id]
    return any(event.type is EventType.HEARTBEAT and event.until_at is not None for event in events)
