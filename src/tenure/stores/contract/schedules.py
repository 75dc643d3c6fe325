"""The part of a store that keeps schedules, and fires each of their due times once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tenure.lifecycle.records import Actor
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.contract.requests import EnqueueRequest, EnqueueResult


class Soonest(msgspec.Struct, frozen=True):
    """The schedules that are due first, in the order of their next due time, and the time of the database's clock."""

    now: datetime
    records: list[ScheduleRecord]


class FiringStore(Protocol):
    """The scheduler's part: it reads due schedules and fires them. It cannot change the definition of a schedule."""

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        """The schedules with a next due time, the soonest first; `after` is the (next_at, name) of an earlier one.
        Paused schedules are left out."""
        ...

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        """Advance the schedule and enqueue the jobs, in one transaction.

        None, and nothing is written, unless the schedule has the firing's revision, is not paused, and the database's
        clock has reached the firing's last due time. So a repeated firing returns None.
        """
        ...


class ScheduleStore(FiringStore, Protocol):
    """The operator's part: it also writes and removes schedules. The operator log records every change but a firing."""

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        """Write the schedule if it has the expected revision, 0 for a new one. None: it has another revision.

        A schedule that was paused before keeps the time of its pause. `next_at` must be after its last due time.
        """
        ...

    async def remove(self, name: str, *, actor: Actor) -> bool:
        """Remove the schedule; its jobs stay. False: there is none of this name."""
        ...

    async def get(self, name: str) -> ScheduleRecord | None: ...

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        """A page of schedules in the order of names, after the given one."""
        ...
