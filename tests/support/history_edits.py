"""Edits of a recorded run: of a row, a log, the tail, or of what clients saw.

An edit of a log also changes the row and the tail unless an option excludes them, because a store with such a bug
would have written all of them. A contradiction in one place alone would be too easy to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.evolve import evolve
from tenure.lifecycle.fold import contents_of
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import CLAIMED
from tenure.testing.driver import ERROR
from tenure.testing.history.checker import Effect, Failed, History, HistorySnapshot, Invoked, Ok, Record, Unknown
from tests.support.recorded_history import LEASE_SECONDS, RecordedRun

Edit = Callable[[RecordedRun], RecordedRun]
Events = tuple[Event, ...]
CHANGED = msgspec.structs.replace


# Edits of the database


def row(name: str, **changes: Any) -> Edit:
    """Change only the row."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        job = CHANGED(recorded_run.job(name), **changes)
        return recorded_run.stored(_with_row(recorded_run.database, job))

    return edit


def origin(name: str, **changes: Any) -> Edit:
    def edit(recorded_run: RecordedRun) -> RecordedRun:
        job = recorded_run.job(name)
        return recorded_run.stored(
            _with_row(recorded_run.database, CHANGED(job, origin=CHANGED(job.origin, **changes)))
        )

    return edit


def log(name: str, change: Callable[[Events], Sequence[Event]], *, in_row: bool = True, in_tail: bool = True) -> Edit:
    """Change the log, and the row and the tail with it unless they are excluded."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        job = recorded_run.job(name)
        events = tuple(change(recorded_run.database.logs[job.id]))
        database = CHANGED(recorded_run.database, logs={**recorded_run.database.logs, job.id: events})
        if in_tail:
            database = CHANGED(database, tail=tuple(_with_events(database.tail, job.id, events)))
        if in_row and events:
            database = _with_row(database, _replayed(job, events))
        return recorded_run.stored(database)

    return edit


def tail(change: Callable[[Events], Sequence[Event]]) -> Edit:
    def edit(recorded_run: RecordedRun) -> RecordedRun:
        return recorded_run.stored(CHANGED(recorded_run.database, tail=tuple(change(recorded_run.database.tail))))

    return edit


def tail_of(name: str, change: Callable[[list[Event]], Sequence[Event]]) -> Edit:
    """The events of one job in the tail, at their old positions."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        job_id = recorded_run.jobs[name]
        others = [event for event in recorded_run.database.tail if event.job_id != job_id]
        own = change([event for event in recorded_run.database.tail if event.job_id == job_id])
        return recorded_run.stored(CHANGED(recorded_run.database, tail=(*own, *others)))

    return edit


def vanished(name: str, *, row_only: bool = False) -> Edit:
    """Remove the job, or only its row."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        database, job_id = recorded_run.database, recorded_run.jobs[name]
        database = CHANGED(database, jobs=tuple(job for job in database.jobs if job.id != job_id))
        if not row_only:
            logs = {key: events for key, events in database.logs.items() if key != job_id}
            database = CHANGED(
                database, logs=logs, tail=tuple(event for event in database.tail if event.job_id != job_id)
            )
        return recorded_run.stored(database)

    return edit


def _with_row(database: HistorySnapshot, changed: Job) -> HistorySnapshot:
    return CHANGED(database, jobs=tuple(changed if job.id == changed.id else job for job in database.jobs))


def _replayed(job: Job, events: Sequence[Event]) -> Job:
    """The row that these events fold to, legal or not."""
    contents = {**contents_of(job), digest(ERROR): ERROR}
    replayed = enqueued_job(job.origin, at=events[0].at, due_at=events[0].until_at)
    for event in events[1:]:
        replayed = evolve(replayed, event, contents.get(event.digest or ""))
    return replayed


def _with_events(tail: Sequence[Event], job_id: UUID, events: Sequence[Event]) -> Iterator[Event]:
    """The tail with these events of the job: each at its old position, a new one right after its predecessor."""
    places = {event.rev: float(place) for place, event in enumerate(tail) if event.job_id == job_id}
    order = [(float(place), 0, event) for place, event in enumerate(tail) if event.job_id != job_id]
    last = 0.0
    for number, event in enumerate(events):
        last = places.get(event.rev, last)
        order.append((last, number, event))
    return (event for _, _, event in sorted(order, key=lambda one: one[:2]))


# Changes of one job's events


def without(rev: int) -> Callable[[Events], list[Event]]:
    return lambda events: [event for event in events if event.rev != rev]


def skipped(rev: int) -> Callable[[Events], list[Event]]:
    """Remove an event and renumber the later ones."""
    return lambda events: [CHANGED(event, rev=event.rev - (event.rev > rev)) for event in events if event.rev != rev]


def until(rev: int) -> Callable[[Events], Events]:
    return lambda events: events[:rev]


def different(rev: int, **changes: Any) -> Callable[[Events], list[Event]]:
    """Change one event; `-1` is the last."""

    def change(events: Events) -> list[Event]:
        wanted = rev if rev > 0 else len(events) + 1 + rev
        return [CHANGED(event, **changes) if event.rev == wanted else event for event in events]

    return change


def later(rev: int, seconds: float) -> Callable[[Events], list[Event]]:
    """Date one event that much later."""

    def change(events: Events) -> list[Event]:
        wanted = rev if rev > 0 else len(events) + 1 + rev
        at = next(event.at for event in events if event.rev == wanted)
        return different(rev, at=at + timedelta(seconds=seconds))(events)

    return change


def followed(event_type: EventType, *, seconds: float = 1.0, **facts: Any) -> Callable[[Events], list[Event]]:
    """Add an event like the last one."""

    def change(events: Events) -> list[Event]:
        last = events[-1]
        made = {
            "rev": last.rev + 1,
            "type": event_type,
            "from_status": last.to_status,
            "to_status": last.to_status,
            "at": last.at + timedelta(seconds=seconds),
            "request_id": "forged",
            "cause": None,
            "detail": None,
            "digest": None,
            "until_at": None,
            "commits": False,
            **facts,
        }
        return [*events, CHANGED(last, **made)]

    return change


def swapped(events: Sequence[Event]) -> list[Event]:
    """Swap the second and the third."""
    first, second, third, *rest = events
    return [first, third, second, *rest]


def claimed_again(events: Events) -> list[Event]:
    claim = next(event for event in events if event.type is EventType.CLAIMED)
    second = followed(
        EventType.CLAIMED,
        to_status=CLAIMED,
        attempt=claim.attempt + 1,
        actor="pool:worker-9",
        until_at=events[-1].at + timedelta(seconds=LEASE_SECONDS),
    )
    return second(events)


# Edits of what clients saw


def answered(op: str, name: str, change: Callable[[Record], Record], *, number: int = 0) -> Edit:
    """Replace the result of a call of this operation on this job."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        call = _calls(recorded_run, op, name)[number]
        records = [
            change(record) if isinstance(record, Ok | Failed | Unknown) and key_of(record) == key_of(call) else record
            for record in recorded_run.history.records
        ]
        return recorded_run.saw(History.of(records))

    return edit


def invoked(op: str, name: str, /, **changes: Any) -> Edit:
    """Replace the request of a call."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        call = _calls(recorded_run, op, name)[0]
        records = [CHANGED(record, **changes) if record is call else record for record in recorded_run.history.records]
        return recorded_run.saw(History.of(records))

    return edit


def repeated(op: str, name: str, answer: Callable[[RecordedRun, Invoked], Record]) -> Edit:
    """Repeat the request with another result."""

    def edit(recorded_run: RecordedRun) -> RecordedRun:
        call = CHANGED(_calls(recorded_run, op, name)[0], number=10_000)
        return recorded_run.saw(History.of([*recorded_run.history.records, call, answer(recorded_run, call)]))

    return edit


def effects(change: Callable[[RecordedRun, list[Effect]], list[Effect]]) -> Edit:
    def edit(recorded_run: RecordedRun) -> RecordedRun:
        others = [record for record in recorded_run.history.records if not isinstance(record, Effect)]
        return recorded_run.saw(History.of([*others, *change(recorded_run, recorded_run.history.effects())]))

    return edit


def _calls(recorded_run: RecordedRun, op: str, name: str) -> list[Invoked]:
    job_id = recorded_run.jobs[name]
    won = {
        key_of(record) for record in recorded_run.history.records if isinstance(record, Ok) and job_id in record.job_ids
    }
    found = [
        record
        for record in recorded_run.history.records
        if isinstance(record, Invoked) and record.op == op and (record.job_id == job_id or key_of(record) in won)
    ]
    assert found, f"the history has no request for {op} of the job {name!r}"
    return found


def key_of(record: Invoked | Ok | Failed | Unknown) -> tuple[str, int]:
    return record.process, record.number


def refused(record: Record) -> Record:
    assert not isinstance(record, Effect)
    return Failed(record.process, record.number, "LeaseLost")


def ok_with(**changes: Any) -> Callable[[Record], Record]:
    return lambda record: CHANGED(record, **changes)


def effect_of(effects_seen: list[Effect], recorded_run: RecordedRun, name: str) -> Effect:
    return next(effect for effect in effects_seen if effect.job_id == recorded_run.jobs[name])
