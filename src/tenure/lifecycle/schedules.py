"""Schedules: what is to be done again and again, when, and what becomes of times that were missed. Pure.

A schedule is written down once for the whole fleet. Each of its due times leads to one job, which is named after the
schedule and the due time: whoever fires it, and however often, it is the same job.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Literal
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.cron import due_times, parse_cron
from tenure.lifecycle.records import Origin, Policy

Missed = Literal["skip", "one", "all"]
"""What becomes of due times at which nobody could fire: none of them, one job for all, or a job for each."""

Source = Literal["code", "operator"]
"""Who said last what a schedule is: the program that declares it, or somebody at run time."""

GRACE_SECONDS = 60.0
FIRED_MOST = 100
"""How many due times one firing makes up for; the rest follows at once, with the next."""

SCHEDULE_TAG, DUE_TAG, TRIGGER_TAG = "tenure.schedule", "tenure.due", "tenure.triggered"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and when. `cron` is a cron expression or an interval such as `every 30s`.

    With `missed="skip"` a due time that is over for longer than `grace_seconds` is let go.
    """

    name: str
    cron: str
    kind: str
    payload: str
    policy: Policy
    timezone: str = "UTC"
    missed: Missed = "one"
    grace_seconds: float = GRACE_SECONDS
    queue: str = "default"
    priority: int = 0
    dedupe_key: str | None = None
    correlation_id: str | None = None
    submitted_by: str | None = None
    partition_key: str | None = None
    tags: Mapping[str, str] | None = None
    source: Source = "operator"


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands at one revision. Every firing and every edit is a revision.

    `next_at` is the next due time, None where none ever comes; `last_at` is the last one that was dealt with. The next
    is always after the last, whatever the clock does.
    """

    schedule: Schedule
    rev: int
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    updated_at: datetime

    @property
    def name(self) -> str:
        return self.schedule.name


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with a schedule that is due: a job for each of `due`, then wait for `next_at`.

    It holds for the revision that it was made from, and once the database's clock has reached `until`, the last due
    time that it deals with.
    """

    name: str
    rev: int
    due: tuple[datetime, ...]
    until: datetime
    next_at: datetime | None


def firing(record: ScheduleRecord, *, now: datetime, zone: tzinfo) -> Firing | None:
    """What is to be done with a schedule now; None where it is paused, or not due."""
    schedule, next_at = record.schedule, record.next_at
    if record.paused_at is not None or next_at is None or next_at > now:
        return None
    when = parse_cron(schedule.cron)
    if schedule.missed == "all":
        due = (next_at, *islice(due_times(when, zone, after=next_at, until=now), FIRED_MOST - 1))
    else:
        # The time that is written down counts even where the zone's rules were changed since.
        last = max(next_at, when.last_until(now, zone) or next_at)
        late = now - last > timedelta(seconds=schedule.grace_seconds)
        due = () if schedule.missed == "skip" and late else (last,)
        next_at = last
    until = due[-1] if due else next_at
    return Firing(name=record.name, rev=record.rev, due=due, until=until, next_at=when.next_after(until, zone))


def next_time(schedule: Schedule, *, now: datetime, last_at: datetime | None, zone: tzinfo) -> datetime | None:
    """When a schedule that begins now, or is changed now, is due next: never again at or before its last time."""
    begin = now if last_at is None else max(now, last_at)
    return parse_cron(schedule.cron).next_after(begin, zone)


def same_times(one: Schedule, other: Schedule) -> bool:
    """Whether two definitions have the same due times, so that an edit from one to the other keeps the next."""
    return (one.cron, one.timezone) == (other.cron, other.timezone)


def declaration_applies(existing: ScheduleRecord | None, declared: Schedule) -> bool:
    """Whether what the code declares should be written: it is new, or the code itself said something else before.

    What somebody has changed at run time stays as they left it.
    """
    return existing is None or (existing.schedule.source == "code" and existing.schedule != declared)


def job_of(schedule: Schedule, due: datetime, *, job_id: UUID) -> Origin:
    """The job of one due time. Its request id is the schedule's name and the time, also after an edit: no time can
    lead to a second job."""
    stamp = due.astimezone(UTC).isoformat().replace("+00:00", "Z")
    tags = {SCHEDULE_TAG: schedule.name, DUE_TAG: stamp}
    return _origin(schedule, tags, id=job_id, request_id=f"cron:{schedule.name}:{stamp}")


def triggered_job_of(schedule: Schedule, *, job_id: UUID) -> Origin:
    """A job of the schedule out of turn, because somebody asked for it."""
    return _origin(schedule, {SCHEDULE_TAG: schedule.name, TRIGGER_TAG: "yes"}, id=job_id)


def template_of(origin: Origin, **facts: Any) -> Schedule:
    """The schedule that makes jobs like this one. What belongs to a single job cannot be repeated."""
    if origin.request_id is not None:
        raise InvalidInput("request_id", "cannot be given: each due time has one of its own")
    if {SCHEDULE_TAG, DUE_TAG, TRIGGER_TAG} & set(origin.tags or {}):
        raise InvalidInput("tags", f"{SCHEDULE_TAG}, {DUE_TAG} and {TRIGGER_TAG} are given by the schedule itself")
    return Schedule(**{name: getattr(origin, name) for name in _OF_JOBS}, **facts)


_OF_JOBS = tuple(name for name in Schedule.__struct_fields__ if name in Origin.__struct_fields__)
"""What a schedule hands on to its jobs as it is."""


def _origin(schedule: Schedule, tags: dict[str, str], **facts: Any) -> Origin:
    shared = {name: getattr(schedule, name) for name in _OF_JOBS}
    return Origin(**{**shared, "tags": {**(schedule.tags or {}), **tags}}, **facts)
