"""Schedules in an SQLite file. What is written goes through the one writer, so that there are no races to settle."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tenure.errors import StoreError
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.contract.schedules import Soonest
from tenure.stores.schedule_validation import check_firing, check_next, check_schedule
from tenure.stores.sqlite import enqueue
from tenure.stores.sqlite.apply import read_one
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.retention import note_operator
from tenure.stores.sqlite.rows import PolicyOf, maybe_micros, maybe_moment, micros, moment
from tenure.stores.sqlite.statements import Row, sql
from tenure.stores.validation import check_page

_ALWAYS = datetime(1, 1, 2, tzinfo=UTC)
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))

log = logging.getLogger("tenure.stores.sqlite")


class SqliteSchedules:
    """The schedules of one store. Who waits for new jobs is told of those that a firing adds."""

    def __init__(self, connections: SqliteConnections, wake: Callable[[set[str]], None]) -> None:
        self._write, self._read, self._clock = connections.write, connections.read, connections.clock
        self._policies, self._policies_on = connections.policies, connections.policies_on
        self._wake = wake

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        check_schedule(schedule, next_at=next_at, expected_rev=expected_rev, actor=actor)
        facts = {
            **{name: getattr(schedule, name) for name in _PLAIN},
            "tags": None if schedule.tags is None else encode(dict(schedule.tags)),
            "next_at": maybe_micros(next_at),
            "paused": paused,
            "rev": expected_rev,
        }

        def work(connection: sqlite3.Connection) -> ScheduleRecord | None:
            now = self._clock()
            there = self._one(connection, schedule.name)
            if (there.rev if there else 0) != expected_rev:
                return None
            check_next(next_at, None if there is None else there.last_at)
            policy_id = self._policies.insert(connection, schedule.policy)
            statement = "insert_schedule" if there is None else "update_schedule"
            connection.execute(sql(statement), {**facts, "policy_id": policy_id, "at": micros(now)})
            note_operator(
                connection, "schedule", actor=actor, now=now, detail={"name": schedule.name, "rev": expected_rev + 1}
            )
            return self._one(connection, schedule.name)

        return await self._write(work)

    async def remove(self, name: str, *, actor: Actor) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if not connection.execute(sql("remove_schedule"), {"name": name}).rowcount:
                return False
            note_operator(connection, "unschedule", actor=actor, now=self._clock(), detail={"name": name})
            return True

        return await self._write(work)

    async def get(self, name: str) -> ScheduleRecord | None:
        return await self._read(lambda connection: self._one(connection, name))

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        check_page(limit)
        values = {"name": None, "after": after or "", "limit": limit}
        return await self._read(lambda connection: self._records(connection, "schedules", values))

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        check_page(limit)
        after_at, after_name = after or (_ALWAYS, "")
        values = {"after_at": micros(after_at), "after_name": after_name, "limit": limit}
        return await self._read(
            lambda connection: Soonest(self._clock(), self._records(connection, "soonest_schedules", values))
        )

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        check_firing(firing, requests)
        added = await self._write(lambda connection: self._fire(connection, firing, requests))
        self._wake({one.job.queue for one in added or () if one.created})
        return added

    def _fire(
        self, connection: sqlite3.Connection, firing: Firing, requests: Sequence[EnqueueRequest]
    ) -> list[EnqueueResult] | None:
        now = self._clock()
        values = {
            "name": firing.name,
            "rev": firing.rev,
            "until": micros(firing.until),
            "next_at": maybe_micros(firing.next_at),
            "now": micros(now),
        }
        if not connection.execute(sql("move_schedule"), values).rowcount:
            return None
        if not requests:
            return []
        policy_of = self._policies_on(connection)
        return enqueue.enqueue(
            connection,
            requests,
            now=now,
            policies=self._policies,
            read=lambda job_id: read_one(connection, job_id, policy_of),
        )

    def _one(self, connection: sqlite3.Connection, name: str) -> ScheduleRecord | None:
        records = self._records(connection, "schedules", {"name": name, "after": "", "limit": 1})
        return records[0] if records else None

    def _records(self, connection: sqlite3.Connection, statement: str, values: dict[str, Any]) -> list[ScheduleRecord]:
        policy_of = self._policies_on(connection)
        rows: Iterable[Row] = connection.execute(sql(statement), values).fetchall()
        return [record for row in rows if (record := _record(row, policy_of)) is not None]


def _record(row: Row, policy_of: PolicyOf) -> ScheduleRecord | None:
    """One that cannot be read is left out, so that the others go on."""
    *facts, rev, next_at, last_at, paused_at, updated_at = row
    schedule = dict(zip(_COLUMNS, facts, strict=True))
    try:
        policy = policy_of(schedule.pop("policy_id"))
        tags = schedule.pop("tags")
        decoded = None if tags is None else msgspec.json.decode(tags, type=dict[str, str])
    except (StoreError, msgspec.MsgspecError) as problem:
        log.error("schedule %r cannot be read: %r", row[0], problem)
        return None
    return ScheduleRecord(
        schedule=Schedule(policy=policy, tags=decoded, **schedule),
        rev=rev,
        next_at=maybe_moment(next_at),
        last_at=maybe_moment(last_at),
        paused_at=maybe_moment(paused_at),
        updated_at=moment(updated_at),
    )


_COLUMNS = (
    "name", "kind", "payload", "policy_id", "cron", "timezone", "missed", "grace_seconds", "queue", "priority",
    "dedupe_key", "correlation_id", "submitted_by", "partition_key", "tags", "source",
)  # fmt: skip
"""The columns of `schedules.sql` up to the revision, in its order."""
