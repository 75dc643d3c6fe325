"""The operator's part for queues: pauses and limits."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec

from tenure.lifecycle.queue_limits import QueueLimits
from tenure.lifecycle.records import Actor


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that is paused or has limits."""

    name: str
    limits: QueueLimits
    paused_at: datetime | None
    updated_at: datetime
    leased: int = 0
    """How many of its jobs are claimed or running."""


class QueueStore(Protocol):
    """Queues need no declaration; a queue has a row once it is paused or has limits.

    A change applies from the next claim on. A concurrent claim may still use the former limits.
    """

    async def known(self) -> list[QueueRecord]:
        """All queues that have a row, in the order of names."""
        ...

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        """Replace the limits of a queue. A paused queue stays paused."""
        ...

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        """Stop claims from a queue. Running jobs continue, and jobs can be enqueued."""
        ...

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        """Allow claims again, within the limits. None: the queue has no row."""
        ...

    async def forget(self, name: str, *, actor: Actor) -> bool:
        """Remove the row of a queue, and with it its limits and its pause. False: it has none."""
        ...
