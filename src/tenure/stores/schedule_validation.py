"""Validation of schedules and firings, the same for every store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import get_args
from uuid import UUID

from tenure.errors import InvalidInput
from tenure.lifecycle.cron import parse_cron
from tenure.lifecycle.json_text import (
    check_choice,
    check_datetime,
    check_integer,
    check_name,
    check_seconds,
    check_text,
)
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.schedules import Firing, Missed, Schedule, Source, triggered_job_of
from tenure.lifecycle.size_limits import REV_MAX
from tenure.stores.contract import EnqueueRequest
from tenure.stores.validation import validate_enqueue

_NOBODY = Actor(Role.CLIENT, "nobody")
_NO_JOB = UUID(int=0)


def validate_schedule(schedule: Schedule, *, next_at: datetime | None, expected_rev: int, actor: Actor) -> None:
    """Validate a schedule, and the jobs that it would enqueue."""
    check_name(schedule.name, "name")
    check_text(schedule.cron, "cron")
    parse_cron(schedule.cron)
    check_text(schedule.timezone, "timezone", length_max=100)
    check_seconds(schedule.grace_seconds, "grace_seconds")
    check_choice(schedule.missed, "missed", get_args(Missed))
    check_choice(schedule.source, "source", get_args(Source))
    validate_enqueue(EnqueueRequest(triggered_job_of(schedule, job_id=_NO_JOB), _NOBODY))
    if next_at is not None:
        check_datetime(next_at, "next_at")
    check_integer(expected_rev, "expected_rev", least=0, most=REV_MAX)
    check_text(actor.name, "actor")


def readable(schedule: Schedule) -> Schedule:
    """A stored schedule whose due times can be computed; InvalidInput for one that this code did not write."""
    check_text(schedule.cron, "cron")
    check_text(schedule.timezone, "timezone", length_max=100)
    check_seconds(schedule.grace_seconds, "grace_seconds")
    return schedule


def validate_firing(firing: Firing, requests: Sequence[EnqueueRequest]) -> None:
    """Validate a firing, which must advance the schedule, and its jobs."""
    check_name(firing.name, "name")
    check_datetime(firing.until, "until")
    if firing.next_at is not None and check_datetime(firing.next_at, "next_at") <= firing.until:
        raise InvalidInput("next_at", "must be after the due times that are fired")
    for request in requests:
        validate_enqueue(request)


def validate_next(next_at: datetime | None, last_at: datetime | None) -> None:
    """Refuse a next due time that is not after the last."""
    if next_at is not None and last_at is not None and next_at <= last_at:
        raise InvalidInput("next_at", f"is {next_at}, and must be after the last due time, {last_at}")
