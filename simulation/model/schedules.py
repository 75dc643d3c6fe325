"""The model's schedules, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec

from tenure.lifecycle.records import Actor
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.contract.schedules import Soonest
from tenure.stores.schedule_validation import validate_firing, validate_next, validate_schedule
from tenure.stores.validation import validate_page
from tenure.testing.clock import ManualClock

Rows = dict[str, ScheduleRecord]
Add = Callable[[Sequence[EnqueueRequest]], Awaitable[list[EnqueueResult]]]


class ModelSchedules:
    """A view of the model's rows, which a transaction may replace."""

    def __init__(self, store: object, rows: Callable[[], Rows], clock: ManualClock, add: Add) -> None:
        self._store, self._rows_now, self._clock, self._add = store, rows, clock, add

    @property
    def _rows(self) -> Rows:
        return self._rows_now()

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        validate_schedule(schedule, next_at=next_at, expected_rev=expected_rev, actor=actor)
        require_no_open_block(self._store)
        there = self._rows.get(schedule.name)
        if (there.rev if there else 0) != expected_rev:
            return None
        last_at = None if there is None else there.last_at
        validate_next(next_at, last_at)
        now = self._clock.now()
        record = ScheduleRecord(
            schedule=schedule,
            rev=expected_rev + 1,
            next_at=next_at,
            last_at=last_at,
            paused_at=((there.paused_at if there else None) or now) if paused else None,
            updated_at=now,
        )
        self._rows[schedule.name] = record
        return record

    async def remove(self, name: str, *, actor: Actor) -> bool:
        require_no_open_block(self._store)
        return self._rows.pop(name, None) is not None

    async def get(self, name: str) -> ScheduleRecord | None:
        return self._rows.get(name)

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        validate_page(limit)
        return [self._rows[name] for name in sorted(self._rows) if name > (after or "")][:limit]

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        validate_page(limit)
        waiting = {
            (record.next_at, record.name): record
            for record in self._rows.values()
            if record.next_at is not None and record.paused_at is None
        }
        behind = [waiting[key] for key in sorted(waiting) if after is None or key > after]
        return Soonest(self._clock.now(), behind[:limit])

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        validate_firing(firing, requests)
        require_no_open_block(self._store)
        there = self._rows.get(firing.name)
        if there is None or there.rev != firing.rev or there.paused_at is not None or there.next_at is None:
            return None
        if not there.next_at <= firing.until <= self._clock.now():
            return None
        added = await self._add(requests)
        self._rows[firing.name] = msgspec.structs.replace(
            there, rev=there.rev + 1, last_at=firing.until, next_at=firing.next_at
        )
        return added
