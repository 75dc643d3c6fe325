"""What the requirements expect of each operation. Written by hand from the requirements, not from the code under test.

`tenure.lifecycle.transitions` and `decide` are deliberately not imported: this table and they check each other.
"""

from __future__ import annotations

from dataclasses import dataclass

LIVE = ("queued", "claimed", "running", "waiting", "retry", "stalled")
LEASED = ("claimed", "running")
AFTER_COMMIT = ("heartbeat", "progress", "complete", "stall", "reconcile")
OWNERS = ("runner", "gateway")
NOT_WHILE_UNWINDING = ("commit", "complete", "fail", "halt", "time_out")
AFTER_COMPENSATION = ("heartbeat", "progress", "stall", "fail", "cancel", "give_up", "dead_letter")

# operation | from | to | allowed to | event. An owner is a runner or a gateway with the lease; pool* is the pool that
# has the lease, for its own fresh claim; asked* is an owner that answers a cancel request.
CANONICAL = """
claim          | queued retry waiting stalled | claimed       | pool gateway    | claimed
ack            | claimed                      | same          | owner           | acked
start          | claimed                      | running       | owner pool*     | started
heartbeat      | claimed running              | same          | owner           | heartbeat
progress       | running                      | same          | owner           | progress
commit         | running                      | same          | owner           | committed
complete       | running                      | succeeded     | owner           | succeeded
retry          | running                      | retry         | owner           | retry_scheduled
fail           | running                      | failed        | owner           | failed
halt           | running                      | halted        | owner           | halted
suspend        | running                      | waiting       | owner           | suspended
signal         | live                         | same          | client          | signalled
wake           | live                         | same          | client runner gateway recovery | woken
unwind         | queued retry waiting stalled | same          | recovery        | unwinding
compensate     | running                      | same          | owner           | compensated
release        | claimed running              | stalled       | owner           | released
request_cancel | live                         | same          | client          | cancel_requested
cancel         | live                         | cancelled     | client asked* recovery | cancelled
stall          | claimed running              | stalled       | recovery        | stalled
requeue        | stalled                      | queued        | recovery        | requeued
reconcile      | stalled                      | succeeded     | recovery        | succeeded
give_up        | stalled                      | failed        | recovery        | failed
time_out       | live                         | failed        | recovery gateway | failed
dead_letter    | live                         | dead_lettered | recovery owner client | dead_lettered
"""


@dataclass(frozen=True, slots=True)
class ExpectedTransition:
    """One line of the expected table."""

    operation: str
    sources: tuple[str, ...]
    target: str
    free: frozenset[str]
    leased: frozenset[str]
    event: str

    def to(self, status: str) -> str:
        return status if self.target == "same" else self.target


def _expected(line: str) -> ExpectedTransition:
    operation, sources, target, who, event = (part.strip() for part in line.split("|"))
    words = set(who.split())
    leased = set(OWNERS) if words & {"owner", "asked*"} else set()
    return ExpectedTransition(
        operation,
        LIVE if sources == "live" else tuple(sources.split()),
        target,
        frozenset(words - {"owner", "pool*", "asked*"}),
        frozenset(leased | ({"pool"} if "pool*" in words else set())),
        event,
    )


EXPECTED = {expected.operation: expected for expected in map(_expected, CANONICAL.strip().splitlines())}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a job, as its setup states it."""

    status: str
    committed: bool = False
    lease: str = "none"  # live, silent (two heartbeats missed under a live lease), expired
    due: bool = True
    overdue: bool = False
    cancel_asked: bool = False
    failures_left: bool = True
    on_exhausted: str = "fail"
    on_timeout: str = "retry"
    fate: str = "requeue"  # what the policy wants now: requeue, fail, cancel, dead_letter
    undo: str = "none"  # unwinding, compensated
    ends_as: str = ""  # once it undoes its steps


@dataclass(frozen=True, slots=True)
class Requested:
    """Which actor requests which operation, and on which record."""

    operation: str
    role: str
    holder: str  # owner, former, stranger
    rev: str  # stale, current, future
    request: str  # new, repeated, other_body
    permanent: bool = True
    same_result: bool = True
    seen_rev_reached: bool = True
    timed_out: bool = False  # a stall for the timeout
    same_end: bool = True  # a compensation with the recorded end


def verdict(facts: Facts, asked: Requested) -> str:
    """The expected result: Applied, Repeated, or the error."""
    expected = EXPECTED[asked.operation]
    if asked.request != "new":
        return "Repeated" if asked.request == "repeated" else "RequestIdReused"
    if asked.role not in expected.free | expected.leased:
        return "NotAuthorised"
    if asked.role in expected.leased:
        holds = facts.status in LEASED and asked.holder == "owner" and facts.lease != "expired"
        if not holds:
            return "LeaseLost"
    if asked.rev != "current":
        return "RevisionConflict"
    if facts.committed and asked.operation not in AFTER_COMMIT:
        return "AlreadyCommitted"
    if facts.status not in expected.sources:
        return "IllegalTransition"
    if not undo_allows(facts, asked):
        return "IllegalTransition"
    if asked.operation == "cancel" and asked.role == "recovery" and facts.undo != "compensated":
        return "NotAuthorised"
    if asked.operation == "cancel" and asked.role in OWNERS and not facts.cancel_asked:
        return "NotAuthorised"
    if asked.operation == "time_out" and asked.role == "gateway" and facts.status != "claimed":
        return "NotAuthorised"
    if not condition(facts, asked):
        return "IllegalTransition"
    return "Applied" if in_time(facts, asked) else "NotYet"


def undo_allows(facts: Facts, asked: Requested) -> bool:
    """A job that undoes its steps does nothing else. One that has undone them only ends as was recorded, by its owner
    or by recovery from stalled."""
    if facts.undo == "none":
        return True
    target = EXPECTED[asked.operation].target
    if facts.undo == "unwinding":
        return asked.operation not in NOT_WHILE_UNWINDING and (asked.operation != "cancel" or asked.role == "client")
    if asked.operation in ("heartbeat", "progress", "stall"):
        return True
    by_right_role = asked.role != "client" and (facts.status == "stalled" or asked.role != "recovery")
    return asked.operation in AFTER_COMPENSATION and target == facts.ends_as and by_right_role


def condition(facts: Facts, asked: Requested) -> bool:
    """What must be true of the job besides its status."""
    match asked.operation:
        case "claim" | "requeue":
            return facts.fate == "requeue"
        case "complete":
            return asked.same_result or not facts.committed
        case "retry":
            return facts.failures_left
        case "fail":
            return (
                asked.permanent
                or facts.undo == "compensated"
                or (not facts.failures_left and facts.on_exhausted == "fail")
            )
        case "suspend":
            return asked.seen_rev_reached
        case "reconcile":
            return facts.committed
        case "give_up":
            return facts.fate == "fail"
        case "unwind":
            return facts.undo == "none"
        case "compensate":
            return asked.same_end or facts.undo == "none"
        case "time_out":
            return facts.status not in LEASED or facts.on_timeout == "fail"
        case _:
            return True


def in_time(facts: Facts, asked: Requested) -> bool:
    """What the database's clock must show."""
    match asked.operation:
        case "claim" | "requeue":
            return facts.due
        case "stall" if not asked.timed_out:
            return facts.lease in ("silent", "expired")
        case "stall":
            return facts.overdue
        case "time_out":
            return facts.overdue
        case _:
            return True


def allowed(facts: Facts) -> set[str]:
    """What a refusal may list as allowed."""
    return {
        operation
        for operation, expected in EXPECTED.items()
        if facts.status in expected.sources
        and (operation in AFTER_COMMIT or not facts.committed)
        and (operation not in NOT_WHILE_UNWINDING or facts.undo != "unwinding")
        and (facts.undo != "compensated" or may_follow(operation, facts.ends_as))
    }


def may_follow(operation: str, ends_as: str) -> bool:
    """Whether the operation is legal once the undo steps are done."""
    target = EXPECTED[operation].target
    return operation in AFTER_COMPENSATION and target in ("same", "stalled", ends_as)
