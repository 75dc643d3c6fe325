"""The model's archive: a snapshot is a copy, and a restore builds a copy that replaces the model's content.

The model does not record when claims and messages were made; the archive uses the start of its clock.
"""

# ruff: noqa: SLF001 - this is a part of the model

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import msgspec

from simulation.model.archived_outbox import OUTBOX_RECORDS, outbox_records, record_as, restore_outbox
from simulation.model.queues import ModelQueue
from simulation.model.rows import DeduplicatedEnqueue, WonClaim
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.queue_limits import RateUsage
from tenure.lifecycle.records import Event
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.lifecycle.steps import StepRecord
from tenure.seams import SYSTEM
from tenure.stores.contract import Artifact, ArtifactRecord, OutboxMessage, QueueRecord, UnreadableRow
from tenure.stores.contract.archive import (
    ArchivedJob,
    ArchiveRecord,
    ClaimRecord,
    DeduplicatedRequest,
    KeyRateUsage,
    NotEmpty,
    NotRestored,
    QueueState,
    Restore,
    Snapshot,
    StreamRecord,
    Totals,
)
from tenure.stores.contract.budgets import BudgetRecord, ReservationRecord
from tenure.stores.contract.outbox import ArchivedDelivery, MessageRecord
from tenure.testing.clock import START

if TYPE_CHECKING:
    from simulation.model.store import ModelStore


T = TypeVar("T")


class ModelArchive:
    """The archive of a model."""

    def __init__(self, model: ModelStore) -> None:
        self._model = model

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        yield ModelSnapshot(self._model.copy(), at=await self._model.now())

    @asynccontextmanager
    async def restore(self, *, runs: int) -> AsyncIterator[Restore]:
        self._require_empty()
        copy = self._model.copy()
        yield ModelRestore(copy)
        self._require_empty()
        self._model.become(copy)

    def _require_empty(self) -> None:
        model = self._model
        tables = {
            "jobs": model._rows,
            "claims": model._claims,
            "deduplicated_requests": model._deduplicated,
            "outbox": model._outbox,
        }
        tables |= {"queues": model._queues, "schedules": model._schedules, "endpoints": model._endpoints}
        if nonempty := [name for name, rows in tables.items() if rows]:
            raise NotEmpty("the model", nonempty)


class ModelSnapshot:
    """A copy that does not change."""

    store = "model"

    def __init__(self, model: ModelStore, *, at: datetime) -> None:
        self._model, self.at = model, at

    async def totals(self) -> Totals:
        return Totals(len(self._model._rows), len(self._model._log))

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        return ()

    async def records(self, kind: type[ArchiveRecord], *, limit: int) -> AsyncIterator[Sequence[ArchiveRecord]]:
        shelf = self._shelf(kind)
        for page in _pages(shelf if kind is ArchivedDelivery else sorted(shelf, key=str), limit):
            yield page

    async def log(self, *, limit: int) -> AsyncIterator[Sequence[Event]]:
        for page in _pages(self._model._log, limit):
            yield page

    async def jobs(self, *, limit: int) -> AsyncIterator[Sequence[ArchivedJob]]:
        for page in _pages(self._model._rows_after(None), limit):
            yield [await self._kept(job.id) for job in page]

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._model.history(job_ids)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._model.artifact(job_id, name)

    async def steps(self, job_id: UUID, *, limit: int) -> AsyncIterator[Sequence[StepRecord]]:
        for page in _pages(self._model._steps.get(job_id, []), limit):
            yield page

    def _shelf(self, kind: type[ArchiveRecord]) -> list[ArchiveRecord]:
        model, at = self._model, START
        if kind is ClaimRecord:
            won = model._claims.items()
            return [ClaimRecord(request_id=name, body=one.body, job_ids=one.job_ids, at=at) for name, one in won]
        if kind is MessageRecord:
            return [record_as(MessageRecord, message) for message in model._messages()]
        if kind in OUTBOX_RECORDS:
            return outbox_records(model, kind)
        if kind is StreamRecord:
            last = {one.aggregate: one.at for one in model._messages() if one.aggregate is not None}
            return [StreamRecord(aggregate=aggregate, at=at) for aggregate, at in last.items()]
        if kind is ScheduleRecord:
            return [*model._schedules.values()]
        if kind is BudgetRecord:
            return [*model._budgets.values()]
        if kind is ReservationRecord:
            return [*model._reservations.values()]
        if kind is QueueState:
            return [_queue_state(queue) for queue in model._queues.values()]
        if kind is KeyRateUsage:
            return [
                KeyRateUsage(queue=name, key=key, usage=usage, until_at=at)
                for name, queue in model._queues.items()
                for key, usage in queue.usage_by_key.items()
            ]
        return []

    async def _kept(self, job_id: UUID) -> ArchivedJob:
        model = self._model
        deduplicated = [(name, one) for name, one in sorted(model._deduplicated.items()) if one.job_id == job_id]
        return ArchivedJob(
            job=(await model.read([job_id]))[job_id],
            dead_letter=await model.dead_letter(job_id),
            signals=tuple(await model.signals(job_id)),
            deduplicated_requests=tuple(
                DeduplicatedRequest(request_id=name, job_id=job_id, digest=one.body[0], detail=one.body[1], at=one.at)
                for name, one in deduplicated
            ),
            artifacts=tuple(await model.artifacts(job_id)),
            step_count=len(model._steps.get(job_id, ())),
        )


class ModelRestore:
    """Fills a copy."""

    def __init__(self, model: ModelStore) -> None:
        self._model = model

    async def write_records(self, records: Sequence[ArchiveRecord]) -> None:
        for record in records:
            if isinstance(record, ClaimRecord):
                self._model._claims[record.request_id] = WonClaim(record.body, record.job_ids)
            elif isinstance(record, MessageRecord):
                facts = {name: getattr(record, name) for name in OutboxMessage.__struct_fields__}
                self._model._outbox[record.id] = (record.sequence, OutboxMessage(**facts))
                self._model._message_context[record.id] = record.correlation_id, record.trace
                self._model._message_at[record.id] = record.at
                self._model._endpoint_counts[record.id] = record.endpoint_count
                if record.job_id is not None:
                    self._model._senders[record.id] = record.job_id
            elif isinstance(record, OUTBOX_RECORDS):
                restore_outbox(self._model, record)
            elif isinstance(record, ScheduleRecord):
                self._model._schedules[record.name] = record
            elif isinstance(record, BudgetRecord):
                self._model._budgets[record.root_id, record.unit] = record
            elif isinstance(record, ReservationRecord):
                place = (record.root_id, record.unit, record.job_id, record.attempt, record.key)
                self._model._reservations[place] = record
            elif isinstance(record, QueueState):
                self._model._queues[record.name] = _model_queue(record)
            elif isinstance(record, KeyRateUsage):
                queue = self._model._queues[record.queue]
                usage = queue.usage_by_key | {record.key: record.usage}
                self._model._queues[record.queue] = msgspec.structs.replace(queue, usage_by_key=usage)

    async def write_events(self, events: Sequence[Event]) -> None:
        for place, event in enumerate(events):
            if any(there.rev == event.rev for there in self._model._histories.get(event.job_id, ())):
                raise NotRestored(place, "a revision has one event")
            self._model._append([event])

    async def write_jobs(self, kept: Sequence[ArchivedJob]) -> None:
        model = self._model
        for place, one in enumerate(kept):
            job_id, history = one.job.id, model._histories.get(one.job.id, [])
            if job_id in model._rows or [event.rev for event in history] != list(range(1, one.job.rev + 1)):
                raise NotRestored(place, "a job comes once, with its whole log")
            shared = {"correlation_id": one.job.correlation_id, "trace": one.job.origin.trace}
            model._replace_events(msgspec.structs.replace(event, **shared) for event in list(history))
            token = SYSTEM.random.token() if one.job.leased else None
            model._rows[job_id] = msgspec.structs.replace(one.job, token=token)
            model._bodies[job_id] = (history[0].digest or "", history[0].detail)
            if one.dead_letter is not None:
                model._dead_letters[job_id] = one.dead_letter
            if one.signals:
                model._signals[job_id] = list(one.signals)
            model._deduplicated |= {
                its.request_id: DeduplicatedEnqueue((its.digest, its.detail), job_id, its.at)
                for its in one.deduplicated_requests
            }

    async def write_artifact(self, record: ArtifactRecord, body: bytes) -> None:
        made = Artifact(name=record.name, media_type=record.media_type, body=body)
        self._model._artifacts[record.job_id, record.name] = (record, made)

    async def write_steps(self, steps: Sequence[StepRecord]) -> None:
        for place, step in enumerate(steps):
            kept = self._model._steps.setdefault(step.job_id, [])
            if any(there.key == step.key for there in kept):
                raise NotRestored(place, "a key has one step")
            kept.append(msgspec.structs.replace(step, number=self._model._next_step_number()))

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._model.history(job_ids)

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await self._model.content(job_ids)

    async def missing_job(self) -> UUID | None:
        return next((job_id for job_id in self._model._histories if job_id not in self._model._rows), None)


def _queue_state(queue: ModelQueue) -> QueueState:
    record, usage = queue.record, queue.usage if queue.usage != RateUsage() else None
    facts = {name: getattr(record, name) for name in ("name", "limits", "paused_at", "updated_at")}
    return QueueState(last_key=queue.last_key, usage=usage, **facts)


def _model_queue(state: QueueState) -> ModelQueue:
    facts = {name: getattr(state, name) for name in ("name", "limits", "paused_at", "updated_at")}
    return ModelQueue(record=QueueRecord(**facts), last_key=state.last_key, usage=state.usage or RateUsage())


def _pages(items: Sequence[T], limit: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), limit):
        yield items[first : first + limit]
