"""`decide`: the change that an operation makes to a job, or a refusal. Pure: no clock, no I/O, no randomness.

`decide` uses the record alone. What depends on the database's clock becomes the change's guard, which the store checks
when it writes. `decide_at` also checks revision, lease and guard, for a caller that has the current row and the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from tenure.errors import AlreadyCommitted, IllegalTransition, LeaseLost, NotAuthorised, NotYet, RevisionConflict
from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.event_fields import EventFields
from tenure.lifecycle.evolve import after_ms, evolve
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.operations import Cancel, Claim, Heartbeat, Operation
from tenure.lifecycle.records import BLANKABLE, Actor, Event, EventType, Job, Role
from tenure.lifecycle.statuses import CANCELLED, LEASED, STALLED, TERMINAL, Status
from tenure.lifecycle.steps import records_steps
from tenure.lifecycle.transitions import TRANSITION_OF, Authority, ClockGuard, Transition, allowed_for


class PlannedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event without its time, which the store sets."""

    type: EventType
    from_status: Status
    to_status: Status
    fields: EventFields
    cause: str
    digest: str | None = None
    content: str | None = None
    until_after_ms: int | None = None
    renews: bool = False
    commits: bool = False
    steps: str | None = None


class Change(msgspec.Struct, frozen=True, gc=False):
    """What to write: the planned events, and the guard under which they may be written."""

    before: Job
    operations: tuple[Operation, ...]
    planned: tuple[PlannedEvent, ...]
    actor: Actor
    request_id: str
    guard: ClockGuard

    @property
    def name(self) -> str:
        return "+".join(operation.type for operation in self.operations)

    @property
    def counts_steps(self) -> bool:
        """Whether the store must count the job's steps when it writes: another actor ends the owner's attempt, or an
        owner that has not read the steps of earlier attempts. One that has read them brings their digest."""
        if self.guard is ClockGuard.LIVE_LEASE and not self.before.may_have_earlier_steps:
            return False
        return any(event.steps is None and records_steps(event.type, event.from_status) for event in self.planned)

    def with_owner_steps(self, steps: str | None) -> Change:
        """The change with the digest of the job's steps that its owner's request brings."""
        return self if steps is None or self.guard is not ClockGuard.LIVE_LEASE else self.with_steps(steps)

    def with_steps(self, steps: str | None) -> Change:
        """The change whose events carry this digest of the job's steps, where they end an attempt."""
        if steps is None:
            return self
        planned = tuple(
            msgspec.structs.replace(event, steps=steps) if records_steps(event.type, event.from_status) else event
            for event in self.planned
        )
        return msgspec.structs.replace(self, planned=planned)

    def events(self, at: datetime, *, renewed: bool = True) -> tuple[Event, ...]:
        """The events, written at `at`. A heartbeat that renewed nothing sets no `until_at`."""
        return expand(self, at, renewed=renewed)[0]

    def after(self, at: datetime, *, renewed: bool = True) -> Job:
        """The record after the change, written at `at`."""
        return expand(self, at, renewed=renewed)[1]


def decide(job: Job, operation: Operation, actor: Actor, *, request_id: str) -> Change:
    """The change that this operation makes; raises a refusal with its reason."""
    return decide_chain(job, (operation,), actor, request_id=request_id)


def decide_chain(job: Job, operations: Sequence[Operation], actor: Actor, *, request_id: str) -> Change:
    """Several operations in one change: N operations, N events, N revisions, all or none."""
    first = TRANSITION_OF[operations[0].type]
    by = _authority(job, first, actor)
    guard = ClockGuard.LIVE_LEASE if by.with_lease else first.clock_guard(operations[0])
    steps = [_step(job, operations[0], actor)]
    current = job
    for before, operation in pairwise(operations):
        # The next event depends on the record, not on the time, so any time serves.
        current = _after_step(current, before, steps[-1], actor, request_id=request_id, at=current.updated_at)[1]
        steps.append(_step(current, operation, actor))
        _require_no_clock(current, operation, after=before)
    return Change(job, tuple(operations), tuple(steps), actor, request_id, guard)


def decide_at(
    job: Job, operations: Sequence[Operation], actor: Actor, *, request_id: str, now: datetime, expected_rev: int | None
) -> Change:
    """The change to write to the current row at `now`; raises the first reason against it."""
    at = effective_at(job, now)
    first = TRANSITION_OF[operations[0].type]
    if _authority(job, first, actor).with_lease:
        _require_lease(job, operations[0], actor)
        if job.lease_expires_at is None or job.lease_expires_at <= at:
            raise LeaseLost(job, operations[0].type)
    if expected_rev is not None and expected_rev != job.rev:
        raise RevisionConflict(job, operations[0].type, expected_rev=expected_rev)
    change = decide_chain(job, operations, actor, request_id=request_id)
    if not clock_allows(job, change.guard, at):
        raise NotYet(job, change.name, waits_for=CLOCK_REFUSALS[change.guard])
    return change


def effective_at(job: Job, now: datetime) -> datetime:
    """The time of a change written at `now`: never before the job's last event, even if the clock was set back.

    Guards are evaluated at this time, so that the log shows that they held.
    """
    return max(now, job.updated_at)


CLOCK_REFUSALS = {
    ClockGuard.LIVE_LEASE: "its lease has expired",
    ClockGuard.DUE: "it is not due",
    ClockGuard.ORPHANED: "its lease is valid and its heartbeats arrive",
    ClockGuard.OVERDUE: "it has no timeout in this status, or that has not passed",
}


def clock_allows(job: Job, guard: ClockGuard, at: datetime) -> bool:
    """Whether the guard holds for this row at `at`."""
    match guard:
        case ClockGuard.LIVE_LEASE:
            return _after(job.lease_expires_at, at)
        case ClockGuard.DUE:
            return job.due_at is not None and job.due_at <= at
        case ClockGuard.ORPHANED:
            return not (_after(job.lease_expires_at, at) and _after(job.heartbeat_deadline_at, at))
        case ClockGuard.OVERDUE:
            return job.timeout_at is not None and job.timeout_at <= at
        case _:
            return True


def renewal_due(job: Job, at: datetime) -> bool:
    """Whether half of the lease's time has passed, so that a heartbeat renews it."""
    left = None if job.lease_expires_at is None else job.lease_expires_at - at
    return left is None or left.total_seconds() * 2000 <= job.policy.lease_ms


def expand(change: Change, at: datetime, *, renewed: bool = True) -> tuple[tuple[Event, ...], Job]:
    """The change's events at `at`, and the record after the last of them."""
    events: list[Event] = []
    job = change.before
    for operation, step in zip(change.operations, change.planned, strict=True):
        event, job = _after_step(
            job, operation, step, change.actor, request_id=change.request_id, at=at, renewed=renewed
        )
        events.append(event)
    return tuple(events), job


def same_request(operations: Sequence[Operation], written: Sequence[Event]) -> bool:
    """Whether these events were written by these operations. Compares requests, not the state of the job."""
    return len(operations) == len(written) and all(
        TRANSITION_OF[operation.type].event is event.type and _fields_match(operation, event)
        for operation, event in zip(operations, written, strict=True)
    )


def _fields_match(operation: Operation, event: Event) -> bool:
    fields = operation.event_fields()
    same_digest = fields.digest is None or fields.digest == event.digest
    blanked = event.detail is None and event.type in BLANKABLE
    # The cause of a cancel without a reason is the job's, so that the request does not determine it.
    same_cause = event.cause == (fields.cause or (event.cause if isinstance(operation, Cancel) else CAUSES[event.type]))
    return same_cause and same_digest and (blanked or fields.detail == event.detail)


def _step(job: Job, operation: Operation, actor: Actor) -> PlannedEvent:
    transition = TRANSITION_OF[operation.type]
    by = _authority(job, transition, actor)
    if by.with_lease:
        _require_lease(job, operation, actor)
    if job.committed and not transition.after_commit:
        allowed = allowed_for(job)
        raise AlreadyCommitted(job, operation.type, allowed=allowed, why="its effect has been applied")
    if job.status not in transition.sources:
        raise IllegalTransition(job, operation.type, allowed=allowed_for(job))
    if job.unwinding:
        _require_undo(job, transition, actor)
    if by.when is not None and not by.when.holds(job, operation):
        raise NotAuthorised(job, operation.type, role=actor.role, allowed=(), why=f"only when {by.when.description}")
    if transition.when is not None and not transition.when.holds(job, operation):
        others = [verb for verb in allowed_for(job) if verb is not operation.type]
        raise IllegalTransition(job, operation.type, allowed=others, why=f"only when {transition.when.description}")
    return _build(job, transition, operation)


def _require_undo(job: Job, transition: Transition, actor: Actor) -> None:
    """A job that undoes its steps does nothing else, and one that has undone them only ends, as was recorded: by its
    owner, or by recovery from stalled. A client may cancel or dead-letter it before that."""
    ends = transition.target in TERMINAL
    if job.compensated:
        by_right_role = actor.role is not Role.CLIENT and (job.status is STALLED or actor.role is not Role.RECOVERY)
        why = f"its undo steps are done, and it only ends as {job.ends_as}"
    else:
        by_right_role = transition.target is not CANCELLED or actor.role is Role.CLIENT
        why = "it only undoes its steps"
    if not transition.fits_undo(job) or (ends and not by_right_role):
        allowed = [verb for verb in allowed_for(job) if verb is not transition.operation]
        raise IllegalTransition(job, transition.operation, allowed=allowed, why=why)


def _build(job: Job, transition: Transition, operation: Operation) -> PlannedEvent:
    fields = operation.event_fields()
    content = operation.content()
    ends = transition.event is EventType.SUCCEEDED
    if ends and job.committed:
        content = job.committed_result
    return PlannedEvent(
        type=transition.event,
        from_status=job.status,
        to_status=transition.to(job.status),
        fields=fields,
        cause=fields.cause or operation.cause_for(job) or CAUSES[transition.event],
        digest=digest(content) if fields.digest is None and content is not None else fields.digest,
        content=content,
        until_after_ms=operation.until_after_ms(job),
        renews=isinstance(operation, Heartbeat),
        commits=transition.event is EventType.COMMITTED or (ends and not job.committed),
    )


def _authority(job: Job, transition: Transition, actor: Actor) -> Authority:
    by = transition.authority(actor.role)
    if by is None:
        raise NotAuthorised(job, transition.operation, role=actor.role, allowed=[by.role for by in transition.by])
    return by


def _require_no_clock(job: Job, operation: Operation, *, after: Operation) -> None:
    """A change has one time and one guard, those of its first operation. A requeue may follow a stall: a lost job is
    due."""
    if TRANSITION_OF[operation.type].guard in (ClockGuard.NOTHING, ClockGuard.LIVE_LEASE):
        return
    if operation.type is OperationType.REQUEUE and after.type is OperationType.STALL:
        return
    why = "it depends on the clock, so it must be the first operation of its change"
    raise IllegalTransition(job, operation.type, allowed=allowed_for(job), why=why)


def _require_lease(job: Job, operation: Operation, actor: Actor) -> None:
    """A record may lack its token, since reads never return it; then the store's match on the token decides."""
    if actor.token is None or job.status not in LEASED or (job.token is not None and job.token != actor.token):
        raise LeaseLost(job, operation.type)


def _after(deadline: datetime | None, at: datetime) -> bool:
    return deadline is not None and deadline > at


def _after_step(
    job: Job,
    operation: Operation,
    step: PlannedEvent,
    actor: Actor,
    *,
    request_id: str,
    at: datetime,
    renewed: bool = True,
) -> tuple[Event, Job]:
    event = _event(job, step, actor, request_id=request_id, at=at, renewed=renewed)
    after = evolve(job, event, step.content)
    return event, msgspec.structs.replace(after, token=operation.token) if isinstance(operation, Claim) else after


def _event(job: Job, step: PlannedEvent, actor: Actor, *, request_id: str, at: datetime, renewed: bool) -> Event:
    sets_until = step.until_after_ms is not None and (renewed or not step.renews)
    return Event(
        job_id=job.id,
        rev=job.rev + 1,
        type=step.type,
        from_status=step.from_status,
        to_status=step.to_status,
        at=at,
        attempt=job.attempt + 1 if step.type is EventType.CLAIMED else job.attempt,
        actor=str(actor),
        request_id=request_id,
        cause=step.cause,
        detail=step.fields.detail,
        digest=step.digest,
        until_at=after_ms(at, step.until_after_ms) if sets_until else None,
        commits=step.commits,
        steps=step.steps,
        correlation_id=job.correlation_id,
        trace=job.origin.trace,
    )
