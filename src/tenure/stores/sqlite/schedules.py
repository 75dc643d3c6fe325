"""Schedules. All writes pass through the one writer, so that two schedulers cannot race."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tenure.errors import InvalidInput, StoreError
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.contract.schedules import Soonest
from tenure.stores.schedule_validation import readable, validate_firing, validate_next, validate_schedule
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.enqueue import enqueue
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import decode_value, encode_value, micros, optional_micros
from tenure.stores.validation import validate_page

_FIRST_AT = datetime(1, 1, 2, tzinfo=UTC)
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))
_MOVING = tuple(name for name in ScheduleRecord.__struct_fields__ if name != "schedule")

log = logging.getLogger("tenure.stores.sqlite")


class SqliteSchedules:
    """The schedules of one file. A firing wakes the queues of the jobs that it enqueues."""

    def __init__(self, connections: SqliteConnections, wake: Callable[[set[str]], None]) -> None:
        self._write, self._read, self._wake = connections.write, connections.read, wake

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        validate_schedule(schedule, next_at=next_at, expected_rev=expected_rev, actor=actor)
        return await self._write(_put, schedule, next_at=next_at, paused=paused, expected_rev=expected_rev, actor=actor)

    async def remove(self, name: str, *, actor: Actor) -> bool:
        return await self._write(_remove, name, actor)

    async def get(self, name: str) -> ScheduleRecord | None:
        return await self._read(_get, name)

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        validate_page(limit)
        return await self._read(_select, "schedules/select_page", {"name": None, "after": after or "", "limit": limit})

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        validate_page(limit)
        return await self._read(_soonest, after or (_FIRST_AT, ""), limit)

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        validate_firing(firing, requests)
        results = await self._write(_fire, firing, requests)
        self._wake({result.job.queue for result in results or () if result.created})
        return results


def _put(
    session: Session,
    schedule: Schedule,
    *,
    next_at: datetime | None,
    paused: bool,
    expected_rev: int,
    actor: Actor,
) -> ScheduleRecord | None:
    """Insert or replace a schedule; None if its revision is not the expected one."""
    current = _get(session, schedule.name)
    if (current.rev if current else 0) != expected_rev:
        return None
    validate_next(next_at, None if current is None else current.last_at)
    parameters = {name: encode_value(getattr(schedule, name)) for name in _PLAIN} | {
        "tags": None if schedule.tags is None else encode(dict(schedule.tags)),
        "policy_id": session.policy_id(schedule.policy),
        "next_at": optional_micros(next_at),
        "paused": paused,
        "rev": expected_rev,
        "at": micros(session.now),
    }
    session.execute("schedules/insert" if current is None else "schedules/update", parameters)
    session.log_operator("schedule", actor, {"name": schedule.name, "rev": expected_rev + 1})
    return _get(session, schedule.name)


def _remove(session: Session, name: str, actor: Actor) -> bool:
    if not session.execute("schedules/delete", {"name": name}).rowcount:
        return False
    session.log_operator("unschedule", actor, {"name": name})
    return True


def _fire(session: Session, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
    """Advance the schedule and enqueue the jobs of its due times; None if the schedule has changed."""
    parameters = {
        "name": firing.name,
        "rev": firing.rev,
        "until": micros(firing.until),
        "next_at": optional_micros(firing.next_at),
        "now": micros(session.now),
    }
    if not session.execute("schedules/advance", parameters).rowcount:
        return None
    return enqueue(session, requests) if requests else []


def _get(session: Session, name: str) -> ScheduleRecord | None:
    records = _select(session, "schedules/select_page", {"name": name, "after": "", "limit": 1})
    return next(iter(records), None)


def _soonest(session: Session, after: tuple[datetime, str], limit: int) -> Soonest:
    parameters = {"after_at": micros(after[0]), "after_name": after[1], "limit": limit}
    return Soonest(session.now, _select(session, "schedules/select_next", parameters))


def _select(session: Session, statement: str, parameters: dict[str, Any]) -> list[ScheduleRecord]:
    rows = session.execute(statement, parameters)
    names = [column[0] for column in rows.description]
    found = [_record(session, dict(zip(names, row, strict=True))) for row in rows.fetchall()]
    return [record for record in found if record is not None]


def _record(session: Session, row: dict[str, Any]) -> ScheduleRecord | None:
    """The record of a row; None if it cannot be decoded, so that other schedules go on."""
    try:
        policy = session.policy(row["policy_id"])
        tags = None if row["tags"] is None else msgspec.json.decode(row["tags"], type=dict[str, str])
        schedule = readable(Schedule(policy=policy, tags=tags, **{name: row[name] for name in _PLAIN}))
        moving = {name: decode_value(name, row[name]) for name in _MOVING}
    except (StoreError, InvalidInput, TypeError, OverflowError, msgspec.MsgspecError) as problem:
        log.error("schedule %r cannot be decoded: %r", row["name"], problem)
        return None
    return ScheduleRecord(schedule=schedule, **moving)
