"""Provenance of a terminal job: its inputs, its attempts with their code versions, its outcome. Pure.

It is derived from the record and its log, so that every terminal job has one, however it ended. Erasure removes
content and leaves its digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, NotYet
from tenure.lifecycle.fold import executions
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Execution, ExecutionStatus, Job, Policy
from tenure.lifecycle.statuses import LEASED, Status


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was enqueued, with its digest. `payload` is None once erased."""

    kind: str
    payload: str | None
    digest: str | None
    policy: Policy
    queue: str
    priority: int
    submitted_by: str | None = None
    submitted_at: datetime
    enqueued_by: str
    correlation_id: str | None = None
    trace: str | None = None
    tags: Mapping[str, str] | None = None
    parent_id: UUID | None = None
    redrive_of: UUID | None = None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `code_version` is None where the owner never registered.

    `error` is the attempt's error as JSON text; once erased, `error_digest` remains.
    """

    number: int
    execution_id: str
    owner: str
    code_version: str | None
    status: ExecutionStatus
    leased_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    ran_seconds: float
    cause: str | None = None
    error: str | None = None
    error_digest: str | None = None


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to cancel the job."""

    at: datetime
    by: str
    reason: str | None


class ProvenanceOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal transition and its actor. `digest` is that of the result, partial result or error."""

    status: Status
    at: datetime
    by: str
    cause: str | None = None
    reason: str | None = None
    result: str | None = None
    partial_result: str | None = None
    error: str | None = None
    digest: str | None = None


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from enqueue to first claim (None if never claimed), running in all attempts, and in total."""

    until_claimed_seconds: float | None
    running_seconds: float
    total_seconds: float


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The provenance of one terminal job."""

    job_id: UUID
    inputs: Inputs
    code_versions: tuple[str, ...]
    attempts: tuple[AttemptRecord, ...]
    cancel_requests: tuple[CancelRequest, ...]
    outcome: ProvenanceOutcome
    durations: Durations
    committed_at: datetime | None = None
    erased_at: datetime | None = None


def provenance(job: Job, events: Sequence[Event], versions: Mapping[str, str]) -> Provenance:
    """The provenance of a terminal job, from its whole log. `versions` maps worker ids to code versions.

    A live job has none yet (NotYet). A log that is incomplete or of another job is InvalidInput.
    """
    if job.live:
        raise NotYet(job, "provenance", waits_for=f"it is {job.status}, and only a terminal job has a provenance")
    if not _is_log_of(job, events):
        raise InvalidInput("events", f"are not the {job.rev} events of job {job.id}; read its whole history")
    attempts = tuple(_attempts(events, versions))
    return Provenance(
        job_id=job.id,
        inputs=_inputs(job, events[0]),
        code_versions=tuple(sorted({one.code_version for one in attempts if one.code_version is not None})),
        attempts=attempts,
        cancel_requests=tuple(_cancel_requests(events)),
        outcome=_outcome(job, events[-1]),
        durations=_durations(events, attempts),
        committed_at=job.committed_at,
        erased_at=job.erased_at,
    )


def owners(events: Sequence[Event]) -> list[str]:
    """The owners of the job, each once, in order of their first claim."""
    return list(dict.fromkeys(event.owner for event in events if event.type is EventType.CLAIMED))


def _is_log_of(job: Job, events: Sequence[Event]) -> bool:
    revisions = [event.rev for event in events]
    return revisions == list(range(1, job.rev + 1)) and all(event.job_id == job.id for event in events)


def _inputs(job: Job, enqueued: Event) -> Inputs:
    origin = job.origin
    return Inputs(
        kind=origin.kind,
        payload=None if job.erased_at is not None else origin.payload,
        digest=enqueued.digest,
        policy=origin.policy,
        queue=origin.queue,
        priority=origin.priority,
        submitted_by=origin.submitted_by,
        submitted_at=enqueued.at,
        enqueued_by=enqueued.actor,
        correlation_id=origin.correlation_id,
        trace=origin.trace,
        tags=origin.tags,
        parent_id=origin.parent_id,
        redrive_of=origin.redrive_of,
    )


def _attempts(events: Sequence[Event], versions: Mapping[str, str]) -> Iterator[AttemptRecord]:
    # Only an event that ends a leased job carries the attempt's own error; give_up on a lost job does not.
    raised = {
        event.attempt: event
        for event in events
        if event.from_status in LEASED and event.type in _WITH_ERROR and event.digest is not None
    }
    for execution in executions(events):
        ended_by = raised.get(execution.attempt)
        yield AttemptRecord(
            number=execution.attempt,
            execution_id=execution.exec_id,
            owner=execution.lease_owner,
            code_version=versions.get(execution.lease_owner),
            status=execution.status,
            leased_at=execution.leased_at,
            started_at=execution.started_at,
            finished_at=execution.finished_at,
            ran_seconds=_ran_seconds(execution),
            cause=execution.cause,
            error=None if ended_by is None else _error_in(ended_by),
            error_digest=None if ended_by is None else ended_by.digest,
        )


_WITH_ERROR = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.DEAD_LETTERED})


def _error_in(event: Event) -> str | None:
    raw = msgspec.json.decode(event.detail, type=_ErrorDetail).error if event.detail else b""
    return bytes(raw).decode() or None


class _ErrorDetail(msgspec.Struct):
    """Keeps the error as its original text, so that its digest matches."""

    error: msgspec.Raw = msgspec.Raw()


def _ran_seconds(execution: Execution) -> float:
    if execution.started_at is None or execution.finished_at is None:
        return 0.0
    return (execution.finished_at - execution.started_at).total_seconds()


def _cancel_requests(events: Sequence[Event]) -> Iterator[CancelRequest]:
    for event in events:
        if event.type is EventType.CANCEL_REQUESTED:
            yield CancelRequest(at=event.at, by=event.actor, reason=_detail(event).get("reason"))


def _outcome(job: Job, end: Event) -> ProvenanceOutcome:
    return ProvenanceOutcome(
        status=job.status,
        at=end.at,
        by=end.actor,
        cause=end.cause,
        reason=job.reason,
        result=job.result,
        partial_result=job.partial_result,
        error=job.last_error if end.type in _WITH_ERROR else None,
        digest=end.digest,
    )


def _durations(events: Sequence[Event], attempts: Sequence[AttemptRecord]) -> Durations:
    first, last = events[0].at, events[-1].at
    return Durations(
        until_claimed_seconds=(attempts[0].leased_at - first).total_seconds() if attempts else None,
        running_seconds=sum(attempt.ran_seconds for attempt in attempts),
        total_seconds=(last - first).total_seconds(),
    )


def _detail(event: Event) -> dict[str, Any]:
    detail = load(event.detail) if event.detail else {}
    return detail if isinstance(detail, dict) else {}
