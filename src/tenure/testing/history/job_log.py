"""One job: its log must be a chain that the lifecycle allows, and its row must agree with its log.

If a step is wrong in several ways, the most specific problem is reported: a second claim of a leased job is reported as
two leases at once, not as a break in the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise, product
from uuid import UUID

from tenure.lifecycle.causes import TIMEOUT
from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.decide import clock_allows
from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.evolve import evolve
from tenure.lifecycle.fold import contents_of
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.operations import Complete, Fail, Operation, Stall, Suspend
from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import LEASED, TERMINAL, Status, rank
from tenure.lifecycle.transitions import TRANSITIONS, Transition, legal_events
from tenure.lifecycle.verify import ProblemType, problems_of
from tenure.testing.history.problems import Code, HistoryProblem
from tenure.vocabularies import ALL, transition_problems

_LEGAL = legal_events()


def _transitions_by_event() -> Iterator[tuple[tuple[EventType, Status, Role, bool], Transition]]:
    for transition, timed_out in product(TRANSITIONS, (False, True)):
        times_out = transition.operation is OperationType.TIME_OUT
        for source, by in product(transition.sources, transition.by):
            fails = by.role is Role.GATEWAY and source is not Status.CLAIMED
            if not times_out or (timed_out and not fails):
                yield (transition.event, source, by.role, timed_out), transition


_TRANSITION_OF: Mapping[tuple[EventType, Status, Role, bool], Transition] = dict(_transitions_by_event())
"""Which role may write which event from which status, and whether because of a timeout: the transition follows from its
event."""

_OF_FLAW = {
    ProblemType.NO_EVENTS: Code.NO_EVENTS,
    ProblemType.BROKEN_LOG: Code.BROKEN_LOG,
    ProblemType.DIFFERS: Code.ROW_DIFFERS,
    ProblemType.ORIGIN: Code.ORIGIN_CHANGED,
    ProblemType.CONTENT: Code.CONTENT_CHANGED,
    ProblemType.INVARIANT: Code.ROW_INVARIANT,
}


def job_problems(job: Job, events: Sequence[Event]) -> list[HistoryProblem]:
    """All problems of one job."""
    if job.token is not None:
        secret = [HistoryProblem(Code.SECRET_SHOWN, "a read of it shows the token of its lease", job.id)]
    else:
        secret = []
    if not events:
        message = f"its row is {job.status} at revision {job.rev}, and its log is empty"
        return [*secret, HistoryProblem(Code.NO_EVENTS, message, job.id)]
    log = log_problems(job.id, events)
    row = list(_row(job, in_order(events), log_is_sound=not log))
    sound = not log and all(problem.code is not Code.BROKEN_LOG for problem in row)
    legality = (*_legality_problems(job, events), *_vocabularies(job, events)) if sound else ()
    return [*secret, *log, *row, *legality]


def log_problems(job_id: UUID, events: Sequence[Event]) -> list[HistoryProblem]:
    """Problems of the log alone, without the row."""
    ordered = in_order(events)
    return [*_revisions(job_id, events), *_chain(ordered), *_leases(ordered), *_commits(ordered)]


def in_order(events: Sequence[Event]) -> list[Event]:
    """By revision and each once: an error in that is reported once, and the rest is still checked."""
    by_rev = {event.rev: event for event in reversed(events)}
    return [by_rev[rev] for rev in sorted(by_rev)]


def _revisions(job_id: UUID, events: Sequence[Event]) -> Iterator[HistoryProblem]:
    expected, latest, seen = 1, 0, set[int]()
    for event in events:
        if event.rev in seen:
            yield HistoryProblem(Code.REVISION_REPEATED, f"{event.type} is there twice", job_id, event.rev)
        elif event.rev < latest:
            yield HistoryProblem(Code.REVISION_ORDER, f"{event.type} comes after revision {latest}", job_id, event.rev)
        seen.add(event.rev)
        latest = max(latest, event.rev)
    for rev in sorted(seen):
        if rev != expected:
            message = f"is missing; {rev} is the next that is there"
            yield HistoryProblem(Code.REVISION_GAP, message, job_id, expected)
        expected = rev + 1


def _chain(events: Sequence[Event]) -> Iterator[HistoryProblem]:
    first = events[0]
    if first.rev == 1 and (first.type is not EventType.ENQUEUED or first.from_status is not None):
        yield _at(first, Code.CHAIN_BROKEN, f"the log begins with {first.type} from {first.from_status}")
    requeued = False
    for before, event in pairwise(events):
        fell_from = rank(before.to_status, requeued=requeued)
        requeued = event.type is EventType.REQUEUED or (requeued and event.type is not EventType.CLAIMED)
        if event.at < before.at:
            yield _at(event, Code.TIME_BACK, f"{event.type} is dated {event.at}, and follows {before.at}")
        # Across a gap in the revisions a step cannot be checked.
        if event.rev == before.rev + 1:
            step = (before.attempt, fell_from), (event.attempt, rank(event.to_status, requeued=requeued))
            yield from _step(before, event, *step)


def _step(before: Event, event: Event, was: tuple[int, int], now: tuple[int, int]) -> Iterator[HistoryProblem]:
    claims = event.type is EventType.CLAIMED
    legal = (event.type, event.from_status, event.to_status) in _LEGAL
    if before.to_status in TERMINAL:
        yield _at(event, Code.TERMINAL_CHANGED, f"{event.type} follows the end, which was {before.to_status}")
    elif claims and before.to_status in LEASED:
        yield _at(event, Code.LEASE_OVERLAP, f"{event.owner} claims it while the lease of attempt {was[0]} is held")
    elif now < was:
        yield _at(event, Code.RANK_FELL, f"(attempt, rank) falls from {was} to {now} by {event.type}")
    elif event.attempt != before.attempt + claims:
        yield _at(event, Code.ATTEMPT_MISCOUNTED, f"{event.type} is of attempt {event.attempt} after {before.attempt}")
    elif event.from_status is not before.to_status:
        yield _at(event, Code.CHAIN_BROKEN, f"{event.type} starts from {event.from_status} after {before.to_status}")
    elif not legal:
        message = f"the table has no {event.type} from {event.from_status} to {event.to_status}"
        yield _at(event, Code.ILLEGAL_STEP, message)
    elif _transition_of(event) is None:
        yield _at(event, Code.NOT_AUTHORISED, f"{event.actor} has no authority for {event.type}")


def _leases(events: Sequence[Event]) -> Iterator[HistoryProblem]:
    """No owner's event at or after the expiry of its lease."""
    until: datetime | None = None
    for before, event in pairwise([events[0], *events]):
        transition = _transition_of(event)
        by = None if transition is None else transition.authority(_role(event) or Role.CLIENT)
        # An event is never dated before its predecessor. If both have the same timestamp, the database's clock may have
        # been set back in between, and the lease may still have been valid by it.
        certain = event.at > before.at
        if by is not None and by.with_lease and certain and until is not None and event.at >= until:
            yield _at(event, Code.LEASE_ENDED, f"{event.type} by {event.actor} at {event.at}, the lease ended {until}")
        if event.type is EventType.CLAIMED or (event.type is EventType.HEARTBEAT and event.until_at is not None):
            until = event.until_at
        elif event.to_status not in LEASED:
            until = None


def _commits(events: Sequence[Event]) -> Iterator[HistoryProblem]:
    commit: Event | None = None
    for event in events:
        transition = _transition_of(event)
        if commit is None:
            commit = event if event.commits else None
        elif event.commits:
            yield _at(event, Code.COMMITTED_TWICE, f"{event.type} commits it again, after revision {commit.rev}")
        elif transition is not None and not transition.after_commit:
            yield _at(event, Code.AFTER_COMMIT, f"{event.type} of a job whose effect was applied at {commit.at}")


def _row(job: Job, events: Sequence[Event], *, log_is_sound: bool) -> Iterator[HistoryProblem]:
    endless = job.status in TERMINAL and events[-1].to_status not in TERMINAL
    if endless:
        message = f"its row is {job.status}, and its log ends with {events[-1].type}: no event explains the end"
        yield HistoryProblem(Code.NO_END_EVENT, message, job.id)
    for found in problems_of(job, events):
        explained = (found.type is ProblemType.BROKEN_LOG and not log_is_sound) or (
            found.type is ProblemType.DIFFERS and endless
        )
        if not explained:
            yield HistoryProblem(_OF_FLAW[found.type], found.message, job.id, found.rev)


def _legality_problems(job: Job, events: Sequence[Event]) -> Iterator[HistoryProblem]:
    """Whether the record before each event allowed that event. Only for a log that can be replayed."""
    contents = contents_of(job)
    current = enqueued_job(job.origin, at=events[0].at, due_at=events[0].until_at)
    for before, event in pairwise(events):
        transition = _transition_of(event)
        content = contents.get(event.digest or "")
        if transition is not None:
            yield from _allowed(current, event, transition, content, follows=event.request_id == before.request_id)
        current = evolve(current, event, content)


def _vocabularies(job: Job, events: Sequence[Event]) -> Iterator[HistoryProblem]:
    """Whether every vocabulary reports this log by transitions of its source and its listed extensions only."""
    for problem in transition_problems(ALL, job, events):
        message = f"{problem.vocabulary}: {problem.message}"
        yield HistoryProblem(Code.VOCABULARY, message, job.id, problem.rev)


def _allowed(
    job: Job, event: Event, transition: Transition, content: str | None, *, follows: bool
) -> Iterator[HistoryProblem]:
    # An event is dated at the database's time or later, and these guards, once open, stay open. A step that follows
    # another in one change has no guard of its own.
    operation = _operation(transition.operation, event, job, content)
    if not follows and not clock_allows(job, transition.clock_guard(operation), event.at):
        message = f"{event.type} at {event.at}: due {job.due_at}, lease until {job.lease_expires_at}, "
        message += f"heartbeat until {job.heartbeat_deadline_at}, time up at {job.timeout_at}"
        yield _at(event, Code.TOO_EARLY, message)
    by = transition.authority(_role(event) or Role.CLIENT)
    if transition.operation is OperationType.COMPLETE and content is None:
        return  # It was erased, so it cannot be compared with the committed one.
    for condition in (transition.when, None if by is None else by.when):
        if condition is not None and not condition.holds(job, operation):
            yield _at(event, Code.AGAINST_POLICY, f"{event.type} by {event.actor}: only when {condition.description}")


def _operation(type_: OperationType, event: Event, job: Job, content: str | None) -> Operation:
    """An operation with everything that the table's conditions read: result, revision, cause, permanent error."""
    match type_:
        case OperationType.COMPLETE:
            return Complete(content or "")
        case OperationType.SUSPEND:
            return Suspend(seen_rev=load(event.detail or "{}").get("seen_rev", 0))
        case OperationType.STALL:
            return Stall(event.cause or "lease_expired")
    # The owner measures the deadline from a reply: if the clock was set back, the event is dated before it.
    timed_out = event.cause == TIMEOUT and (job.policy.on_timeout == "fail" or deadline_of(job) is not None)
    return Fail("null", permanent=timed_out or event.cause == "permanent_error")


def _transition_of(event: Event) -> Transition | None:
    role = _role(event)
    if event.from_status is None or role is None:
        return None
    return _TRANSITION_OF.get((event.type, event.from_status, role, event.cause == TIMEOUT))


def _role(event: Event) -> Role | None:
    name = event.actor.partition(":")[0]
    return Role(name) if name in _ROLES else None


_ROLES = frozenset(Role)


def _at(event: Event, code: Code, message: str) -> HistoryProblem:
    return HistoryProblem(code, message, event.job_id, event.rev)
