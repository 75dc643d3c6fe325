"""The deadline of a job: the time at which it ends, whatever its status. Pure.

It is derived from what never changes: `deadline_seconds` of the policy counts from the job's creation, by the
database's clock, and a tag has the deadline of the run that spawned the job or went on as it. The earlier one holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

from tenure.lifecycle.records import Job, Origin

DEADLINE_TAG = "tenure.deadline"
_STAMP = "%Y-%m-%dT%H:%M:%S.%fZ"


def deadline_of(job: Job) -> datetime | None:
    """The time at which the job ends; None for a job without a deadline."""
    return first_deadline(job.origin, job.created_at)


def first_deadline(origin: Origin, created_at: datetime) -> datetime | None:
    """The deadline of a job that is created at this time."""
    deadline_ms = origin.policy.deadline_ms
    own = None if deadline_ms is None else created_at + timedelta(milliseconds=deadline_ms)
    return own if origin.tags is None else earliest(own, _inherited(origin.tags))


def with_deadline(origin: Origin, at: datetime | None) -> Origin:
    """The origin of a job that ends at this time, if its own deadline is not earlier."""
    if at is None:
        return origin
    inherited = None if origin.tags is None else _inherited(origin.tags)
    at = at if inherited is None else min(at, inherited)
    return msgspec.structs.replace(origin, tags={**(origin.tags or {}), DEADLINE_TAG: stamp(at)})


def without_inherited(origin: Origin) -> Origin:
    """The origin of a job that belongs to no other run: `deadline_seconds` of its policy alone counts."""
    if origin.tags is None or DEADLINE_TAG not in origin.tags:
        return origin
    tags = {name: text for name, text in origin.tags.items() if name != DEADLINE_TAG}
    return msgspec.structs.replace(origin, tags=tags or None)


def without_deadline(job: Job) -> Job:
    """The job as it would be without a deadline."""
    origin = without_inherited(job.origin)
    policy = msgspec.structs.replace(origin.policy, deadline_seconds=None)
    return msgspec.structs.replace(job, origin=msgspec.structs.replace(origin, policy=policy))


def earliest(*times: datetime | None) -> datetime | None:
    """The first of the times that are set.

    >>> earliest(None, datetime(2030, 1, 2), datetime(2030, 1, 1))
    datetime.datetime(2030, 1, 1, 0, 0)
    """
    return min((at for at in times if at is not None), default=None)


def stamp(at: datetime) -> str:
    """A time as the tag has it, to the microsecond."""
    return at.astimezone(UTC).strftime(_STAMP)


@lru_cache(maxsize=1024)
def parsed(text: str) -> datetime | None:
    """The time of a stamp; None for any other text."""
    try:
        at = datetime.strptime(text, _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return at if stamp(at) == text else None


def _inherited(tags: Mapping[str, str]) -> datetime | None:
    text = tags.get(DEADLINE_TAG)
    return None if text is None else parsed(text)
