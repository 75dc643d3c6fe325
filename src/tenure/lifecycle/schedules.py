"""Schedules: recurring jobs, their due times, and the policy for missed ones. Pure.

A schedule is stored once for the whole fleet. Each due time makes one job, whose request id is derived from schedule
and due time: firing it again, from any worker, returns the same job.
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
"""The policy for missed due times: no job, one job for all of them, or a job for each."""

Source = Literal["code", "operator"]
"""The origin of the stored definition: declared in code, or edited at run time."""

GRACE_SECONDS = 60.0
FIRED_MOST = 100
"""Due times per firing; the rest follows with the next firing, at once."""

SCHEDULE_TAG, DUE_TAG, TRIGGER_TAG = "tenure.schedule", "tenure.due", "tenure.triggered"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job template and its due times. `cron` is a cron expression or an interval such as `every 30s`.

    With `missed="skip"` a due time that passed more than `grace_seconds` ago makes no job.
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
    """A schedule at one revision. Every firing and every edit is a revision.

    `next_at` is the next due time, None if there is none; `last_at` is the last one fired or skipped. `next_at` is
    always after `last_at`, also when the clock is set back.
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
    """The firing of a due schedule: a job for each of `due`, then `next_at`.

    It applies to the revision that it was computed from, once the database's clock has reached `until`, its last due
    time.
    """

    name: str
    rev: int
    due: tuple[datetime, ...]
    until: datetime
    next_at: datetime | None


def firing(record: ScheduleRecord, *, now: datetime, zone: tzinfo) -> Firing | None:
    """The firing of a schedule at `now`; None if it is paused or not due."""
    schedule, next_at = record.schedule, record.next_at
    if record.paused_at is not None or next_at is None or next_at > now:
        return None
    when = parse_cron(schedule.cron)
    if schedule.missed == "all":
        due = (next_at, *islice(due_times(when, zone, after=next_at, until=now), FIRED_MOST - 1))
    else:
        # The stored due time counts even if the rules of the time zone have changed since.
        last = max(next_at, when.last_until(now, zone) or next_at)
        late = now - last > timedelta(seconds=schedule.grace_seconds)
        due = () if schedule.missed == "skip" and late else (last,)
        next_at = last
    until = due[-1] if due else next_at
    return Firing(name=record.name, rev=record.rev, due=due, until=until, next_at=when.next_after(until, zone))


def next_time(schedule: Schedule, *, now: datetime, last_at: datetime | None, zone: tzinfo) -> datetime | None:
    """The next due time of a schedule that is created or edited at `now`: always after its last one."""
    begin = now if last_at is None else max(now, last_at)
    return parse_cron(schedule.cron).next_after(begin, zone)


def same_times(one: Schedule, other: Schedule) -> bool:
    """Whether two definitions have the same due times, so that an edit keeps `next_at`."""
    return (one.cron, one.timezone) == (other.cron, other.timezone)


def declaration_applies(existing: ScheduleRecord | None, declared: Schedule) -> bool:
    """Whether a declaration in code replaces the stored schedule: it is new, or the stored one came from code.

    A schedule that was edited at run time keeps its edits.
    """
    return existing is None or (existing.schedule.source == "code" and existing.schedule != declared)


def job_of(schedule: Schedule, due: datetime, *, job_id: UUID) -> Origin:
    """The job of one due time. Its request id is derived from name and due time, also after an edit, so that no due
    time makes a second job."""
    stamp = due.astimezone(UTC).isoformat().replace("+00:00", "Z")
    tags = {SCHEDULE_TAG: schedule.name, DUE_TAG: stamp}
    return _origin(schedule, tags, id=job_id, request_id=f"cron:{schedule.name}:{stamp}")


def triggered_job_of(schedule: Schedule, *, job_id: UUID) -> Origin:
    """A job of the schedule outside its due times, by a manual trigger."""
    return _origin(schedule, {SCHEDULE_TAG: schedule.name, TRIGGER_TAG: "yes"}, id=job_id)


def template_of(origin: Origin, **facts: Any) -> Schedule:
    """The schedule that makes jobs like this one. Fields of a single job are refused."""
    if origin.request_id is not None:
        raise InvalidInput("request_id", "cannot be set on a schedule: each due time has its own")
    if {SCHEDULE_TAG, DUE_TAG, TRIGGER_TAG} & set(origin.tags or {}):
        raise InvalidInput("tags", f"{SCHEDULE_TAG}, {DUE_TAG} and {TRIGGER_TAG} are set by the schedule")
    return Schedule(**{name: getattr(origin, name) for name in _OF_JOBS}, **facts)


_OF_JOBS = tuple(name for name in Schedule.__struct_fields__ if name in Origin.__struct_fields__)
"""The fields that a schedule copies to its jobs."""


def _origin(schedule: Schedule, tags: dict[str, str], **facts: Any) -> Origin:
    shared = {name: getattr(schedule, name) for name in _OF_JOBS}
    return Origin(**{**shared, "tags": {**(schedule.tags or {}), **tags}}, **facts)
