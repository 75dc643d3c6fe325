"""What retention removes, in batches: finished jobs, verbose details, and rows that nothing needs any more."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec

from tenure.lifecycle.records import Actor
from tenure.lifecycle.statuses import Status

PRUNE_BATCH = 500
WORKER_SLACK_SECONDS = 86_400.0
"""A worker's row stays while a job is kept that was created up to this long after the worker was last seen: a worker
that cannot register may still run jobs."""


class FinishedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one status and kind that ended at least this long ago, with all their records."""

    status: Status
    kind: str
    older_than_seconds: float


class VerboseEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The details of progress events at least this old that `fold` no longer needs, because a later progress or claim
    of the same job replaces them. `after` is where the previous batch ended."""

    older_than_seconds: float
    after: tuple[str, ...] | None = None


class StoppedWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of workers that were last seen at least this long ago, and before any job that is kept was created."""

    older_than_seconds: float


class DeliveredMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Outbox messages that were delivered at least this long ago, and whose job is no longer kept: the log of a job has
    the digest of its messages."""

    older_than_seconds: float


class ExpiredRateUsage(msgspec.Struct, frozen=True):
    """Rate usage that no longer counts."""


Prunable = FinishedJobs | VerboseEvents | StoppedWorkers | DeliveredMessages | ExpiredRateUsage


class PrunedBatch(msgspec.Struct, frozen=True):
    """How much a batch removed, and what the next batch removes; None at the end."""

    removed: int
    next: Prunable | None


class FinishedKind(msgspec.Struct, frozen=True):
    """A status and kind of which finished jobs are kept, and when the first of them ended."""

    status: Status
    kind: str
    oldest_at: datetime


class PruneStore(Protocol):
    """The part of retention: it removes what is no longer needed, and nothing else."""

    async def finished_kinds(self) -> list[FinishedKind]:
        """The statuses and kinds of finished jobs, in their order."""
        ...

    async def prune(self, prunable: Prunable, *, limit: int = PRUNE_BATCH, actor: Actor | None = None) -> PrunedBatch:
        """Remove up to `limit` of it in one transaction, and skip rows that others have locked.

        The operator log records a removal by an `actor`; retention by a worker has none.
        """
        ...

    async def count_prunable(self, prunable: Prunable) -> int:
        """How much of it there is now."""
        ...
