"""What the requirements say must come of each operation. Written from them by hand, and not from the code under test.

`tenure.lifecycle.transitions` and `decide` are deliberately not imported: this page and they check each other.
"""

from __future__ import annotations

from dataclasses import dataclass

LIVE = ("queued", "claimed", "running", "waiting", "retry", "stalled")
LEASED = ("claimed", "running")
AFTER_COMMIT = ("heartbeat", "progress", "complete", "stall", "reconcile")
OWNERS = ("runner", "gateway")

# operation | from | to | who may | event. An owner is a runner or a gateway that holds the lease; pool* is the pool
# that holds it, for its own fresh claim; asked* is an owner that answers a cancel request.
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
wake           | waiting                      | same          | runner recovery | woken
compensate     | running                      | same          | owner           | compensated
release        | claimed running              | stalled       | owner           | released
request_cancel | live                         | same          | client          | cancel_requested
cancel         | live                         | cancelled     | client asked*   | cancelled
stall          | claimed running              | stalled       | recovery        | stalled
requeue        | stalled                      | queued        | recovery        | requeued
reconcile      | stalled                      | succeeded     | recovery        | succeeded
give_up        | stalled                      | failed        | recovery        | failed
time_out       | queued claimed running       | failed        | recovery        | failed
dead_letter    | live                         | dead_lettered | recovery owner  | dead_lettered
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the canonical table."""

    operation: str
    sources: tuple[str, ...]
    target: str
    free: frozenset[str]
    leased: frozenset[str]
    event: str

    def to(self, status: str) -> str:
        return status if self.target == "same" else self.target


def _rule(line: str) -> Rule:
    operation, sources, target, who, event = (part.strip() for part in line.split("|"))
    words = set(who.split())
    leased = set(OWNERS) if words & {"owner", "asked*"} else set()
    return Rule(
        operation,
        LIVE if sources == "live" else tuple(sources.split()),
        target,
        frozenset(words - {"owner", "pool*", "asked*"}),
        frozenset(leased | ({"pool"} if "pool*" in words else set())),
        event,
    )


RULES = {rule.operation: rule for rule in map(_rule, CANONICAL.strip().splitlines())}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a job, said by whoever brought it about."""

    status: str
    committed: bool = False
    lease: str = "none"  # live, silent (two heartbeats missed under a live lease), expired
    due: bool = True
    overdue: bool = False
    cancel_asked: bool = False
    failures_left: bool = True
    on_exhausted: str = "fail"
    fate: str = "requeue"  # what the policy wants now: requeue, fail, dead_letter


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for what, and upon which knowledge."""

    operation: str
    role: str
    holder: str  # owner, former, stranger
    rev: str  # stale, current, future
    request: str  # new, repeated, other_body
    permanent: bool = True
    same_result: bool = True


def verdict(facts: Facts, asked: Asked) -> str:
    """The name of the answer: Applied, Repeated, or the error."""
    rule = RULES[asked.operation]
    if asked.request != "new":
        return "Repeated" if asked.request == "repeated" else "RequestIdReused"
    if asked.role not in rule.free | rule.leased:
        return "NotAuthorised"
    if asked.role in rule.leased:
        holds = facts.status in LEASED and asked.holder == "owner" and facts.lease != "expired"
        if not holds:
            return "LeaseLost"
    if asked.rev != "current":
        return "RevisionConflict"
    if facts.committed and asked.operation not in AFTER_COMMIT:
        return "AlreadyCommitted"
    if facts.status not in rule.sources:
        return "IllegalTransition"
    if asked.operation == "cancel" and asked.role in OWNERS and not facts.cancel_asked:
        return "NotAuthorised"
    if not condition(facts, asked):
        return "IllegalTransition"
    return "Applied" if in_time(facts, asked) else "NotYet"


def condition(facts: Facts, asked: Asked) -> bool:
    """What must be true of the job beyond its status."""
    match asked.operation:
        case "claim" | "requeue":
            return facts.fate == "requeue"
        case "complete":
            return asked.same_result or not facts.committed
        case "retry":
            return facts.failures_left
        case "fail":
            return asked.permanent or (not facts.failures_left and facts.on_exhausted == "fail")
        case "reconcile":
            return facts.committed
        case "give_up":
            return facts.fate == "fail"
        case _:
            return True


def in_time(facts: Facts, asked: Asked) -> bool:
    """What the database's clock must say."""
    match asked.operation:
        case "claim" | "requeue":
            return facts.due
        case "stall":
            return facts.lease in ("silent", "expired")
        case "time_out":
            return facts.overdue
        case _:
            return True


def allowed(facts: Facts) -> set[str]:
    """What a refusal may offer instead."""
    return {
        operation
        for operation, rule in RULES.items()
        if facts.status in rule.sources and (operation in AFTER_COMMIT or not facts.committed)
    }
