"""Provenance of a terminal job: its inputs, its attempts with their code versions, its steps, its outcome. Pure.

It is derived from the record, its log and its steps, so that every terminal job has one, however it ended. Erasure
removes content and leaves its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, NotYet
from tenure.lifecycle.budgets import decode_spend, in_units, sum_amounts
from tenure.lifecycle.executions import Execution, ExecutionStatus
from tenure.lifecycle.fold import executions
from tenure.lifecycle.forks import ForkOrigin, fork_origin
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job, Policy
from tenure.lifecycle.statuses import LEASED, Status
from tenure.lifecycle.steps import StepKind, StepRecord, StepStatus


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
    correlation_id: str
    trace: str | None = None
    tags: Mapping[str, str] | None = None
    parent_id: UUID | None = None
    redrive_of: UUID | None = None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `code_version` is None where its claim named none.

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


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded step. `result` and `error` are JSON text; once erased, `digest` remains. `attempt` is the job's."""

    key: str
    kind: StepKind
    name: str
    status: StepStatus
    attempt: int
    code_version: str | None
    started_at: datetime
    duration_seconds: float
    result: str | None = None
    error: str | None = None
    digest: str
    spend: Mapping[str, float] = {}


class SpawnedChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child that the run has spawned, and the key of the step that did."""

    job_id: UUID
    kind: str
    key: str


class UnreadSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that no step has received. `rev` is the revision at which it was sent, `digest` that of its value."""

    name: str
    at: datetime
    by: str
    rev: int
    digest: str | None


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
    tool_calls: tuple[ToolCall, ...] = ()
    children: tuple[SpawnedChild, ...] = ()
    unread_signals: tuple[UnreadSignal, ...] = ()
    spend: Mapping[str, float] = {}
    """What its own steps have spent, by unit. Children have a provenance of their own."""
    fork: ForkOrigin | None = None
    """Where it began, if it was forked. A job that was retried or redriven has only `inputs.redrive_of`."""
    continued_by: tuple[UUID, ...] = ()
    """The jobs that were forked, retried or redriven from this one: those whose own `redrive_of` names it."""
    committed_at: datetime | None = None
    erased_at: datetime | None = None


def provenance(
    job: Job, events: Sequence[Event], steps: Sequence[StepRecord] = (), *, continued_by: Iterable[UUID] = ()
) -> Provenance:
    """The provenance of a terminal job, from its whole log and all its steps.

    `continued_by` is what other records have about this job: those that were made from it.
    A live job has none yet (NotYet). A log that is incomplete or of another job is InvalidInput.
    """
    if job.live:
        raise NotYet(job, "provenance", waits_for=f"it is {job.status}, and only a terminal job has a provenance")
    if not _is_log_of(job, events):
        raise InvalidInput("events", f"are not the {job.rev} events of job {job.id}; read its whole history")
    attempts = tuple(_attempts(events))
    return Provenance(
        job_id=job.id,
        inputs=_inputs(job, events[0]),
        code_versions=tuple(sorted({one.code_version for one in attempts if one.code_version is not None})),
        attempts=attempts,
        cancel_requests=tuple(_cancel_requests(events)),
        outcome=_outcome(job, events[-1]),
        durations=_durations(events, attempts),
        tool_calls=tuple(map(_tool_call, steps)),
        children=tuple(_children(steps)),
        unread_signals=tuple(unread_signals(events, steps)),
        spend=_in_units(sum_amounts(*(decode_spend(step.spend) for step in steps))),
        fork=fork_origin({step.key: step for step in steps}),
        continued_by=tuple(continued_by),
        committed_at=job.committed_at,
        erased_at=job.erased_at,
    )


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
        correlation_id=job.correlation_id,
        trace=origin.trace,
        tags=origin.tags,
        parent_id=origin.parent_id,
        redrive_of=origin.redrive_of,
    )


def _attempts(events: Sequence[Event]) -> Iterator[AttemptRecord]:
    versions = {
        event.attempt: _detail(event).get("code_version") for event in events if event.type is EventType.CLAIMED
    }
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
            code_version=versions[execution.attempt],
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


def _tool_call(step: StepRecord) -> ToolCall:
    return ToolCall(
        key=step.key,
        kind=step.kind,
        name=step.name,
        status=step.status,
        attempt=step.attempt,
        code_version=step.code_version,
        started_at=step.started_at,
        duration_seconds=(step.finished_at - step.started_at).total_seconds(),
        result=step.result,
        error=step.error,
        digest=step.content_digest,
        spend=_in_units(decode_spend(step.spend)),
    )


def _in_units(amounts: Mapping[str, int]) -> dict[str, float]:
    return {unit: in_units(amount) for unit, amount in sorted(amounts.items())}


def _children(steps: Sequence[StepRecord]) -> Iterator[SpawnedChild]:
    for step in steps:
        if step.kind is StepKind.SPAWN and step.child_id is not None:
            yield SpawnedChild(job_id=step.child_id, kind=step.name, key=step.key)


def unread_signals(events: Sequence[Event], steps: Sequence[StepRecord]) -> Iterator[UnreadSignal]:
    """The signals in the log that no step has received, in the order in which they were sent."""
    received = {step.signal_rev for step in steps}
    for event in events:
        if event.type is EventType.SIGNALLED and event.rev not in received:
            name = str(_detail(event).get("name"))
            yield UnreadSignal(name=name, at=event.at, by=event.actor, rev=event.rev, digest=event.digest)


def _cancel_requests(events: Sequence[Event]) -> Iterator[CancelRequest]:
    for event in events:
        if event.type is EventType.CANCEL_REQUESTED:
            yield CancelRequest(at=event.at, by=event.actor, reason=event.cause)


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
