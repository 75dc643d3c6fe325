"""The transition table: the one authority on what can happen to a job.

Validators, database guards, the diagram in the docs, vocabularies and tests are derived from it. A transition names an
operation, its source statuses, its target, the roles that may apply it, the condition on the job, the condition on the
database's clock, and the event that records it. What an event does to the record is in `evolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.operations import Compensate, Complete, Fail, Operation, Stall, Suspend
from tenure.lifecycle.records import EventType, Job, Role
from tenure.lifecycle.statuses import (
    CANCELLED,
    CLAIMED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    LEASED,
    LIVE,
    QUEUED,
    READY,
    RETRY,
    RUNNING,
    STALLED,
    SUCCEEDED,
    TERMINAL,
    WAITING,
    Status,
    TextEnum,
)


class ClockGuard(TextEnum):
    """A condition on the database's clock. The store checks it when it writes the change."""

    NOTHING = "nothing"
    LIVE_LEASE = "live_lease"
    DUE = "due"
    ORPHANED = "orphaned"
    OVERDUE = "overdue"


class Condition(msgspec.Struct, frozen=True):
    """A condition on the record, with the words that a refusal quotes."""

    description: str
    holds: Callable[[Job, Operation], bool]


class Authority(msgspec.Struct, frozen=True):
    """A role that may apply a transition. `with_lease`: only as the owner of the lease."""

    role: Role
    with_lease: bool = False
    when: Condition | None = None


class Transition(msgspec.Struct, frozen=True):
    """One operation of the lifecycle. `target` is None where the status stays as it is."""

    operation: OperationType
    sources: Set[Status]
    target: Status | None
    by: tuple[Authority, ...]
    event: EventType
    when: Condition | None = None
    guard: ClockGuard = ClockGuard.NOTHING
    after_commit: bool = False
    after_compensation: bool = False
    """Legal once the undo steps are done; an end only if it is the recorded one."""
    while_unwinding: bool = True
    """Legal while the job undoes its steps."""

    def clock_guard(self, operation: Operation) -> ClockGuard:
        """The guard of this operation: a stall for a timeout waits for the timeout, any other for the lost owner."""
        return ClockGuard.OVERDUE if isinstance(operation, Stall) and operation.timed_out else self.guard

    def fits_undo(self, job: Job) -> bool:
        """Whether this is legal for a job that undoes its steps, or has undone them."""
        if job.compensated:
            return self.after_compensation and (self.target not in TERMINAL or self.target == job.ends_as)
        return self.while_unwinding or not job.unwinding

    def to(self, source: Status) -> Status:
        return source if self.target is None else self.target

    def authority(self, role: Role) -> Authority | None:
        return _AUTHORITY.get((self.operation, role))


def _may_fail(job: Job, operation: Operation) -> bool:
    last = job.counted_failures + 1 >= job.policy.max_attempts and job.policy.on_exhausted == "fail"
    return last or job.compensated or (isinstance(operation, Fail) and operation.permanent)


def _same_result(job: Job, operation: Operation) -> bool:
    return not job.committed or (isinstance(operation, Complete) and operation.result == job.committed_result)


def _has_been_at(job: Job, operation: Operation) -> bool:
    return isinstance(operation, Suspend) and operation.seen_rev <= job.rev


def _may_time_out(job: Job, operation: Operation) -> bool:
    return job.status not in LEASED or job.policy.on_timeout == "fail"


def _same_end(job: Job, operation: Operation) -> bool:
    if not isinstance(operation, Compensate) or job.ends_as is None:
        return True
    return (operation.ends_as, operation.ends_because) == (job.ends_as, job.ends_because)


FAILURES_LEFT = Condition("a failure is left", lambda job, _: job.counted_failures + 1 < job.policy.max_attempts)
MAY_FAIL = Condition("the error is permanent, or the last one and on_exhausted is fail", _may_fail)
SAME_RESULT = Condition("the result is the committed one, if there is one", _same_result)
CANCEL_REQUESTED = Condition("a cancel was requested", lambda job, _: job.cancel_requested)
MAY_RUN_AGAIN = Condition("its policy lets it run again", lambda job, _: job.recovery_action() == "requeue")
MUST_FAIL = Condition("it was lost or timed out and its policy is to fail", lambda job, _: job.recovery_action() == "fail")
MUST_CANCEL = Condition("it is stalled and compensated and ends cancelled", lambda job, _: job.status is STALLED and job.recovery_action() == "cancel")
MAY_TIME_OUT = Condition("it has no lease, or on_timeout is fail", _may_time_out)
IS_CLAIMED = Condition("it is claimed", lambda job, _: job.status is CLAIMED)
IS_COMMITTED = Condition("it is committed", lambda job, _: job.committed)
NOT_UNWINDING = Condition("it does not undo its steps yet", lambda job, _: not job.unwinding)
SAME_END = Condition("the end is the recorded one, if there is one", _same_end)
HAD_SEEN_REV = Condition("the job has reached seen_rev", _has_been_at)

CLIENT = (Authority(Role.CLIENT),)
RECOVERY = (Authority(Role.RECOVERY),)
CLAIMER = (Authority(Role.POOL), Authority(Role.GATEWAY))
OWNER = (Authority(Role.RUNNER, True), Authority(Role.GATEWAY, True))
STARTER = (Authority(Role.POOL, True), *OWNER)
CANCELLER = (Authority(Role.CLIENT), Authority(Role.RUNNER, True, CANCEL_REQUESTED), Authority(Role.GATEWAY, True, CANCEL_REQUESTED), Authority(Role.RECOVERY, when=MUST_CANCEL))
WAKER = (Authority(Role.CLIENT), Authority(Role.RUNNER), Authority(Role.GATEWAY), Authority(Role.RECOVERY))
DEAD_LETTERER = (Authority(Role.RECOVERY), *OWNER, Authority(Role.CLIENT))
TIMER = (Authority(Role.RECOVERY), Authority(Role.GATEWAY, when=IS_CLAIMED))

SAME = None

Op, Ev = OperationType, EventType

# fmt: off
TRANSITIONS = (
    #          operation          from        to             by             event               needs            waits for             after commit
    Transition(Op.CLAIM,          READY,      CLAIMED,       CLAIMER,       Ev.CLAIMED,         MAY_RUN_AGAIN,   ClockGuard.DUE),
    Transition(Op.ACK,            {CLAIMED},  SAME,          OWNER,         Ev.ACKED),
    Transition(Op.START,          {CLAIMED},  RUNNING,       STARTER,       Ev.STARTED),
    Transition(Op.HEARTBEAT,      LEASED,     SAME,          OWNER,         Ev.HEARTBEAT,       after_commit=True, after_compensation=True),
    Transition(Op.PROGRESS,       {RUNNING},  SAME,          OWNER,         Ev.PROGRESS,        after_commit=True, after_compensation=True),
    Transition(Op.COMMIT,         {RUNNING},  SAME,          OWNER,         Ev.COMMITTED, while_unwinding=False),
    Transition(Op.COMPLETE,       {RUNNING},  SUCCEEDED,     OWNER,         Ev.SUCCEEDED,       SAME_RESULT,     after_commit=True, while_unwinding=False),
    Transition(Op.RETRY,          {RUNNING},  RETRY,         OWNER,         Ev.RETRY_SCHEDULED, FAILURES_LEFT),
    Transition(Op.FAIL,           {RUNNING},  FAILED,        OWNER,         Ev.FAILED,          MAY_FAIL, after_compensation=True, while_unwinding=False),
    Transition(Op.HALT,           {RUNNING},  HALTED,        OWNER,         Ev.HALTED, while_unwinding=False),
    Transition(Op.SUSPEND,        {RUNNING},  WAITING,       OWNER,         Ev.SUSPENDED,       HAD_SEEN_REV),
    Transition(Op.SIGNAL,         LIVE,       SAME,          CLIENT,        Ev.SIGNALLED),
    Transition(Op.WAKE,           LIVE,       SAME,          WAKER,         Ev.WOKEN),
    Transition(Op.UNWIND,         READY,      SAME,          RECOVERY,      Ev.UNWINDING,       NOT_UNWINDING),
    Transition(Op.COMPENSATE,     {RUNNING},  SAME,          OWNER,         Ev.COMPENSATED,     SAME_END),
    Transition(Op.RELEASE,        LEASED,     STALLED,       OWNER,         Ev.RELEASED),
    Transition(Op.REQUEST_CANCEL, LIVE,       SAME,          CLIENT,        Ev.CANCEL_REQUESTED),
    Transition(Op.CANCEL,         LIVE,       CANCELLED,     CANCELLER,     Ev.CANCELLED, after_compensation=True),
    Transition(Op.STALL,          LEASED,     STALLED,       RECOVERY,      Ev.STALLED,         None,            ClockGuard.ORPHANED,  True, after_compensation=True),
    Transition(Op.REQUEUE,        {STALLED},  QUEUED,        RECOVERY,      Ev.REQUEUED,        MAY_RUN_AGAIN,   ClockGuard.DUE),
    Transition(Op.RECONCILE,      {STALLED},  SUCCEEDED,     RECOVERY,      Ev.SUCCEEDED,       IS_COMMITTED,    after_commit=True),
    Transition(Op.GIVE_UP,        {STALLED},  FAILED,        RECOVERY,      Ev.FAILED,          MUST_FAIL, after_compensation=True),
    Transition(Op.TIME_OUT,       LIVE,       FAILED,        TIMER,         Ev.FAILED,          MAY_TIME_OUT,    ClockGuard.OVERDUE, while_unwinding=False),
    Transition(Op.DEAD_LETTER,    LIVE,       DEAD_LETTERED, DEAD_LETTERER, Ev.DEAD_LETTERED, after_compensation=True),
)
# fmt: on

TRANSITION_OF = {transition.operation: transition for transition in TRANSITIONS}
_AUTHORITY = {(transition.operation, by.role): by for transition in TRANSITIONS for by in transition.by}


def allowed_from(status: Status, *, committed: bool = False) -> tuple[OperationType, ...]:
    """The operations that the table allows from this status, in its order."""
    return tuple(
        transition.operation for transition in TRANSITIONS if status in transition.sources and (transition.after_commit or not committed)
    )


def allowed_for(job: Job) -> tuple[OperationType, ...]:
    """The operations that the table allows for this job, in its order."""
    return tuple(
        operation for operation in allowed_from(job.status, committed=job.committed) if TRANSITION_OF[operation].fits_undo(job)
    )


def legal_events() -> frozenset[tuple[EventType, Status | None, Status]]:
    """Every legal (event, from, to). The CHECK on `events` is derived from these."""
    return frozenset(
        {(EventType.ENQUEUED, None, QUEUED)}
        | {(transition.event, source, transition.to(source)) for transition in TRANSITIONS for source in transition.sources}
    )
