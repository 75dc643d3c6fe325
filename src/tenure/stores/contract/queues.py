"""The operator's part for queues: pausing them, and the rules by which they let jobs through."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec

from tenure.lifecycle.queue_limits import QueueLimits
from tenure.lifecycle.records import Actor


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of which something is known beyond its jobs."""

    name: str
    limits: QueueLimits
    paused_at: datetime | None
    updated_at: datetime
    held: int = 0
    """How many of its jobs are claimed or running."""


class QueueStore(Protocol):
    """Queues need no declaration; a queue has a row once it is paused or has limits.

    What is changed here holds from the next claim on: a claim that is under way may still take by what was before.
    """

    async def known(self) -> list[QueueRecord]:
        """All that are written down, in the order of their names."""
        ...

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        """Give a queue these rules instead of those that it had. A paused one stays paused."""
        ...

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        """Let nothing be claimed from it. What runs goes on; enqueuing goes on."""
        ...

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        """Let it go on under its rules. None when nothing was known of it."""
        ...

    async def forget(self, name: str, *, actor: Actor) -> bool:
        """Remove its rules, and let it go on if it was paused. Whether there was anything to remove."""
        ...
