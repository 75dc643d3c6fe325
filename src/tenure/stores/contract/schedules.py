"""The part of a store that keeps schedules, and lets each of their due times lead to jobs once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tenure.lifecycle.records import Actor
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord
from tenure.stores.contract.requests import EnqueueRequest, EnqueueResult


class Soonest(msgspec.Struct, frozen=True):
    """The schedules that are due first, in the order of their next time, and what time the database has."""

    now: datetime
    records: list[ScheduleRecord]


class FiringStore(Protocol):
    """The scheduler's part: it sees what is due, and moves it on. It cannot change what a schedule is."""

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        """Schedules that will be due, also those that are not yet; `after` is the (next_at, name) of an earlier one.
        Those that are paused, or that are never due again, are left out."""
        ...

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        """Move the schedule on and add the jobs, in one transaction.

        None, and nothing is written, unless the schedule has the firing's revision, is not paused, and the database's
        clock has reached the firing's last due time. Asked again after it was done, it is None.
        """
        ...


class ScheduleStore(FiringStore, Protocol):
    """The operator's part besides: what schedules there are. Every change but a firing is in the operator's log."""

    async def put(
        self, schedule: Schedule, *, next_at: datetime | None, paused: bool, expected_rev: int, actor: Actor
    ) -> ScheduleRecord | None:
        """Write the schedule where it has the expected revision, 0 for one that must be new; None where it has not.

        A schedule that was paused before keeps the time of that. `next_at` must be after its last due time.
        """
        ...

    async def remove(self, name: str, *, actor: Actor) -> bool:
        """Whether there was such a schedule. Its jobs stay."""
        ...

    async def get(self, name: str) -> ScheduleRecord | None: ...

    async def known(self, *, after: str | None = None, limit: int = 1000) -> list[ScheduleRecord]:
        """In the order of names, behind the given one."""
        ...
