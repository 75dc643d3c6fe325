"""Saving steps: the requests, their outcomes, and the workflow engine's part of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from tenure.errors import JobNotFound
from tenure.lifecycle.continuations import spawned_children
from tenure.lifecycle.decide import effective_at
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.steps import NewStep, StepRecord, new_step_digests, save_refusal, steps_to_undo
from tenure.stores.contract.budgets import Charge
from tenure.stores.contract.results import Busy, Failure, without_token

STEPS_PER_READ = 10_000


class SaveStep(msgspec.Struct, frozen=True, gc=False):
    """One step of one job. The actor has the token of the lease; the job may be a record of an earlier revision."""

    job: Job
    step: NewStep
    actor: Actor
    charge: Charge | None = None
    """What the step charges to a budget, in the same transaction. A step that exists is not charged again."""

    @property
    def place(self) -> tuple[UUID, str]:
        """Job and key: at most one step has it."""
        return self.job.id, self.step.key

    @property
    def digests(self) -> tuple[str, str]:
        """`content_digest` and `digest` of the row that the step becomes."""
        return new_step_digests(self.step, job_id=self.job.id, attempt=self.job.attempt)

    def record(self, *, number: int, at: datetime, digests: tuple[str, str] | None = None) -> StepRecord:
        """The recorded step, written at `at`. `digests`: its own, if they are known."""
        step, job_id, attempt = self.step, self.job.id, self.job.attempt
        content_digest, digest = digests or self.digests
        return StepRecord(
            job_id=job_id,
            key=step.key,
            number=number,
            kind=step.kind,
            name=step.name,
            branch=step.branch,
            ordinal=step.ordinal,
            attempt=attempt,
            arguments_digest=step.arguments_digest,
            status=step.status,
            code_version=step.code_version,
            started_at=at - timedelta(milliseconds=step.duration_ms),
            finished_at=at,
            child_id=step.child_id,
            signal_rev=step.signal_rev,
            content_digest=content_digest,
            digest=digest,
            spend=step.spend,
            undo=step.undo,
            result=step.result,
            error=step.error,
        )


class StepSaved(msgspec.Struct, frozen=True, gc=False):
    """The step was written now."""

    step: StepRecord


class StepExists(msgspec.Struct, frozen=True, gc=False):
    """The job has recorded a step with this key before, which stands: adopt it. Nothing was written."""

    step: StepRecord


StepOutcome = StepSaved | StepExists | Busy | Failure
"""Failure: LeaseLost without the token of the current lease, or after its end by the database's clock; AlreadyCommitted
after the job's commit; JobNotFound; NotAuthorised; InvalidInput or RowPoisoned for a step that cannot be written."""


def decide_save(
    current: Job | None, request: SaveStep, existing: StepRecord | None, *, now: datetime
) -> StepOutcome | None:
    """The outcome on the current record (with its token) and the recorded step of this key. None: it can be written."""
    if current is None:
        return Failure(JobNotFound(request.job.id))
    refusal = save_refusal(current, request.actor, attempt=request.job.attempt, at=effective_at(current, now))
    if refusal is not None:
        refusal.current = without_token(current, request.actor)
        return Failure(refusal)
    return None if existing is None else StepExists(existing)


def distinct_saves(requests: Sequence[SaveStep]) -> list[list[tuple[int, SaveStep]]]:
    """The requests with their indexes, in their order, in batches of which none has a key of a job twice."""
    batches: list[list[tuple[int, SaveStep]]] = []
    places: set[tuple[UUID, str]] = set()
    for index, request in enumerate(requests):
        if not batches or request.place in places:
            batches.append([])
            places.clear()
        places.add(request.place)
        batches[-1].append((index, request))
    return batches


class StepReads(Protocol):
    """A store that reads steps."""

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]: ...


async def all_steps(store: StepReads, job_id: UUID) -> list[StepRecord]:
    """All recorded steps of the job, in the order of their completion."""
    records: list[StepRecord] = []
    while page := await store.steps(job_id, after=records[-1].number if records else 0, limit=STEPS_PER_READ):
        records += page
        if len(page) < STEPS_PER_READ:
            break
    return records


async def has_steps_to_undo(store: StepReads, job: Job) -> bool:
    """Whether the job must undo steps before it ends. Only complete for a job without a lease: an owner saves steps."""
    return job.attempt > 0 and not job.committed and bool(steps_to_undo(await all_steps(store, job.id)))


async def ends_on_a_worker(store: StepReads, job: Job) -> bool:
    """Whether a worker must end this job if a cancel is requested: it has steps to undo, or children that end with it.
    Only complete for a job without a lease."""
    if job.attempt == 0 or job.committed:
        return False
    records = await all_steps(store, job.id)
    return any(record.undo is not None for record in records) or bool(spawned_children(records))


class StepStore(Protocol):
    """The workflow engine's part: it saves the steps of jobs under their leases, and reads them."""

    async def save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        """Save each step that may be saved, in one transaction. The outcomes are in the order of the requests."""
        ...

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        """The steps of a job after this number, in the order of completion."""
        ...
