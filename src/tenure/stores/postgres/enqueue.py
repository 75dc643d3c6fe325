"""New jobs: as the arrays that `enqueue.sql` takes, and as the records that come of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tenure.errors import DedupeKeyConflict, JobNotFound, RequestIdReused
from tenure.lifecycle.enqueue import enqueued_job, first_due_at
from tenure.lifecycle.records import CONTRACT_VERSION, Job, Origin, origin_digests
from tenure.stores.contract import EnqueueRequest, EnqueueResult, HomogeneousResults
from tenure.stores.postgres.connections import DEDUPE_STATE, REUSED_STATE, Fetches
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import jobs_by_id
from tenure.stores.postgres.rows import arrays, once
from tenure.stores.postgres.wakeups import CHANNEL, PostgresNotifier


class TakenKey(msgspec.Struct, frozen=True):
    """A dedupe key, and the live job of another kind that has it."""

    dedupe_key: str
    job_id: UUID
    kind: str


class PostgresEnqueuer:
    """Enqueues jobs, each batch in a transaction of its own. A homogeneous batch without keys is a plain insert; in an
    open transaction it is not, since a duplicate would end that transaction."""

    def __init__(self, fetches: Fetches, policies: PostgresPolicies, notifier: PostgresNotifier) -> None:
        self._fetches, self._policies, self._notifier = fetches, policies, notifier

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, homogeneous: bool, after: Awaitable[object] | None
    ) -> tuple[Sequence[EnqueueResult], bool]:
        """The jobs that the requests led to, and whether the write has notified other processes."""
        if homogeneous and not requests[0].has_key:
            new = await self._enqueue_homogeneous(requests, after)
            if new is not None:
                return new
        elif after is not None:
            await after
        return await enqueue(self._fetches, self._policies, requests), False

    async def _enqueue_homogeneous(
        self, requests: Sequence[EnqueueRequest], after: Awaitable[object] | None
    ) -> tuple[Sequence[EnqueueResult], bool] | None:
        """The new jobs of requests that have no keys; None if one of them may have been sent before."""
        first = requests[0]
        notified = after is None and self._notifier.may_notify_inline()
        statement, values = _plain_insert(requests)
        values["policy"] = await self._policies.number(first.origin.policy)
        values["notify"] = CHANNEL if notified else None
        if after is not None:
            await after
        try:
            answers = await self._fetches.fetch(statement, values)
        except asyncpg.UniqueViolationError:
            return None
        if not answers:
            return None
        job = new_job(first, answers[0]["now"])
        if len(requests) == 1:
            return [EnqueueResult(job, created=True)], notified
        return HomogeneousResults(job, requests), notified


def _plain_insert(requests: Sequence[EnqueueRequest]) -> tuple[str, dict[str, Any]]:
    """The statement that inserts these requests, and its values without the policy's number and the notification."""
    first = requests[0]
    if len(requests) == 1:
        return _insert_of_one(first)
    values = _shared_values(first)
    origins = [request.origin for request in requests]
    payloads = once([one.payload for one in origins])
    values["ids"], values["payloads"] = [one.id for one in origins], payloads
    values["digests"] = origin_digests(origins[: len(payloads)])
    return "jobs/enqueue_homogeneous", values


def _insert_of_one(request: EnqueueRequest) -> tuple[str, dict[str, Any]]:
    origin, policy = request.origin, request.origin.policy
    times, links = (request.due_at, policy.queued_ms, policy.deadline_ms), (origin.parent_id, origin.redrive_of)
    if request.delay_ms or (*times, *links, origin.tags) != _NOTHING:
        name, values = "jobs/enqueue_one", _shared_values(request)
    else:
        name, values = "jobs/enqueue_one_now", _common_values(request)
    values["id"], values["payload"], [values["digest"]] = origin.id, origin.payload, origin_digests([origin])
    return name, values


_NOTHING = (None,) * 6


def _common_values(first: EnqueueRequest) -> dict[str, Any]:
    """What every job has. Homogeneous requests have it in common."""
    origin = first.origin
    return {
        "kind": origin.kind,
        "queue": origin.queue,
        "priority": origin.priority,
        "correlation_id": origin.correlation_id,
        "trace": origin.trace,
        "submitted_by": origin.submitted_by,
        "partition_key": origin.partition_key,
        "actor": str(first.actor),
        "version": CONTRACT_VERSION,
    }


def _shared_values(first: EnqueueRequest) -> dict[str, Any]:
    """What homogeneous requests have in common."""
    origin = first.origin
    return {
        **_common_values(first),
        "tags": _tags(origin),
        "parent_id": origin.parent_id,
        "redrive_of": origin.redrive_of,
        "awaited": origin.awaited,
        "delay_ms": first.delay_ms,
        "due_at": first.due_at,
        "queued_ms": origin.policy.queued_ms,
        "deadline_ms": origin.policy.deadline_ms,
        "detail": first.detail,
        "cause": first.stored_cause,
    }


async def enqueue(
    fetches: Fetches, policies: PostgresPolicies, requests: Sequence[EnqueueRequest]
) -> list[EnqueueResult]:
    """The jobs that the requests led to, in their order."""
    numbers = [await policies.number(request.origin.policy) for request in requests]
    try:
        answers = await fetches.fetch("jobs/enqueue", enqueue_parameters(requests, numbers))
    except asyncpg.PostgresError as problem:
        raise_refusal(problem)
        raise
    added = await added_of(fetches, policies, requests, answers)
    for one, answer in zip(added, answers, strict=True):
        if one is None:
            raise JobNotFound(answer["job_id"])
    return [one for one in added if one is not None]


def raise_refusal(problem: asyncpg.PostgresError) -> None:
    """Raise the refusal that `tenure.enqueue_jobs` reports by an SQLSTATE of its own."""
    detail = str(problem.as_dict().get("detail"))
    if problem.sqlstate == REUSED_STATE:
        raise RequestIdReused(detail) from problem
    if problem.sqlstate == DEDUPE_STATE:
        raise dedupe_conflict(detail) from problem


def dedupe_conflict(detail: str) -> DedupeKeyConflict:
    """The conflict that the detail of an error names."""
    taken = msgspec.json.decode(detail, type=TakenKey)
    return DedupeKeyConflict(taken.dedupe_key, job_id=taken.job_id, kind=taken.kind)


async def added_of(
    fetches: Fetches, policies: PostgresPolicies, requests: Sequence[EnqueueRequest], answers: Sequence[asyncpg.Record]
) -> list[EnqueueResult | None]:
    """The jobs of these answers, in their order; None for one that was there and that retention has removed since."""
    there = await jobs_by_id(fetches, policies, [answer["job_id"] for answer in answers if not answer["created"]])
    added: list[EnqueueResult | None] = []
    for request, answer in zip(requests, answers, strict=True):
        if answer["created"]:
            added.append(EnqueueResult(new_job(request, answer["created_at"]), created=True))
        else:
            met = there.get(answer["job_id"])
            added.append(None if met is None else EnqueueResult(met, created=False))
    return added


def enqueue_parameters(requests: Sequence[EnqueueRequest], numbers: list[int]) -> dict[str, Any]:
    """The arrays of `enqueue.sql`. `numbers` are those of the jobs' policies."""
    rows = [_enqueue_row(request, number) for request, number in zip(requests, numbers, strict=True)]
    return {**arrays(rows, _ENQUEUE), "version": CONTRACT_VERSION}


_ENQUEUE = (
    "ids", "kinds", "queues", "priorities", "payloads", "policies", "dedupe_keys", "request_ids", "correlation_ids",
    "traces", "submitters", "tags", "partition_keys", "parents", "redrives", "awaited", "delays_ms", "due_ats",
    "digests", "details", "causes", "actors",
)  # fmt: skip


def _enqueue_row(request: EnqueueRequest, policy: int) -> tuple[Any, ...]:
    origin = request.origin
    return (
        origin.id, origin.kind, origin.queue, origin.priority, origin.payload, policy, origin.dedupe_key,
        origin.request_id, origin.correlation_id, origin.trace, origin.submitted_by, _tags(origin),
        origin.partition_key, origin.parent_id, origin.redrive_of, origin.awaited, request.delay_ms,
        request.due_at, origin.digest(), request.detail, request.stored_cause, str(request.actor),
    )  # fmt: skip


def _tags(origin: Origin) -> str | None:
    return None if origin.tags is None else msgspec.json.encode(origin.tags, order="sorted").decode()


def new_job(request: EnqueueRequest, at: datetime) -> Job:
    """The record of the job that the statement created at this time."""
    return enqueued_job(
        request.origin, at=at, due_at=first_due_at(at, delay_ms=request.delay_ms, due_at=request.due_at)
    )
