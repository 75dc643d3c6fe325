"""Forks of runs: a new run that begins with the recorded steps of another one, and which jobs continue a job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition
from tenure.jobs.step_codec import encode_result
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.deadlines import without_inherited
from tenure.lifecycle.forks import fork_refusal, forked_steps
from tenure.lifecycle.records import Actor, Job, Origin
from tenure.lifecycle.size_limits import STEP_BYTES_MAX
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, EnqueueResult, JobFilter, ReadStore, Store
from tenure.stores.contract.steps import all_steps

DEADLINE_SECONDS = 60.0
PAGE = 500


async def fork_run(
    store: Store,
    job: Job,
    *,
    actor: Actor,
    seams: Seams,
    from_step: str | None = None,
    replace: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    request_id: str | None = None,
    step_bytes_max: int = STEP_BYTES_MAX,
) -> EnqueueResult:
    """Enqueue a run that goes on from a step of this one. Job and steps are written in one transaction."""
    refusal = fork_refusal(job, is_changed=bool(from_step is not None or replace))
    if refusal is not None:
        allowed = allowed_from(job.status, committed=job.committed)
        raise IllegalTransition(job, "fork", allowed=allowed, why=refusal)
    steps, new_id = await all_steps(store, job.id), seams.random.job_id()
    children = await store.read([step.child_id for step in steps if step.child_id is not None])
    copies = forked_steps(
        job,
        steps,
        new_id,
        from_step=from_step,
        replace={
            key: encode_result(value, step=key, bytes_max=step_bytes_max) for key, value in (replace or {}).items()
        },
        succeeded_children={child.id for child in children.values() if child.status is SUCCEEDED},
    )
    request = EnqueueRequest(_origin(job, new_id, request_id=request_id, budget=budget), actor)
    async with store.transaction(deadline_seconds=DEADLINE_SECONDS) as transaction:
        [enqueued] = await transaction.enqueue([request])
        if enqueued.created:
            await transaction.write_steps(enqueued.job, copies)
    return enqueued


async def continued_by(store: ReadStore, job: Job) -> AsyncIterator[Job]:
    """The jobs that were forked, retried or redriven from this one, oldest first. They have its correlation id."""
    wanted = JobFilter(correlation_id=job.correlation_id, kinds=[job.kind])
    after: UUID | None = None
    while True:
        page = await store.find(wanted, after=after, limit=PAGE)
        for one in page.jobs:
            if one.origin.redrive_of == job.id:
                yield one
        if page.after is None:
            return
        after = page.after


def _origin(job: Job, new_id: UUID, *, request_id: str | None, budget: Budget | None) -> Origin:
    """The same work under a new id. The original may be live and have its dedupe key, so a fork has none."""
    policy = job.origin.policy
    return msgspec.structs.replace(
        without_inherited(job.origin),
        id=new_id,
        request_id=request_id,
        redrive_of=job.id,
        parent_id=None,
        awaited=False,
        dedupe_key=None,
        correlation_id=job.correlation_id,
        policy=policy if budget is None else msgspec.structs.replace(policy, budget=budget),
    )
