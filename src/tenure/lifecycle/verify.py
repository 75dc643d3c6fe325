"""`verify`: compares a job's record with its events. Pure.

It repairs nothing, and takes neither side as correct: events and record may each have been changed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from tenure.lifecycle.content import RowsDigest, StoredContent, logged_digests
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.fold import BrokenLog, contents_of, differences, fold
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.json_text import digest, load
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.lifecycle.steps import StepsDigest, StoredStep, records_steps
from tenure.lifecycle.transitions import TRANSITIONS

VALUE_LENGTH_MAX = 80

_NAMED_BY: Mapping[str, frozenset[EventType]] = {
    "committed_result": frozenset({EventType.COMMITTED}),
    "result": frozenset({EventType.SUCCEEDED}),
    "partial_result": frozenset({EventType.HALTED}),
    "error": frozenset({EventType.FAILED}),
    "last_error": frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.DEAD_LETTERED}),
}
"""Content stored beside a job, and the events that carry its digest; the last of them counts."""

_FROM_DETAIL = frozenset({"progress", "progress_message"})
"""Fields that come from event details, which erasure removes."""

_AFTER_COMMIT = frozenset(transition.event for transition in TRANSITIONS if transition.after_commit)


class ProblemType(StrEnum):
    """The type of a problem."""

    NO_EVENTS = "no_events"
    NO_JOB = "no_job"
    BROKEN_LOG = "broken_log"
    DIFFERS = "differs"
    ORIGIN = "origin"
    CONTENT = "content"
    INVARIANT = "invariant"
    DEAD_LETTER = "dead_letter"
    SIGNAL = "signal"
    ARTIFACT = "artifact"
    MESSAGE = "message"
    STEP = "step"
    UNREADABLE = "unreadable"


class Problem(msgspec.Struct, frozen=True):
    """One problem. `job_id` is None where it is not that of a job."""

    job_id: UUID | None
    type: ProblemType
    message: str
    rev: int | None = None

    def __str__(self) -> str:
        place = "" if self.rev is None else f", revision {self.rev}"
        where = "" if self.job_id is None else f"job {self.job_id}{place}: "
        return f"{where}{self.type}: {self.message}"


def problems_of(job: Job, events: Sequence[Event]) -> list[Problem]:
    """Every contradiction between the record, its content, its events and the lifecycle."""
    if not events:
        return [
            Problem(
                job.id, ProblemType.NO_EVENTS, f"the record is {job.status} at revision {job.rev}, the log is empty"
            )
        ]
    content = dict(_content(job, events))
    return [
        *_log(events),
        *_origin(job, events[0]),
        *content.values(),
        *_replay(job, events, explained=content.keys()),
        *(Problem(job.id, ProblemType.INVARIANT, f"this does not hold: {message}") for message in violations(job)),
    ]


def dead_letter_problems(job: Job, events: Sequence[Event], record: DeadLetterRecord | None) -> list[Problem]:
    """Problems of the dead-letter record: missing, or different from the log."""
    if job.status is not DEAD_LETTERED:
        return []
    if record is None:
        return [Problem(job.id, ProblemType.DEAD_LETTER, "its dead-letter record is missing")]
    return [
        Problem(
            job.id, ProblemType.DEAD_LETTER, f"{name} is {_shown(stored)} in its record, {_shown(logged)} in the log"
        )
        for name, logged in _dead_letter_facts(job, events)
        if (stored := getattr(record, name)) != logged
    ]


def content_problems(job: Job, events: Sequence[Event], stored: StoredContent) -> list[Problem]:
    """Problems of the rows beside the job: an artifact, message, signal or step that was changed, removed or added."""
    commit = next((event for event in events if event.commits), None)
    try:
        logged = logged_digests(None if commit is None else commit.detail)
    except msgspec.MsgspecError as unread:
        message = f"the digests of its artifacts and messages cannot be read: {unread}"
        return [Problem(job.id, ProblemType.BROKEN_LOG, message, None if commit is None else commit.rev)]
    rev = None if commit is None else commit.rev
    erased = job.erased_at is not None
    return [
        *_row_problems(job, ProblemType.ARTIFACT, None if erased else logged.get("artifacts"), stored.artifacts, rev),
        *_row_problems(job, ProblemType.MESSAGE, logged.get("messages"), stored.messages, rev),
        *signal_problems(job, events, stored.signals),
        *step_problems(job, events, stored.steps),
    ]


def _row_problems(
    job: Job, type_: ProblemType, logged: RowsDigest | None, stored: Sequence[bytes], rev: int | None
) -> Iterator[Problem]:
    """Erasure empties messages, so that only their number can be compared."""
    expected = RowsDigest.of(()) if logged is None else logged
    found = RowsDigest.of(stored)
    if found.count != expected.count:
        message = f"it has {found.count} {type_}{'' if found.count == 1 else 's'}, its commit recorded {expected.count}"
        yield Problem(job.id, type_, message, rev)
    elif found != expected and job.erased_at is None:
        message = f"its {type_}s have the digest {found.digest}, its commit recorded {expected.digest}"
        yield Problem(job.id, type_, message, rev)


def signal_problems(job: Job, events: Sequence[Event], kept: Mapping[int, tuple[str, str]]) -> list[Problem]:
    """Problems of the stored signals (revision → name, payload) against the log."""
    logged = {event.rev: event for event in events if event.type is EventType.SIGNALLED}
    missing = [Problem(job.id, ProblemType.SIGNAL, "the signal is missing", rev) for rev in logged.keys() - kept.keys()]
    stray = [
        Problem(job.id, ProblemType.SIGNAL, "no event records the signal", rev) for rev in kept.keys() - logged.keys()
    ]
    changed = [
        Problem(job.id, ProblemType.SIGNAL, "the signal is not the one that was sent", rev)
        for rev, event in logged.items()
        if rev in kept and job.erased_at is None and not _is_signal_of(event, *kept[rev])
    ]
    return sorted([*missing, *stray, *changed], key=lambda problem: problem.rev or 0)


def step_problems(job: Job, events: Sequence[Event], stored: Sequence[StoredStep]) -> list[Problem]:
    """Problems of the stored steps: a row that its own digests do not explain, one that no attempt can have saved, and
    rows that are not those which the end of an attempt has recorded."""
    changed = [
        Problem(job.id, ProblemType.STEP, f"step {step.key!r} is not the one that was saved: its digest differs")
        for step in stored
        if step.is_changed
    ]
    emptied = [
        Problem(job.id, ProblemType.STEP, f"step {step.key!r} has lost its result")
        for step in stored
        if step.is_empty and job.erased_at is None
    ]
    early = [
        Problem(job.id, ProblemType.STEP, f"step {step.key!r} is of attempt {step.attempt}, which the job never had")
        for step in stored
        # A fork has its copied steps before its first attempt, as steps of that attempt.
        if not 1 <= step.attempt <= max(job.attempt, int(job.origin.redrive_of is not None))
    ]
    return [*changed, *emptied, *early, *_recorded_step_problems(job, events, stored)]


def _recorded_step_problems(job: Job, events: Sequence[Event], stored: Sequence[StoredStep]) -> Iterator[Problem]:
    for event in events:
        if not records_steps(event.type, event.from_status):
            continue
        found = StepsDigest.of(step.digest for step in stored if step.attempt <= event.attempt)
        try:
            recorded = StepsDigest() if event.steps is None else StepsDigest.parse(event.steps)
        except ValueError as problem:
            yield Problem(job.id, ProblemType.BROKEN_LOG, str(problem), event.rev)
            continue
        if found.count != recorded.count:
            rows = f"{found.count} step{'' if found.count == 1 else 's'}"
            message = f"it has {rows} up to attempt {event.attempt}, {event.type} recorded {recorded.count}"
            yield Problem(job.id, ProblemType.STEP, message, event.rev)
        elif found != recorded:
            message = f"its steps up to attempt {event.attempt} are not those that {event.type} recorded"
            yield Problem(job.id, ProblemType.STEP, f"{message}: the sum of their digests differs", event.rev)


def _log(events: Sequence[Event]) -> Iterator[Problem]:
    """What a chain of legal transitions does not cover: its first event, and what may follow a commit."""
    first = events[0]
    if first.type is not EventType.ENQUEUED:
        yield Problem(
            first.job_id, ProblemType.BROKEN_LOG, f"the log begins with {first.type}, not with enqueued", first.rev
        )
    committed = False
    for event in events:
        commits = event.type is EventType.COMMITTED or (event.type is EventType.SUCCEEDED and not committed)
        if event.commits is not commits and not event.is_of_later_version:
            message = f"{event.type} is marked as {'the' if event.commits else 'no'} commit, and that is wrong"
            yield Problem(event.job_id, ProblemType.BROKEN_LOG, message, event.rev)
        if committed and event.type not in _AFTER_COMMIT and not event.is_of_later_version:
            yield Problem(event.job_id, ProblemType.BROKEN_LOG, f"{event.type} follows the commit", event.rev)
        committed = committed or event.commits


def _origin(job: Job, enqueued: Event) -> Iterator[Problem]:
    if job.erased_at is None and enqueued.digest != job.origin.digest():
        message = "payload, policy or another part of what was enqueued does not match the digest in the log"
        yield Problem(job.id, ProblemType.ORIGIN, message, enqueued.rev)


def _content(job: Job, events: Sequence[Event]) -> Iterator[tuple[str, Problem]]:
    if job.erased_at is not None:
        return
    for name, types in _NAMED_BY.items():
        event = next((event for event in reversed(events) if event.type in types), None)
        if event is None or (name == "committed_result" and events[-1].type is EventType.SUCCEEDED):
            continue
        text = getattr(job, name)
        if text is None:
            message = f"{name} is missing; its event carries the digest {event.digest}"
            yield name, Problem(job.id, ProblemType.CONTENT, message, event.rev)
        elif digest(text) != event.digest:
            message = f"{name} has the digest {digest(text)}, its event carries {event.digest}"
            yield name, Problem(job.id, ProblemType.CONTENT, message, event.rev)


def _replay(job: Job, events: Sequence[Event], *, explained: Iterable[str]) -> Iterator[Problem]:
    try:
        folded = fold(job.origin, events, contents_of(job))
    except BrokenLog as broken:
        yield Problem(job.id, ProblemType.BROKEN_LOG, broken.problem, broken.rev)
        return
    except (ValueError, TypeError, ArithmeticError, LookupError, msgspec.MsgspecError) as problem:
        yield Problem(job.id, ProblemType.BROKEN_LOG, f"the events cannot be replayed: {problem}")
        return
    if any(event.is_of_later_version for event in events):
        return  # What such an event changes in the record is not known here.
    silent = {*explained, *(_NAMED_BY.keys() | _FROM_DETAIL if job.erased_at is not None else ())}
    for name, (stored, replayed) in differences(job, folded).items():
        if name not in silent:
            message = f"{name} is {_shown(stored)} in the record, {_shown(replayed)} by the log"
            yield Problem(job.id, ProblemType.DIFFERS, message)


def _dead_letter_facts(job: Job, events: Sequence[Event]) -> Iterator[tuple[str, object]]:
    claims = [event for event in events if event.type is EventType.CLAIMED]
    leases = [event.until_at for event in events if event.type in (EventType.CLAIMED, EventType.HEARTBEAT)]
    stage = _detail(events[-1]).get("stage")
    yield "reason_code", events[-1].cause
    yield "attempts", job.attempt
    yield "at", job.finished_at
    yield "last_owner", claims[-1].owner if claims else None
    yield "last_lease_expires_at", next((until for until in reversed(leases) if until is not None), None)
    yield "correlation_id", job.correlation_id
    if stage is not None:
        yield "stage", stage
    if job.erased_at is None:
        yield "last_error", job.last_error


def _is_signal_of(event: Event, name: str, payload: str) -> bool:
    return digest(payload) == event.digest and _detail(event).get("name", name) == name


def _detail(event: Event) -> Mapping[str, object]:
    try:
        detail = load(event.detail) if event.detail else {}
    except msgspec.MsgspecError:
        return {}
    return detail if isinstance(detail, dict) else {}


def _shown(value: object) -> str:
    """A value for a message. Long content is cut."""
    if isinstance(value, datetime):
        return value.isoformat()
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}…"
