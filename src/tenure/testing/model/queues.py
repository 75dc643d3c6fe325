"""Queues of the model: their records, and claims under limits.

It reads every job for each claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tenure.lifecycle.claim_order import candidate_order
from tenure.lifecycle.json_text import check_name
from tenure.lifecycle.queue_limits import NO_LIMITS, Candidate, QueueLimits, RateUsage
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.statuses import READY
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import ClaimRequest, QueueRecord
from tenure.stores.limited_claim import (
    Choice,
    InOrder,
    Keys,
    LeasedByKey,
    LimitedQueue,
    Note,
    OfKeys,
    Question,
    UsageByKey,
    answered,
    choose,
)
from tenure.testing.clock import ManualClock
from tenure.testing.model.rows import claimable

Rows = dict[Any, Job]


class RuleBook(msgspec.Struct, frozen=True, kw_only=True):
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

    def __init__(self, model: object, books: dict[str, RuleBook], rows: Rows, clock: ManualClock) -> None:
        self._model, self._books, self._rows, self._clock = model, books, rows, clock

    async def known(self) -> list[QueueRecord]:
        return [self._shown(self._books[name]) for name in sorted(self._books)]

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        return self._keep(self._there(name), limits=limits)

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        book = self._there(name)
        return self._keep(book, paused_at=book.record.paused_at or self._clock.now())

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        book = self._there(name)
        return self._keep(book, paused_at=None) if name in self._books else None

    async def forget(self, name: str, *, actor: Actor) -> bool:
        self._there(name)
        return self._books.pop(name, None) is not None

    def _there(self, name: str) -> RuleBook:
        check_name(name, "queue")
        require_no_open_block(self._model)
        record = QueueRecord(name=name, limits=NO_LIMITS, paused_at=None, updated_at=self._clock.now())
        return self._books.get(name, RuleBook(record=record))

    def _keep(self, book: RuleBook, **changed: Any) -> QueueRecord:
        """A record that does not change is left as it is."""
        record = msgspec.structs.replace(book.record, **changed)
        if record != book.record or record.name not in self._books:
            record = msgspec.structs.replace(record, updated_at=self._clock.now())
        kept = self._books[record.name] = msgspec.structs.replace(book, record=record)
        return self._shown(kept)

    def _shown(self, book: RuleBook) -> QueueRecord:
        held = sum(job.leased and job.queue == book.record.name for job in self._rows.values())
        return msgspec.structs.replace(book.record, held=held)


def choice_by_rules(
    request: ClaimRequest, books: dict[str, RuleBook], jobs: Iterable[Job], now: datetime
) -> Choice | None:
    """The jobs that the limits admit; None if no queue has limits."""
    limited = {
        name: LimitedQueue(
            name=name,
            limits=book.record.limits,
            paused=book.record.paused_at is not None,
            last_key=book.last_key,
            usage=book.usage,
        )
        for name, book in books.items()
        if name in request.queues and book.limited
    }
    if not limited:
        return None
    here = [job for job in jobs if job.queue in request.queues]
    asking = choose(request.queues, request.limit, limited=limited, now=now)
    return answered(asking, lambda question: _answer(question, request, books, here, now))


def _answer(
    question: Question, request: ClaimRequest, books: dict[str, RuleBook], jobs: Sequence[Job], now: datetime
) -> Any:
    mine = [job for job in jobs if job.queue == question.queue]
    match question:
        case InOrder(_, limit):
            return _due(mine, request, now)[:limit]
        case Keys(_, after, limit):
            served = [job for job in mine if job.pinned_version in (None, request.code_version)]
            waiting = {job.origin.partition_key for job in served if job.status in READY and job.due_at is not None}
            return sorted(key for key in waiting if key is not None and key > after)[:limit]
        case OfKeys(_, keys, each):
            due = _due(mine, request, now)
            return [one for key in keys for one in [one for one in due if one.key == key][:each]]
        case LeasedByKey():
            return Counter(job.origin.partition_key for job in mine if job.leased)
        case UsageByKey(queue, keys):
            usage = books[queue].usage_by_key
            return {key: usage[key] for key in keys if key in usage}


def _due(jobs: Iterable[Job], request: ClaimRequest, now: datetime) -> list[Candidate]:
    due = [
        Candidate(job.id, job.queue, job.origin.partition_key, job.origin.priority, job.due_at, job.losses)
        for job in jobs
        if claimable(job, request, now) and job.due_at is not None
    ]
    return sorted(due, key=candidate_order)


def noted(books: dict[str, RuleBook], notes: Iterable[Note]) -> dict[str, RuleBook]:
    """The queue records after a claim."""
    kept = dict(books)
    for note in notes:
        book = kept[note.queue]
        kept[note.queue] = msgspec.structs.replace(
            book,
            last_key=book.last_key if note.last_key is None else note.last_key,
            usage=book.usage if note.usage is None else note.usage,
            usage_by_key={**book.usage_by_key, **note.usage_by_key},
        )
    return kept
