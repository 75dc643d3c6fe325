"""Schedules on PostgreSQL. Each call is one statement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from tenure.errors import InvalidInput, StoreError
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Policy
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.contract.schedules import Soonest
from tenure.stores.postgres.connections import ABOUT_A_ROW, Connections, fetch, is_unreadable
from tenure.stores.postgres.enqueue import added_of, enqueue_parameters, raise_refusal
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.schedule_validation import readable, validate_firing, validate_schedule
from tenure.stores.validation import validate_page

_ALWAYS = datetime(1, 1, 2, tzinfo=UTC)
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))

log = logging.getLogger("tenure.stores.postgres")


class PostgresSchedules:
    """The schedules of one store. Jobs that a firing enqueues wake workers."""

    def __init__(
        self, store: object, connections: Connections, policies: PostgresPolicies, wake: Callable[[set[str]], None]
    ) -> None:
        self._store, self._connections, self._policies, self._wake = store, connections, policies, wake

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        validate_schedule(schedule, next_at=next_at, expected_rev=expected_rev, actor=actor)
        require_no_open_block(self._store)
        values = {
            **{name: getattr(schedule, name) for name in _PLAIN},
            "policy_id": await self._policies.number(schedule.policy),
            "tags": None if schedule.tags is None else encode(dict(schedule.tags)),
            "paused": paused,
            "next_at": next_at,
            "rev": expected_rev,
            "actor": str(actor),
            "detail": encode({"name": schedule.name, "rev": expected_rev + 1}),
        }
        try:
            rows = await self._write("schedules/update" if expected_rev else "schedules/insert", values)
        except asyncpg.CheckViolationError as problem:
            raise InvalidInput("next_at", f"is {next_at}, and must be after the last due time") from problem
        records = await self._records(rows)
        return records[0] if records else None

    async def remove(self, name: str, *, actor: Actor) -> bool:
        require_no_open_block(self._store)
        values = {"name": name, "actor": str(actor), "detail": encode({"name": name})}
        return bool(await self._write("schedules/delete", values))

    async def _write(self, statement: str, values: dict[str, Any]) -> list[asyncpg.Record]:
        return await self._connections.write("store", lambda session: fetch(session, statement, values))

    async def get(self, name: str) -> ScheduleRecord | None:
        rows = await self._connections.fetch("schedules/select_page", {"name": name, "after": "", "limit": 1})
        records = await self._records(rows)
        return records[0] if records else None

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        validate_page(limit)
        rows = await self._connections.fetch(
            "schedules/select_page", {"name": None, "after": after or "", "limit": limit}
        )
        return await self._records(rows)

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        validate_page(limit)
        after_at, after_name = after or (_ALWAYS, "")
        values = {"after_at": after_at, "after_name": after_name, "limit": limit}
        rows = await self._connections.fetch("schedules/select_next", values)
        return Soonest(rows[0]["now"], await self._records(row for row in rows if row["name"] is not None))

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        validate_firing(firing, requests)
        require_no_open_block(self._store)
        numbers = [await self._policies.number(request.origin.policy) for request in requests]
        moved = {name: getattr(firing, name) for name in ("name", "rev", "until", "next_at")}
        try:
            rows = await self._connections.fetch("schedules/fire", {**enqueue_parameters(requests, numbers), **moved})
        except ABOUT_A_ROW as problem:
            raise StoreError(f"schedule {firing.name!r} cannot be fired: {problem}") from problem
        except asyncpg.PostgresError as problem:
            raise_refusal(problem)
            raise
        if not rows:
            return None
        answers = [row for row in rows if row["job_id"] is not None]
        found = await added_of(self._connections, self._policies, requests, answers)
        added = [one for one in found if one is not None]
        self._wake({one.job.queue for one in added if one.created})
        return added

    async def _records(self, rows: Iterable[asyncpg.Record]) -> list[ScheduleRecord]:
        found = [*rows]
        policies = await self._policies.of(found)
        return [record for row in found if (record := _record(row, policies)) is not None]


def _record(row: asyncpg.Record, policies: dict[int, Policy]) -> ScheduleRecord | None:
    """A schedule that cannot be decoded is left out, so that the others continue."""
    facts: dict[str, Any] = {name: row[name] for name in _PLAIN}
    try:
        tags = None if row["tags"] is None else msgspec.json.decode(row["tags"], type=dict[str, str])
        schedule = readable(Schedule(policy=policies[row["policy_id"]], tags=tags, **facts))
        times = {name: row[name] for name in ("next_at", "last_at", "paused_at", "updated_at")}
        if any(map(is_unreadable, times.values())):
            raise InvalidInput("times", "must be between the years 1 and 9999")
    except (KeyError, InvalidInput, msgspec.MsgspecError) as problem:
        log.error("schedule %r cannot be decoded: %r", row["name"], problem)
        return None
    return ScheduleRecord(schedule=schedule, rev=row["rev"], **times)
