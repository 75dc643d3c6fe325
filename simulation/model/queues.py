"""Queues of the model: their records, and claims under limits.

It reads every job for each claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from simulation.model.rows import claimable
from tenure.lifecycle.claim_order import candidate_order
from tenure.lifecycle.json_text import check_name
from tenure.lifecycle.queue_limits import NO_LIMITS, Candidate, QueueLimits, RateUsage
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.statuses import READY
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import ClaimRequest, QueueRecord
from tenure.stores.limited_claim import (
    Choice,
    DueJobs,
    DueJobsOfKeys,
    KeyUsage,
    LeasedCounts,
    LimitedQueue,
    LimitRead,
    PartitionKeys,
    QueueUsage,
    choose,
    run_choice,
)
from tenure.testing.clock import ManualClock

Rows = dict[Any, Job]


class ModelQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The model's record of a queue."""

    record: QueueRecord
    last_key: str = ""
    usage: RateUsage = RateUsage()
    usage_by_key: dict[str, RateUsage] = {}

    @property
    def limited(self) -> bool:
        return self.record.paused_at is not None or self.record.limits != NO_LIMITS


class ModelQueues:
    """The queue operations of the model, over its queue records and rows."""

    def __init__(self, model: object, queues_by_name: dict[str, ModelQueue], rows: Rows, clock: ManualClock) -> None:
        self._model, self._queues, self._rows, self._clock = model, queues_by_name, rows, clock

    async def known(self) -> list[QueueRecord]:
        return [self._with_leased(self._queues[name]) for name in sorted(self._queues)]

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        return self._keep(self._queue(name), limits=limits)

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        queue = self._queue(name)
        return self._keep(queue, paused_at=queue.record.paused_at or self._clock.now())

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        queue = self._queue(name)
        return self._keep(queue, paused_at=None) if name in self._queues else None

    async def forget(self, name: str, *, actor: Actor) -> bool:
        self._queue(name)
        return self._queues.pop(name, None) is not None

    def _queue(self, name: str) -> ModelQueue:
        check_name(name, "queue")
        require_no_open_block(self._model)
        record = QueueRecord(name=name, limits=NO_LIMITS, paused_at=None, updated_at=self._clock.now())
        return self._queues.get(name, ModelQueue(record=record))

    def _keep(self, queue: ModelQueue, **changed: Any) -> QueueRecord:
        """Update the queue, and its time if that changes the record."""
        record = msgspec.structs.replace(queue.record, **changed)
        if record != queue.record or record.name not in self._queues:
            record = msgspec.structs.replace(record, updated_at=self._clock.now())
        kept = self._queues[record.name] = msgspec.structs.replace(queue, record=record)
        return self._with_leased(kept)

    def _with_leased(self, queue: ModelQueue) -> QueueRecord:
        leased = sum(job.leased and job.queue == queue.record.name for job in self._rows.values())
        return msgspec.structs.replace(queue.record, leased=leased)


def choose_within_limits(
    request: ClaimRequest, queues_by_name: dict[str, ModelQueue], jobs: Iterable[Job], now: datetime
) -> Choice | None:
    """The jobs that the limits admit; None if no queue has limits."""
    limited = {
        name: LimitedQueue(
            name=name,
            limits=queue.record.limits,
            paused=queue.record.paused_at is not None,
            last_key=queue.last_key,
            usage=queue.usage,
        )
        for name, queue in queues_by_name.items()
        if name in request.queues and queue.limited
    }
    if not limited:
        return None
    here = [job for job in jobs if job.queue in request.queues]
    reads = choose(request.queues, request.limit, limited=limited, now=now)
    return run_choice(reads, lambda read: _result(read, request, queues_by_name, here, now))


def _result(
    read: LimitRead, request: ClaimRequest, queues_by_name: dict[str, ModelQueue], jobs: Sequence[Job], now: datetime
) -> Any:
    mine = [job for job in jobs if job.queue == read.queue]
    match read:
        case DueJobs(_, limit):
            return _due(mine, request, now)[:limit]
        case PartitionKeys(_, after, limit):
            served = [job for job in mine if job.pinned_version in (None, request.code_version)]
            waiting = {job.origin.partition_key for job in served if job.status in READY and job.due_at is not None}
            return sorted(key for key in waiting if key is not None and key > after)[:limit]
        case DueJobsOfKeys(_, keys, each):
            due = _due(mine, request, now)
            return [one for key in keys for one in [one for one in due if one.key == key][:each]]
        case LeasedCounts():
            return Counter(job.origin.partition_key for job in mine if job.leased)
        case KeyUsage(queue, keys):
            usage = queues_by_name[queue].usage_by_key
            return {key: usage[key] for key in keys if key in usage}


def _due(jobs: Iterable[Job], request: ClaimRequest, now: datetime) -> list[Candidate]:
    due = [
        Candidate(job.id, job.queue, job.origin.partition_key, job.origin.priority, job.due_at, job.losses)
        for job in jobs
        if claimable(job, request, now) and job.due_at is not None
    ]
    return sorted(due, key=candidate_order)


def with_usage(queues_by_name: dict[str, ModelQueue], used: Iterable[QueueUsage]) -> dict[str, ModelQueue]:
    """The queue records after a claim."""
    kept = dict(queues_by_name)
    for usage in used:
        queue = kept[usage.queue]
        kept[usage.queue] = msgspec.structs.replace(
            queue,
            last_key=queue.last_key if usage.last_key is None else usage.last_key,
            usage=queue.usage if usage.usage is None else usage.usage,
            usage_by_key={**queue.usage_by_key, **usage.usage_by_key},
        )
    return kept
