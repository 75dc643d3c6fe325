"""Saves the steps of jobs: one statement for a batch, under the leases of the jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tenure.errors import RowPoisoned
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord, new_step_digests
from tenure.stores.base import CONFLICTS_MAX, conflicts_exhausted
from tenure.stores.contract import Busy, Failure, SaveStep, StepOutcome, StepSaved, decide_save, distinct_saves
from tenure.stores.postgres.apply_batch import POISON, message_of
from tenure.stores.postgres.budgets import lock_budgets, settle
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.rows import arrays, job_from, step_from
from tenure.stores.quarantine import Bisection

_STEP = (
    "ids", "tokens", "keys", "kinds", "names", "branches", "ordinals", "attempts", "argument_digests", "statuses",
    "code_versions", "durations_ms", "child_ids", "signal_revs", "content_digests", "digests", "spends", "undos",
    "results", "errors",
)  # fmt: skip

_COPY = (
    "keys", "kinds", "names", "branches", "ordinals", "attempts", "argument_digests", "statuses", "code_versions",
    "started_ats", "finished_ats", "child_ids", "signal_revs", "content_digests", "digests", "spends", "undos",
    "results", "errors",
)  # fmt: skip

Place = tuple[UUID, str]

log = logging.getLogger("tenure.stores.postgres")


class PostgresSteps:
    """Saves steps with the statements that `fetches` sends: each in a transaction of its own, or all in one."""

    def __init__(self, fetches: Fetches, policies: PostgresPolicies) -> None:
        self._fetches, self._policies = fetches, policies

    async def save(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        """The outcome of each request, in order. Of two with the same key the first wins. Steps that charge a budget
        need statements of one transaction."""
        outcomes: dict[int, StepOutcome] = {}
        await lock_budgets(self._fetches, requests)
        for batch in distinct_saves(requests):
            open_ = dict(batch)
            for _ in range(CONFLICTS_MAX):
                await self._save(open_, outcomes)
                open_ = {index: request for index, request in open_.items() if index not in outcomes}
                if not open_:
                    break
            for index, request in open_.items():
                outcomes[index] = Failure(conflicts_exhausted(request.job.id))
        for index, request in enumerate(requests):
            if isinstance(outcomes[index], StepSaved):
                await settle(self._fetches, request)
        return [outcomes[index] for index in range(len(requests))]

    async def _save(self, requests: dict[int, SaveStep], outcomes: dict[int, StepOutcome]) -> None:
        """Add the outcomes of the steps that were written, or that the rows refuse. What has none met neither: another
        transaction has ended in between."""
        answers: dict[Place, StepOutcome] = {}
        batches = Bisection(list(requests.values()))
        for batch in batches:
            try:
                await self._insert(batch, answers)
            except POISON as problem:
                if batches.isolates(batch):
                    job_id, key = batch[0].place
                    log.error("step %r of job %s cannot be written: %s", key, job_id, message_of(problem))
                    answers[job_id, key] = Failure(RowPoisoned(job_id, f"step {key!r}: {message_of(problem)}"))
        refused = [request for request in requests.values() if request.place not in answers]
        if refused:
            answers.update(await self._refusals(refused))
        for index, request in requests.items():
            if request.place in answers:
                outcomes[index] = answers[request.place]

    async def _insert(self, requests: Sequence[SaveStep], answers: dict[Place, StepOutcome]) -> None:
        by_place = {request.place: request for request in requests}
        for row in await self._fetches.fetch("steps/insert", step_parameters(requests)):
            if row["job_id"] is None:
                continue
            place = row["job_id"], row["key"]
            answers[place] = Busy(by_place[place].job) if row["locked"] else StepSaved(_record(by_place[place], row))

    async def _refusals(self, requests: Sequence[SaveStep]) -> dict[Place, StepOutcome]:
        """The outcomes of steps that were not written, by the rows as they are now. A statement cannot see a step that
        was committed while it waited for it, so this is another one."""
        ids, keys = [request.job.id for request in requests], [request.step.key for request in requests]
        found = await self._fetches.fetch("steps/select_recorded", {"ids": ids, "keys": keys})
        recorded = {(row["job_id"], row["key"]): step_from(row) for row in found}
        jobs = await self._jobs(ids)
        outcomes: dict[Place, StepOutcome] = {}
        for request in requests:
            current, now = jobs.get(request.job.id, (None, None))
            outcome = (
                Failure(current)
                if isinstance(current, RowPoisoned)
                else decide_save(current, request, recorded.get(request.place), now=now or request.job.updated_at)
            )
            if outcome is not None:
                outcomes[request.place] = outcome
        return outcomes

    async def _jobs(self, ids: Sequence[UUID]) -> dict[UUID, tuple[Job | RowPoisoned, datetime]]:
        rows = await self._fetches.fetch("jobs/select_with_clock", {"ids": list(set(ids))})
        policies = await self._policies.of(rows)
        jobs: dict[UUID, tuple[Job | RowPoisoned, datetime]] = {}
        for row in rows:
            try:
                jobs[row["id"]] = job_from(row, policies, with_token=True), row["now"]
            except RowPoisoned as problem:
                jobs[row["id"]] = problem, row["now"]
        return jobs


def _record(request: SaveStep, row: asyncpg.Record) -> StepRecord:
    return request.record(number=row["number"], at=row["finished_at"])


def step_parameters(requests: Sequence[SaveStep]) -> dict[str, Any]:
    """The arrays of `steps/insert.sql`."""
    rows = [
        (
            request.job.id,
            request.actor.token,
            step.key,
            step.kind,
            step.name,
            step.branch,
            step.ordinal,
            request.job.attempt,
            step.arguments_digest,
            step.status,
            step.code_version,
            step.duration_ms,
            step.child_id,
            step.signal_rev,
            *new_step_digests(step, job_id=request.job.id, attempt=request.job.attempt),
            step.spend,
            step.undo,
            step.result,
            step.error,
        )
        for request in requests
        for step in (request.step,)
    ]
    return arrays(rows, _STEP)


def copy_parameters(job_id: UUID, steps: Sequence[StepRecord]) -> dict[str, Any]:
    """The arrays of `steps/insert_copies.sql`."""
    rows = [
        (
            step.key, step.kind, step.name, step.branch, step.ordinal, step.attempt, step.arguments_digest, step.status,
            step.code_version, step.started_at, step.finished_at, step.child_id, step.signal_rev, step.content_digest,
            step.digest, step.spend, step.undo, step.result, step.error,
        )
        for step in steps
    ]  # fmt: skip
    return {**arrays(rows, _COPY), "job_id": job_id}
