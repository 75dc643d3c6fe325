"""The lifecycle of a job: the one table from which everything else follows.

Validators, database guards, the diagram in the docs, vocabularies and tests are derived from it. An arrow says which
operation leads from which statuses to which, who may take it, what must be true of the job, what it waits for by the
database's clock, and which event records it. What an event does to the record is in `evolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from tenure.lifecycle.operations import Complete, Fail, Operation, Verb
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


class By(msgspec.Struct, frozen=True):
    """A role that may take an arrow: as the holder of the lease or not, and on which condition."""

    role: Role
    with_lease: bool = False
    when: Condition | None = None


class Arrow(msgspec.Struct, frozen=True):
    """One operation of the lifecycle. `target` is None where the status stays as it is."""

    verb: Verb
    sources: Set[Status]
    target: Status | None
    by: tuple[By, ...]
    event: EventType
    when: Condition | None = None
    guard: Guard = Guard.NOTHING
    after_commit: bool = False

    def to(self, source: Status) -> Status:
        return source if self.target is None else self.target

    def authority(self, role: Role) -> By | None:
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

CLIENT = (By(Role.CLIENT),)
RECOVERY = (By(Role.RECOVERY),)
CLAIMER = (By(Role.POOL), By(Role.GATEWAY))
OWNER = (By(Role.RUNNER, True), By(Role.GATEWAY, True))
STARTER = (By(Role.POOL, True), *OWNER)
CANCELLER = (By(Role.CLIENT), By(Role.RUNNER, True, CANCEL_ASKED), By(Role.GATEWAY, True, CANCEL_ASKED))
WAKER = (By(Role.RUNNER), By(Role.RECOVERY))
BURIER = (By(Role.RECOVERY), *OWNER)

SAME = None
OPEN = {QUEUED, CLAIMED, RUNNING}

# fmt: off
ARROWS = (
    #     operation            from        to             by          event                       needs               waits for           after commit
    Arrow(Verb.CLAIM,          READY,      CLAIMED,       CLAIMER,    EventType.CLAIMED,          MAY_RUN_AGAIN,      Guard.DUE),
    Arrow(Verb.ACK,            {CLAIMED},  SAME,          OWNER,      EventType.ACKED),
    Arrow(Verb.START,          {CLAIMED},  RUNNING,       STARTER,    EventType.STARTED),
    Arrow(Verb.HEARTBEAT,      HELD,       SAME,          OWNER,      EventType.HEARTBEAT,        after_commit=True),
    Arrow(Verb.PROGRESS,       {RUNNING},  SAME,          OWNER,      EventType.PROGRESS,         after_commit=True),
    Arrow(Verb.COMMIT,         {RUNNING},  SAME,          OWNER,      EventType.COMMITTED),
    Arrow(Verb.COMPLETE,       {RUNNING},  SUCCEEDED,     OWNER,      EventType.SUCCEEDED,        SAME_RESULT,        after_commit=True),
    Arrow(Verb.RETRY,          {RUNNING},  RETRY,         OWNER,      EventType.RETRY_SCHEDULED,  FAILURES_LEFT),
    Arrow(Verb.FAIL,           {RUNNING},  FAILED,        OWNER,      EventType.FAILED,           ENDS_HERE),
    Arrow(Verb.HALT,           {RUNNING},  HALTED,        OWNER,      EventType.HALTED),
    Arrow(Verb.SUSPEND,        {RUNNING},  WAITING,       OWNER,      EventType.SUSPENDED),
    Arrow(Verb.SIGNAL,         LIVE,       SAME,          CLIENT,     EventType.SIGNALLED),
    Arrow(Verb.WAKE,           {WAITING},  SAME,          WAKER,      EventType.WOKEN),
    Arrow(Verb.COMPENSATE,     {RUNNING},  SAME,          OWNER,      EventType.COMPENSATED),
    Arrow(Verb.RELEASE,        HELD,       STALLED,       OWNER,      EventType.RELEASED),
    Arrow(Verb.REQUEST_CANCEL, LIVE,       SAME,          CLIENT,     EventType.CANCEL_REQUESTED),
    Arrow(Verb.CANCEL,         LIVE,       CANCELLED,     CANCELLER,  EventType.CANCELLED),
    Arrow(Verb.STALL,          HELD,       STALLED,       RECOVERY,   EventType.STALLED,          None,               Guard.ORPHANED,     True),
    Arrow(Verb.REQUEUE,        {STALLED},  QUEUED,        RECOVERY,   EventType.REQUEUED,         MAY_RUN_AGAIN,      Guard.DUE),
    Arrow(Verb.RECONCILE,      {STALLED},  SUCCEEDED,     RECOVERY,   EventType.SUCCEEDED,        IS_COMMITTED,       after_commit=True),
    Arrow(Verb.GIVE_UP,        {STALLED},  FAILED,        RECOVERY,   EventType.FAILED,           MUST_FAIL),
    Arrow(Verb.TIME_OUT,       OPEN,       FAILED,        RECOVERY,   EventType.FAILED,           None,               Guard.OVERDUE),
    Arrow(Verb.DEAD_LETTER,    LIVE,       DEAD_LETTERED, BURIER,     EventType.DEAD_LETTERED),
)
# fmt: on

ARROW_OF = {arrow.verb: arrow for arrow in ARROWS}
_AUTHORITY = {(arrow.verb, by.role): by for arrow in ARROWS for by in arrow.by}


def allowed_from(status: Status, *, committed: bool = False) -> tuple[Verb, ...]:
    """The operations that the table has for a job in this status, in its order."""
    return tuple(
        arrow.verb for arrow in ARROWS if status in arrow.sources and (arrow.after_commit or not committed)
    )


def legal_events() -> frozenset[tuple[EventType, Status | None, Status]]:
    """Every (event, from, to) that may ever be written: the database's CHECK is made of these."""
    return frozenset(
        {(EventType.ENQUEUED, None, QUEUED)}
        | {(arrow.event, source, arrow.to(source)) for arrow in ARROWS for source in arrow.sources}
    )
