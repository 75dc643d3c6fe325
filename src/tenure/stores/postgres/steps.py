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
from tenure.lifecycle.steps import StepRecord
from tenure.stores.base import CONFLICTS_MAX, conflicts_exhausted
from tenure.stores.contract import Busy, Failure, SaveStep, StepOutcome, StepSaved, decide_save, distinct_saves
from tenure.stores.postgres.apply_batch import POISON, message_of
from tenure.stores.postgres.budgets import InTransaction, lock_budgets, settle
from tenure.stores.postgres.connections import Connections, Fetches, Session
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.rows import arrays, job_from, step_from
from tenure.stores.quarantine import Bisection

_STEP = (
    "ids", "tokens", "keys", "kinds", "names", "branches", "ordinals", "attempts", "argument_digests", "statuses",
    "code_versions", "durations_ms", "child_ids", "signal_revs", "content_digests", "digests", "spends", "undos",
    "results", "errors",
)  # fmt: skip

_ONE_STEP = (
    "id", "token", "key", "kind", "name", "branch", "ordinal", "attempt", "argument_digest", "status", "code_version",
    "duration_ms", "child_id", "signal_rev", "content_digest", "digest", "spend", "undo", "result", "error",
)  # fmt: skip
_DIGESTS = slice(14, 16)

_COPY = (
    "keys", "kinds", "names", "branches", "ordinals", "attempts", "argument_digests", "statuses", "code_versions",
    "started_ats", "finished_ats", "child_ids", "signal_revs", "content_digests", "digests", "spends", "undos",
    "results", "errors",
)  # fmt: skip

Place = tuple[UUID, str]

log = logging.getLogger("tenure.stores.postgres")


async def save_steps(
    connections: Connections, policies: PostgresPolicies, requests: Sequence[SaveStep]
) -> list[StepOutcome]:
    """Save steps: all that charge no budget in one statement, and each other one in a transaction of its own."""

    async def save_charged(request: SaveStep) -> StepOutcome:
        async def save(session: Session) -> StepOutcome:
            [outcome] = await PostgresSteps(InTransaction(session), policies).save([request])
            return outcome

        return await connections.write("store", save)

    plain = [request for request in requests if request.charge is None]
    saved = iter(await PostgresSteps(connections, policies).save(plain) if plain else ())
    return [next(saved) if request.charge is None else await save_charged(request) for request in requests]


class PostgresSteps:
    """Saves steps with the statements that `fetches` sends: each in a transaction of its own, or all in one."""

    def __init__(self, fetches: Fetches, policies: PostgresPolicies) -> None:
        self._fetches, self._policies = fetches, policies

    async def save(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        """The outcome of each request, in order. Of two with the same key the first wins. Steps that charge a budget
        need statements of one transaction."""
        await lock_budgets(self._fetches, requests)
        if len(requests) == 1 and (outcome := await self._save_one(requests[0])) is not None:
            outcomes = [outcome]
        else:
            outcomes = await self._save_all(requests)
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.charge is not None and isinstance(outcome, StepSaved):
                await settle(self._fetches, request)
        return outcomes

    async def _save_all(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        outcomes: dict[int, StepOutcome] = {}
        for batch in distinct_saves(requests):
            open_ = dict(batch)
            for _ in range(CONFLICTS_MAX):
                await self._save(open_, outcomes)
                open_ = {index: request for index, request in open_.items() if index not in outcomes}
                if not open_:
                    break
            for index, request in open_.items():
                outcomes[index] = Failure(conflicts_exhausted(request.job.id))
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
                    answers[batch[0].place] = _poisoned(batch[0], problem)
        refused = [request for request in requests.values() if request.place not in answers]
        if refused:
            answers.update(await self._refusals(refused))
        for index, request in requests.items():
            if request.place in answers:
                outcomes[index] = answers[request.place]

    async def _insert(self, requests: Sequence[SaveStep], answers: dict[Place, StepOutcome]) -> None:
        rows = [_row(request) for request in requests]
        by_place = {request.place: (request, row) for request, row in zip(requests, rows, strict=True)}
        for answer in await self._fetches.fetch("steps/insert", arrays(rows, _STEP)):
            if answer["job_id"] is None:
                continue
            place = answer["job_id"], answer["key"]
            request, row = by_place[place]
            answers[place] = Busy(request.job) if answer["locked"] else StepSaved(_record(request, row, answer))

    async def _save_one(self, request: SaveStep) -> StepOutcome | None:
        """The outcome of the statement for one step. None: it has not written the step, and does not know why."""
        row = _row(request)
        try:
            [answer] = await self._fetches.fetch("steps/insert_one", dict(zip(_ONE_STEP, row, strict=True)))
        except POISON as problem:
            return _poisoned(request, problem)
        return None if answer["number"] is None else StepSaved(_record(request, row, answer))

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


def _poisoned(request: SaveStep, problem: Exception) -> Failure:
    job_id, key = request.place
    log.error("step %r of job %s cannot be written: %s", key, job_id, message_of(problem))
    return Failure(RowPoisoned(job_id, f"step {key!r}: {message_of(problem)}"))


def _record(request: SaveStep, row: tuple[Any, ...], answer: asyncpg.Record) -> StepRecord:
    digests = row[_DIGESTS]
    return request.record(number=answer["number"], at=answer["finished_at"], digests=digests)


def _row(request: SaveStep) -> tuple[Any, ...]:
    """The parameters of one step, in the order of `_STEP`."""
    step = request.step
    return (
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
        *request.digests,
        step.spend,
        step.undo,
        step.result,
        step.error,
    )


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
