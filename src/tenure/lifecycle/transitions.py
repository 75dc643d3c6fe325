"""The lifecycle of a job: the one table from which everything else follows.

Validators, database guards, the diagram in the docs, vocabularies and tests are derived from it. An arrow says which
operation leads from which statuses to which, who may take it, what must be true of the job, what it waits for by the
database's clock, and which event records it. What an event does to the record is in `evolve`.
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
    HELD,
    LIVE,
    QUEUED,
    READY,
    RETRY,
    RUNNING,
    STALLED,
    SUCCEEDED,
    WAITING,
    Status,
    Word,
)


class Guard(Word):
    """What the database's clock must say when the change is written."""

    NOTHING = "nothing"
    LIVE_LEASE = "live_lease"
    DUE = "due"
    ORPHANED = "orphaned"
    OVERDUE = "overdue"


class Condition(msgspec.Struct, frozen=True):
    """Something that must be true of the job, in words and in code."""

    says: str
    holds: Callable[[Job, Operation], bool]


class Authority(msgspec.Struct, frozen=True):
    """A role that may take an arrow: as the holder of the lease or not, and on which condition."""

    role: Role
    with_lease: bool = False
    when: Condition | None = None


class Transition(msgspec.Struct, frozen=True):
    """One operation of the lifecycle. `target` is None where the status stays as it is."""

    verb: OperationType
    sources: Set[Status]
    target: Status | None
    by: tuple[Authority, ...]
    event: EventType
    when: Condition | None = None
    guard: Guard = Guard.NOTHING
    after_commit: bool = False

    def to(self, source: Status) -> Status:
        return source if self.target is None else self.target

    def authority(self, role: Role) -> Authority | None:
        return _AUTHORITY.get((self.verb, role))


def _may_fail(job: Job, operation: Operation) -> bool:
    last = job.failures + 1 >= job.policy.max_attempts and job.policy.on_exhausted == "fail"
    return last or (isinstance(operation, Fail) and operation.permanent)


def _same_result(job: Job, operation: Operation) -> bool:
    return not job.committed or (isinstance(operation, Complete) and operation.result == job.committed_result)


FAILURES_LEFT = Condition("a failure is left", lambda job, _: job.failures + 1 < job.policy.max_attempts)
ENDS_HERE = Condition("the error is permanent, or the last one and the policy says fail", _may_fail)
SAME_RESULT = Condition("the result is the committed one, if there is one", _same_result)
CANCEL_ASKED = Condition("a cancel was requested", lambda job, _: job.cancel_requested)
MAY_RUN_AGAIN = Condition("its policy lets it run again", lambda job, _: job.fate() == "requeue")
MUST_FAIL = Condition("it was lost and its policy says fail", lambda job, _: job.fate() == "fail")
IS_COMMITTED = Condition("it is committed", lambda job, _: job.committed)

CLIENT = (Authority(Role.CLIENT),)
RECOVERY = (Authority(Role.RECOVERY),)
CLAIMER = (Authority(Role.POOL), Authority(Role.GATEWAY))
OWNER = (Authority(Role.RUNNER, True), Authority(Role.GATEWAY, True))
STARTER = (Authority(Role.POOL, True), *OWNER)
CANCELLER = (Authority(Role.CLIENT), Authority(Role.RUNNER, True, CANCEL_ASKED), Authority(Role.GATEWAY, True, CANCEL_ASKED))
WAKER = (Authority(Role.RUNNER), Authority(Role.RECOVERY))
BURIER = (Authority(Role.RECOVERY), *OWNER)

SAME = None
OPEN = {QUEUED, CLAIMED, RUNNING}

# fmt: off
TRANSITIONS = (
    #     operation            from        to             by          event                       needs               waits for           after commit
    Transition(OperationType.CLAIM,          READY,      CLAIMED,       CLAIMER,    EventType.CLAIMED,          MAY_RUN_AGAIN,      Guard.DUE),
    Transition(OperationType.ACK,            {CLAIMED},  SAME,          OWNER,      EventType.ACKED),
    Transition(OperationType.START,          {CLAIMED},  RUNNING,       STARTER,    EventType.STARTED),
    Transition(OperationType.HEARTBEAT,      HELD,       SAME,          OWNER,      EventType.HEARTBEAT,        after_commit=True),
    Transition(OperationType.PROGRESS,       {RUNNING},  SAME,          OWNER,      EventType.PROGRESS,         after_commit=True),
    Transition(OperationType.COMMIT,         {RUNNING},  SAME,          OWNER,      EventType.COMMITTED),
    Transition(OperationType.COMPLETE,       {RUNNING},  SUCCEEDED,     OWNER,      EventType.SUCCEEDED,        SAME_RESULT,        after_commit=True),
    Transition(OperationType.RETRY,          {RUNNING},  RETRY,         OWNER,      EventType.RETRY_SCHEDULED,  FAILURES_LEFT),
    Transition(OperationType.FAIL,           {RUNNING},  FAILED,        OWNER,      EventType.FAILED,           ENDS_HERE),
    Transition(OperationType.HALT,           {RUNNING},  HALTED,        OWNER,      EventType.HALTED),
    Transition(OperationType.SUSPEND,        {RUNNING},  WAITING,       OWNER,      EventType.SUSPENDED),
    Transition(OperationType.SIGNAL,         LIVE,       SAME,          CLIENT,     EventType.SIGNALLED),
    Transition(OperationType.WAKE,           {WAITING},  SAME,          WAKER,      EventType.WOKEN),
    Transition(OperationType.COMPENSATE,     {RUNNING},  SAME,          OWNER,      EventType.COMPENSATED),
    Transition(OperationType.RELEASE,        HELD,       STALLED,       OWNER,      EventType.RELEASED),
    Transition(OperationType.REQUEST_CANCEL, LIVE,       SAME,          CLIENT,     EventType.CANCEL_REQUESTED),
    Transition(OperationType.CANCEL,         LIVE,       CANCELLED,     CANCELLER,  EventType.CANCELLED),
    Transition(OperationType.STALL,          HELD,       STALLED,       RECOVERY,   EventType.STALLED,          None,               Guard.ORPHANED,     True),
    Transition(OperationType.REQUEUE,        {STALLED},  QUEUED,        RECOVERY,   EventType.REQUEUED,         MAY_RUN_AGAIN,      Guard.DUE),
    Transition(OperationType.RECONCILE,      {STALLED},  SUCCEEDED,     RECOVERY,   EventType.SUCCEEDED,        IS_COMMITTED,       after_commit=True),
    Transition(OperationType.GIVE_UP,        {STALLED},  FAILED,        RECOVERY,   EventType.FAILED,           MUST_FAIL),
    Transition(OperationType.TIME_OUT,       OPEN,       FAILED,        RECOVERY,   EventType.FAILED,           None,               Guard.OVERDUE),
    Transition(OperationType.DEAD_LETTER,    LIVE,       DEAD_LETTERED, BURIER,     EventType.DEAD_LETTERED),
)
# fmt: on

TRANSITION_OF = {arrow.verb: arrow for arrow in TRANSITIONS}
_AUTHORITY = {(arrow.verb, by.role): by for arrow in TRANSITIONS for by in arrow.by}


def allowed_from(status: Status, *, committed: bool = False) -> tuple[OperationType, ...]:
    """The operations that the table has for a job in this status, in its order."""
    return tuple(
        arrow.verb for arrow in TRANSITIONS if status in arrow.sources and (arrow.after_commit or not committed)
    )


def legal_events() -> frozenset[tuple[EventType, Status | None, Status]]:
    """Every (event, from, to) that may ever be written: the database's CHECK is made of these."""
    return frozenset(
        {(EventType.ENQUEUED, None, QUEUED)}
        | {(arrow.event, source, arrow.to(source)) for arrow in TRANSITIONS for source in arrow.sources}
    )
