"""The statements of the hot path, run once with nothing to do: a new connection reads catalogues, compiles guards and
plans for some 50 milliseconds, which else the first jobs would wait for. Nothing is written.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from tenure.lifecycle.records import CONTRACT_VERSION
from tenure.stores.postgres.connections import Connections, fetch
from tenure.stores.postgres.watermarks import BOTTOM, lane_parameters

NOBODY = UUID(int=0)

NOTHING_TO_CLAIM: dict[str, Any] = {
    **lane_parameters(), "request_id": "warm-up", "body": "", "queues": [], "kinds": [], "worker": "", "token": NOBODY,
    "actor": "", "transition_count": 2, "version": CONTRACT_VERSION, "limit": 0, "excluded": [], "within_limits": False,
    "chosen": [], "queue": "", "priority": 0, "watermark_due_at": BOTTOM[0], "watermark_id": BOTTOM[1],
}  # fmt: skip
NOTHING_TO_COMPLETE: dict[str, Any] = {
    **{name: [] for name in ("ids", "revs", "tokens", "actors", "requests", "results", "digests")},
    "version": CONTRACT_VERSION,
}


async def rehearse(connections: Connections) -> None:
    """Make the connections that a worker needs at once, and have them know their statements."""
    if connections.address.pooled:
        # Nothing is kept there from one transaction to the next.
        return
    async with AsyncExitStack() as stack:
        # One claims while the other writes down what has ended.
        for _ in range(min(2, connections.size)):
            connection = await stack.enter_async_context(connections.session())
            await fetch(connection, "jobs/claim", NOTHING_TO_CLAIM)
            await fetch(connection, "jobs/claim_lane", NOTHING_TO_CLAIM)
            await fetch(connection, "jobs/complete", NOTHING_TO_COMPLETE)
