"""Redriving jobs: the work of an ended job is enqueued as a new one, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from tenure.errors import DedupeKeyConflict, IllegalTransition, RequestIdReused
from tenure.lifecycle.deadlines import without_inherited
from tenure.lifecycle.records import Actor, Job, Origin
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, HALTED
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, EnqueueResult, EnqueueStore, RetentionStore

RedriveResult = EnqueueResult | IllegalTransition | RequestIdReused | DedupeKeyConflict


REDRIVABLE = frozenset({DEAD_LETTERED, FAILED, HALTED})


class RedriveStore(EnqueueStore, RetentionStore, Protocol):
    """The roles of a store that a redrive needs."""


class Redriver:
    """Redrives jobs under the name of one client."""

    def __init__(self, store: RedriveStore, *, actor: Actor, seams: Seams) -> None:
        self._store, self._actor, self._seams = store, actor, seams

    async def redrive(self, jobs: Sequence[Job]) -> list[RedriveResult]:
        results: dict[UUID, RedriveResult] = {}
        for job in jobs:
            if (refusal := _redrive_refusal(job)) is not None:
                results[job.id] = refusal
        accepted = [job for job in jobs if job.id not in results]
        results.update(zip((job.id for job in accepted), await self._enqueue_again(accepted), strict=True))
        # After the enqueue: if this process ends in between, the dead letter stays open, and a retry finds the job.
        done = [job.id for job in jobs if job.status is DEAD_LETTERED and isinstance(results[job.id], EnqueueResult)]
        if done:
            await self._store.resolve_dead_letters(done, how="redriven", actor=self._actor)
        return [results[job.id] for job in jobs]

    async def _enqueue_again(self, jobs: Sequence[Job]) -> list[RedriveResult]:
        if not jobs:
            return []
        requests = [EnqueueRequest(redrive_origin(job, self._seams.random.job_id()), self._actor) for job in jobs]
        try:
            enqueued = await self._store.enqueue(requests)
        except (RequestIdReused, DedupeKeyConflict) as refusal:
            if len(jobs) == 1:
                return [refusal]
            return [result for job in jobs for result in await self._enqueue_again([job])]
        return [_checked_redrive(job, one) for job, one in zip(jobs, enqueued, strict=True)]


def redrive_origin(job: Job, new_id: UUID) -> Origin:
    """Return the origin of a redrive: the same work under a new id, linked to the old job. Its request id is derived
    from the old job alone, so that repeated redrives return one new job."""
    return msgspec.structs.replace(
        without_inherited(job.origin),
        id=new_id,
        request_id=f"redrive.{job.id}",
        redrive_of=job.id,
        parent_id=None,
        awaited=False,
        correlation_id=job.correlation_id,
    )


def _redrive_refusal(job: Job) -> IllegalTransition | None:
    if job.status is CANCELLED:
        return refused(job, "redrive", "it was cancelled on request; enqueue it again if it is needed after all")
    if job.status not in REDRIVABLE:
        return refused(job, "redrive", "only dead-lettered, failed and halted jobs can be redriven")
    if job.erased_at is not None:
        return refused(job, "redrive", "its content was erased")
    return None


def _checked_redrive(old: Job, enqueued: EnqueueResult) -> EnqueueResult | IllegalTransition:
    """Return the redrive, or a refusal if the enqueue returned a live job with the same dedupe key."""
    if enqueued.job.origin.redrive_of == old.id:
        return enqueued
    return refused(old, "redrive", f"live job {enqueued.job.id} has the same dedupe key")


def refused(job: Job, operation: str, why: str) -> IllegalTransition:
    return IllegalTransition(job, operation, allowed=allowed_from(job.status, committed=job.committed), why=why)
