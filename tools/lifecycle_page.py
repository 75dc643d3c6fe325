"""Writes docs/reference/lifecycle.md from the transition table: `python -m tools.lifecycle_page`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.records import BLANKABLE, EventType, Job, Origin, Policy
from tenure.lifecycle.statuses import (
    LEASED,
    LIVE,
    QUEUED,
    RUNNING,
    STALLED,
    TERMINAL,
    CoarseState,
    Status,
    coarse_state,
    rank,
)
from tenure.lifecycle.transitions import TRANSITIONS, Authority, ClockGuard, Transition, legal_events
from tools.generated import notice, table, write

NAME = "reference/lifecycle.md"
NONE = "—"

MEANINGS = {
    Status.QUEUED: "accepted, waiting to be claimed",
    Status.CLAIMED: "leased to a worker that has not started it",
    Status.RUNNING: "leased to a worker that runs it",
    Status.WAITING: "suspended until a time, a signal or its children",
    Status.RETRY: "an attempt failed, the next is scheduled",
    Status.STALLED: "released, or its worker was lost; recovery or the next claim follows",
    Status.SUCCEEDED: "ended with a result",
    Status.FAILED: "ended by an error",
    Status.CANCELLED: "ended by a request to cancel",
    Status.HALTED: "stopped at a limit, with a partial result",
    Status.DEAD_LETTERED: "ended for an operator to look at, with a record of the reason",
}

CLOCK_REFUSALS = {
    ClockGuard.NOTHING: NONE,
    ClockGuard.LIVE_LEASE: "a lease that has not expired",
    ClockGuard.DUE: "it is due",
    ClockGuard.ORPHANED: "its lease expired, or two heartbeats are missing; for a timeout: it has passed",
    ClockGuard.OVERDUE: "the timeout of its status has passed",
}


_CAUSES_TEXT = """\
Every event has a `cause`: the usual one of its type, unless the request has another.

- `enqueued`: `schedule` at a due time of a schedule, `redrive` where an ended job is run again.
- `succeeded`: `reconciled` where recovery ended a committed job whose worker was lost.
- `retry_scheduled`: the class of the error, such as `ConnectionError`; `timeout` for an attempt that took too long.
- `failed`: `exhausted_retries`, `lost` or `timeout`.
- `halted`, `cancel_requested`: the reason that was given.
- `cancelled`: the reason that was given, or else that of the first request to cancel, however late the owner answers.
- `suspended`: what it waits for, such as `awaits_time` or `awaits_children`.
- `released`: `snooze`, `database_unavailable`, `lease_uncertain`, or what the worker gave.
- `stalled`: `heartbeats_missed`.
- `dead_lettered`: the reason code of its dead letter.

Rows of events leave the usual cause out. The views `tenure.log` (PostgreSQL) and `tenure_log` (SQLite), and every read
in Python, have it."""


def page() -> str:
    """The whole page."""
    return "\n\n".join([notice("tools.lifecycle_page", "src/tenure/lifecycle/"), *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    yield "# The lifecycle of a job"
    yield (
        "What can happen to a job: statuses, operations, events and invariants. One table in code\n"
        "(`tenure.lifecycle.transitions`) decides it; this page is generated from the table, and guards in the\n"
        "database enforce it. [boundaries.md](../internals/boundaries.md) lists what the table does not decide."
    )
    yield "## Statuses"
    yield table(["status", "meaning", "group", "coarse state", "rank"], map(_status_row, Status))
    yield (
        "*Live* jobs can change, *leased* ones are live and have an owner, *terminal* ones never change again.\n"
        "The pair (attempt, rank) never falls; a job that was requeued has rank "
        f"{rank(QUEUED, requeued=True)} until its next claim."
    )
    yield "## Diagram"
    yield _diagram(TRANSITIONS, begins=True)
    yield "## Operations"
    yield table(
        ["operation", "from", "to", "by", "needs", "waits for", "event", "after commit"],
        [["`enqueue`", NONE, "queued", "client", NONE, NONE, "`enqueued`", NONE], *map(_operation_row, TRANSITIONS)],
    )
    yield (
        "*By* lists the roles with authority; one *with its lease* needs the token of the current lease, which must\n"
        "not have expired by the database's clock. *Waits for* is evaluated by the same clock when the change is\n"
        "written. Every operation writes exactly one event and adds 1 to the revision; only `claim` adds 1 to the\n"
        "attempt."
    )
    yield "## After the commit"
    yield (
        "A job commits at most once: by `commit`, or by `complete` without an earlier commit. From then on\n"
        f"only {_listed(f'`{one.operation}`' for one in TRANSITIONS if one.after_commit)} are legal; everything\n"
        "else is refused with `AlreadyCommitted`:"
    )
    yield _diagram(TRANSITIONS, begins=False)
    yield "## Events"
    yield (
        "The list is closed: the database refuses any other (event, from, to). The detail of\n"
        f"{_listed(f'`{event}`' for event in EventType if event in BLANKABLE)} may be blanked by\n"
        "retention or erasure; no other may."
    )
    yield table(["event", "from → to", "written by", "usual cause"], map(_event_row, EventType))
    yield _CAUSES_TEXT
    yield "## Invariants"
    yield "What is true of every record. Guards in the database repeat these rules."
    yield table(
        ["status", "a job in this status"], [[f"`{status}`", "; ".join(_own_rules(status))] for status in Status]
    )
    yield "In every status:"
    yield "\n".join(f"- {rule}" for rule in _shared_rules())


def _status_row(status: Status) -> list[str]:
    group = "live, leased" if status in LEASED else "live" if status in LIVE else "terminal"
    coarse = coarse_state(status).value
    if status is STALLED:
        coarse += f", {CoarseState.RUNNING} if it will not run again"
    return [f"`{status}`", MEANINGS[status], group, coarse, str(rank(status))]


def _operation_row(transition: Transition) -> list[str]:
    return [
        f"`{transition.operation}`",
        _statuses(transition.sources),
        "same" if transition.target is None else transition.target.value,
        "; ".join(map(_by, transition.by)),
        transition.when.description if transition.when else NONE,
        CLOCK_REFUSALS[transition.guard],
        f"`{transition.event}`",
        "yes" if transition.after_commit else NONE,
    ]


def _by(by: Authority) -> str:
    lease = " with its lease" if by.with_lease else ""
    when = f", when {by.when.description}" if by.when else ""
    return f"{by.role}{lease}{when}"


def _event_row(event: EventType) -> list[str]:
    pairs = sorted(
        (_order(source), _order(target), f"{source or NONE} → {target}")
        for kind, source, target in legal_events()
        if kind is event
    )
    verbs = [f"`{transition.operation}`" for transition in TRANSITIONS if transition.event is event] or ["`enqueue`"]
    return [f"`{event}`", ", ".join(pair for _, _, pair in pairs), ", ".join(verbs), f"`{CAUSES[event]}`"]


def _diagram(transitions: Iterable[Transition], *, begins: bool) -> str:
    """All transitions; without the enqueue, those of a committed job."""
    reachable = set(Status) if begins else _reachable_after_commit()
    labels: dict[tuple[Status, Status], list[str]] = {}
    for transition in transitions:
        if begins or transition.after_commit:
            for source in reachable & set(transition.sources):
                labels.setdefault((source, transition.to(source)), []).append(transition.operation)
    ordered = sorted(labels, key=lambda pair: (_order(pair[0]), _order(pair[1])))
    ends = {target for _, target in labels if target in TERMINAL}
    lines = [
        "```mermaid",
        "stateDiagram-v2",
        *(["    [*] --> queued: enqueue"] if begins else []),
        *(f"    {source} --> {target}: {', '.join(labels[source, target])}" for source, target in ordered),
        *(f"    {status} --> [*]" for status in sorted(ends, key=_order)),
        "```",
    ]
    return "\n".join(lines)


def _reachable_after_commit() -> set[Status]:
    transitions = [transition for transition in TRANSITIONS if transition.after_commit]
    found = {RUNNING}
    while (
        more := {transition.to(source) for transition in transitions for source in found & set(transition.sources)}
        - found
    ):
        found |= more
    return found


def _rules(status: Status) -> list[str]:
    """Every invariant that a record in this status can violate, found with records that violate all of them."""
    return list(dict.fromkeys(rule for job in _wrong_records(status) for rule in violations(job)))


def _own_rules(status: Status) -> list[str]:
    return [rule.removeprefix(_subject(status)) for rule in _rules(status) if rule.startswith(_subject(status))]


def _shared_rules() -> list[str]:
    rules = (rule for status in Status for rule in _rules(status) if not rule.startswith(_subject(status)))
    return list(dict.fromkeys(rules))


def _subject(status: Status) -> str:
    return f"a {status} job "


def _wrong_records(status: Status) -> Iterator[Job]:
    early = datetime(2020, 1, 1, tzinfo=UTC)
    late = early + timedelta(hours=1)
    laden: dict[str, Any] = {
        "attempt": 1,
        "owner": "worker-1",
        "lease_expires_at": late,
        "heartbeat_deadline_at": late,
        "committed_at": late,
        "committed_result": "1",
        "result": "1",
        "partial_result": "1",
        "error": "1",
        "reason": "because",
        "finished_at": late,
    }
    yield _record(status, early, early)
    yield _record(status, early, late, **laden)
    yield _record(status, late, late, started_at=early, attempt=-1, failures=2, losses=3, rev=0)


def _record(status: Status, created_at: datetime, updated_at: datetime, *, rev: int = 1, **fields: Any) -> Job:
    origin = Origin(id=UUID(int=0), kind="any", payload="null", policy=Policy())
    return Job(origin=origin, status=status, rev=rev, created_at=created_at, updated_at=updated_at, **fields)


def _statuses(statuses: Iterable[Status]) -> str:
    found = set(statuses)
    return "any live" if found == LIVE else ", ".join(status for status in Status if status in found)


def _order(status: Status | None) -> int:
    return -1 if status is None else list(Status).index(status)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


if __name__ == "__main__":
    write(NAME, page())
