"""`verify`: compares a job's record with its events. Pure.

It repairs nothing and trusts neither side: events and record may each have been changed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.fold import BrokenLog, contents_of, differences, fold
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.json_text import digest, load
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED
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

_FROM_DETAIL = frozenset({"reason", "progress", "progress_message"})
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
    UNREADABLE = "unreadable"


class Problem(msgspec.Struct, frozen=True):
    """One problem of one job. `job_id` is None where the row could not be read."""

    job_id: UUID | None
    type: ProblemType
    message: str
    rev: int | None = None

    def __str__(self) -> str:
        place = "" if self.rev is None else f", revision {self.rev}"
        return f"job {self.job_id or 'unknown'}{place}: {self.type}: {self.message}"


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


def signal_problems(job: Job, events: Sequence[Event], kept: Mapping[int, tuple[str, str]]) -> list[Problem]:
    """Problems of the stored signals (revision → name, payload) against the log."""
    if job.erased_at is not None:
        return []
    logged = {event.rev: event for event in events if event.type is EventType.SIGNALLED}
    missing = [Problem(job.id, ProblemType.SIGNAL, "the signal is missing", rev) for rev in logged.keys() - kept.keys()]
    stray = [
        Problem(job.id, ProblemType.SIGNAL, "no event records the signal", rev) for rev in kept.keys() - logged.keys()
    ]
    changed = [
        Problem(job.id, ProblemType.SIGNAL, "the signal is not the one that was sent", rev)
        for rev, event in logged.items()
        if rev in kept and not _is_signal_of(event, *kept[rev])
    ]
    return sorted([*missing, *stray, *changed], key=lambda problem: problem.rev or 0)


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
        if event.commits is not commits:
            message = f"{event.type} is marked as {'the' if event.commits else 'no'} commit, and that is wrong"
            yield Problem(event.job_id, ProblemType.BROKEN_LOG, message, event.rev)
        if committed and event.type not in _AFTER_COMMIT:
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
    yield "correlation_id", job.origin.correlation_id
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
