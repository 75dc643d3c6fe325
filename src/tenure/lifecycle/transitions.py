"""The transition table: the one authority on what can happen to a job.

Validators, database guards, the diagram in the docs, vocabularies and tests are derived from it. A transition names an
operation, its source statuses, its target, the roles that may apply it, the condition on the job, the condition on the
database's clock, and the event that records it. What an event does to the record is in `evolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from tenure.lifecycle.operations import Complete, Fail, Operation, OperationType
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

    def to(self, source: Status) -> Status:
        return source if self.target is None else self.target

    def authority(self, role: Role) -> Authority | None:
        return _AUTHORITY.get((self.operation, role))


def _may_fail(job: Job, operation: Operation) -> bool:
    last = job.failures + 1 >= job.policy.max_attempts and job.policy.on_exhausted == "fail"
    return last or (isinstance(operation, Fail) and operation.permanent)


def _same_result(job: Job, operation: Operation) -> bool:
    return not job.committed or (isinstance(operation, Complete) and operation.result == job.committed_result)


FAILURES_LEFT = Condition("a failure is left", lambda job, _: job.failures + 1 < job.policy.max_attempts)
MAY_FAIL = Condition("the error is permanent, or the last one and on_exhausted is fail", _may_fail)
SAME_RESULT = Condition("the result is the committed one, if there is one", _same_result)
CANCEL_REQUESTED = Condition("a cancel was requested", lambda job, _: job.cancel_requested)
MAY_RUN_AGAIN = Condition("its policy lets it run again", lambda job, _: job.recovery_action() == "requeue")
MUST_FAIL = Condition("it was lost and its policy is to fail", lambda job, _: job.recovery_action() == "fail")
IS_COMMITTED = Condition("it is committed", lambda job, _: job.committed)

CLIENT = (Authority(Role.CLIENT),)
RECOVERY = (Authority(Role.RECOVERY),)
CLAIMER = (Authority(Role.POOL), Authority(Role.GATEWAY))
OWNER = (Authority(Role.RUNNER, True), Authority(Role.GATEWAY, True))
STARTER = (Authority(Role.POOL, True), *OWNER)
CANCELLER = (Authority(Role.CLIENT), Authority(Role.RUNNER, True, CANCEL_REQUESTED), Authority(Role.GATEWAY, True, CANCEL_REQUESTED))
WAKER = (Authority(Role.RUNNER), Authority(Role.RECOVERY))
DEAD_LETTERER = (Authority(Role.RECOVERY), *OWNER)

SAME = None
TIMED = {QUEUED, CLAIMED, RUNNING}

Op, Ev = OperationType, EventType

# fmt: off
TRANSITIONS = (
    #          operation          from        to             by             event               needs            waits for             after commit
    Transition(Op.CLAIM,          READY,      CLAIMED,       CLAIMER,       Ev.CLAIMED,         MAY_RUN_AGAIN,   ClockGuard.DUE),
    Transition(Op.ACK,            {CLAIMED},  SAME,          OWNER,         Ev.ACKED),
    Transition(Op.START,          {CLAIMED},  RUNNING,       STARTER,       Ev.STARTED),
    Transition(Op.HEARTBEAT,      LEASED,     SAME,          OWNER,         Ev.HEARTBEAT,       after_commit=True),
    Transition(Op.PROGRESS,       {RUNNING},  SAME,          OWNER,         Ev.PROGRESS,        after_commit=True),
    Transition(Op.COMMIT,         {RUNNING},  SAME,          OWNER,         Ev.COMMITTED),
    Transition(Op.COMPLETE,       {RUNNING},  SUCCEEDED,     OWNER,         Ev.SUCCEEDED,       SAME_RESULT,     after_commit=True),
    Transition(Op.RETRY,          {RUNNING},  RETRY,         OWNER,         Ev.RETRY_SCHEDULED, FAILURES_LEFT),
    Transition(Op.FAIL,           {RUNNING},  FAILED,        OWNER,         Ev.FAILED,          MAY_FAIL),
    Transition(Op.HALT,           {RUNNING},  HALTED,        OWNER,         Ev.HALTED),
    Transition(Op.SUSPEND,        {RUNNING},  WAITING,       OWNER,         Ev.SUSPENDED),
    Transition(Op.SIGNAL,         LIVE,       SAME,          CLIENT,        Ev.SIGNALLED),
    Transition(Op.WAKE,           {WAITING},  SAME,          WAKER,         Ev.WOKEN),
    Transition(Op.COMPENSATE,     {RUNNING},  SAME,          OWNER,         Ev.COMPENSATED),
    Transition(Op.RELEASE,        LEASED,     STALLED,       OWNER,         Ev.RELEASED),
    Transition(Op.REQUEST_CANCEL, LIVE,       SAME,          CLIENT,        Ev.CANCEL_REQUESTED),
    Transition(Op.CANCEL,         LIVE,       CANCELLED,     CANCELLER,     Ev.CANCELLED),
    Transition(Op.STALL,          LEASED,     STALLED,       RECOVERY,      Ev.STALLED,         None,            ClockGuard.ORPHANED,  True),
    Transition(Op.REQUEUE,        {STALLED},  QUEUED,        RECOVERY,      Ev.REQUEUED,        MAY_RUN_AGAIN,   ClockGuard.DUE),
    Transition(Op.RECONCILE,      {STALLED},  SUCCEEDED,     RECOVERY,      Ev.SUCCEEDED,       IS_COMMITTED,    after_commit=True),
    Transition(Op.GIVE_UP,        {STALLED},  FAILED,        RECOVERY,      Ev.FAILED,          MUST_FAIL),
    Transition(Op.TIME_OUT,       TIMED,      FAILED,        RECOVERY,      Ev.FAILED,          None,            ClockGuard.OVERDUE),
    Transition(Op.DEAD_LETTER,    LIVE,       DEAD_LETTERED, DEAD_LETTERER, Ev.DEAD_LETTERED),
)
# fmt: on

TRANSITION_OF = {transition.operation: transition for transition in TRANSITIONS}
_AUTHORITY = {(transition.operation, by.role): by for transition in TRANSITIONS for by in transition.by}


def allowed_from(status: Status, *, committed: bool = False) -> tuple[OperationType, ...]:
    """The operations that the table allows from this status, in its order."""
    return tuple(
        transition.operation for transition in TRANSITIONS if status in transition.sources and (transition.after_commit or not committed)
    )


def legal_events() -> frozenset[tuple[EventType, Status | None, Status]]:
    """Every legal (event, from, to). The CHECK on `events` is derived from these."""
    return frozenset(
        {(EventType.ENQUEUED, None, QUEUED)}
        | {(transition.event, source, transition.to(source)) for transition in TRANSITIONS for source in transition.sources}
    )
