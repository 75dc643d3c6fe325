"""Schedules: declared in code, and administered at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.client.job_function import Enqueuer, PreparedCall
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.cron import due_times, parse_cron
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.schedules import (
    GRACE_SECONDS,
    Missed,
    Schedule,
    ScheduleRecord,
    Source,
    next_time,
    same_times,
    template_of,
    triggered_job_of,
)
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.stores.schedule_validation import validate_schedule

if TYPE_CHECKING:
    from tenure.stores import Store

__all__ = ["GRACE_SECONDS", "AppSchedules", "Call", "Missed", "Schedule", "ScheduleRecord", "make_schedule", "upcoming"]

TRIES_MAX = 50
PAGE = 500

Call = PreparedCall[Any] | Enqueuer[[], Any]
"""The call that a schedule enqueues: `send.request("ada")`, or a job without arguments."""


def make_schedule(
    call: Call,
    cron: str,
    *,
    name: str | None,
    timezone: str = "UTC",
    missed: Missed = "one",
    grace_seconds: float = GRACE_SECONDS,
    source: Source,
) -> Schedule:
    """Return a validated schedule of this call, by default named after the job's kind. InvalidInput names the field."""
    prepared = call if isinstance(call, PreparedCall) else call.request()
    for option, given in (("delay_seconds", prepared.enqueue.delay_ms), ("at", prepared.enqueue.due_at)):
        if given:
            raise InvalidInput(option, "cannot be set on a schedule: its jobs are due at once; remove it")
    origin = prepared.enqueue.origin
    schedule = template_of(
        origin,
        name=origin.kind if name is None else name,
        cron=cron,
        timezone=timezone,
        missed=missed,
        grace_seconds=grace_seconds,
        source=source,
    )
    return validated(schedule)


def validated(schedule: Schedule) -> Schedule:
    """Return the schedule, or raise InvalidInput if a store would refuse it or its time zone is unknown."""
    validate_schedule(schedule, next_at=None, expected_rev=0, actor=Actor(Role.CLIENT, "validation"))
    time_zone(schedule.timezone)
    return msgspec.structs.replace(schedule, grace_seconds=float(schedule.grace_seconds))


def upcoming(schedule: Schedule, *, after: datetime, count: int) -> list[datetime]:
    """Return the next due times of a schedule, in its time zone."""
    zone = time_zone(schedule.timezone)
    latest = datetime.max.replace(tzinfo=after.tzinfo)
    found = islice(due_times(parse_cron(schedule.cron), zone, after=after, until=latest), count)
    return [at.astimezone(zone) for at in found]


class AppSchedules:
    """Schedules at run time. A change applies to all workers from the next scan of their schedulers on.

    It is kept when a worker starts whose code declares the schedule differently.
    """

    def __init__(self, store: Callable[[], Awaitable[Store]], actor: Actor, *, seams: Seams = SYSTEM) -> None:
        self._store, self._actor, self._seams = store, actor, seams

    async def put(
        self,
        call: Call,
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        missed: Missed = "one",
        grace_seconds: float = GRACE_SECONDS,
    ) -> ScheduleRecord:
        """Create or replace a schedule. A pause is kept, and a due time that was fired is not fired again.

        >>> import asyncio
        >>> from tenure import App
        >>> app = App("sqlite://:memory:")
        >>> @app.job()
        ... def greet(name: str) -> str:
        ...     return f"hello, {name}"
        >>> async def nightly() -> str:
        ...     async with app:
        ...         return (await app.schedules.put(greet.request("Ada"), "30 2 * * *", name="nightly")).schedule.cron
        >>> asyncio.run(nightly())
        '30 2 * * *'
        """
        schedule = make_schedule(
            call,
            cron,
            name=name,
            timezone=timezone,
            missed=missed,
            grace_seconds=grace_seconds,
            source="operator",
        )
        return await self._write(schedule.name, lambda record: (schedule, _is_paused(record)))

    async def edit(
        self,
        name: str,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        missed: Missed | None = None,
        grace_seconds: float | None = None,
        payload: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> ScheduleRecord:
        """Change fields of a schedule; None leaves a field as it is. `payload` is JSON text, and not validated against
        the job's function, which this program may not contain."""
        given = {"cron": cron, "timezone": timezone, "missed": missed, "grace_seconds": grace_seconds}
        given |= {"payload": payload, "queue": queue, "priority": priority}
        changes = {field: value for field, value in given.items() if value is not None}

        def edited(record: ScheduleRecord | None) -> tuple[Schedule, bool]:
            before = self._existing(name, record)
            return validated(msgspec.structs.replace(before.schedule, **changes, source="operator")), _is_paused(record)

        return await self._write(name, edited)

    async def pause(self, name: str) -> ScheduleRecord:
        """Stop firing a schedule. Due times during the pause are skipped."""
        return await self._write(name, lambda record: (self._existing(name, record).schedule, True))

    async def resume(self, name: str) -> ScheduleRecord:
        """Fire again, from the next due time on."""
        return await self._write(name, lambda record: (self._existing(name, record).schedule, False))

    async def remove(self, name: str) -> None:
        """Remove a schedule; its jobs stay. A worker whose code declares it writes it again: pause it instead."""
        if not await (await self._store()).schedules.remove(name, actor=self._actor):
            self._existing(name, None)

    async def get(self, name: str) -> ScheduleRecord:
        return self._existing(name, await (await self._store()).schedules.get(name))

    async def list(self) -> Sequence[ScheduleRecord]:
        """Return all schedules, in the order of their names."""
        schedules = (await self._store()).schedules
        found = page = await schedules.known(limit=PAGE)
        while len(page) == PAGE:
            page = await schedules.known(after=page[-1].name, limit=PAGE)
            found = [*found, *page]
        return found

    async def trigger(self, name: str) -> EnqueueResult:
        """Enqueue a job of the schedule now, besides those of its due times, also during a pause."""
        record = await self.get(name)
        origin = triggered_job_of(record.schedule, job_id=self._seams.random.job_id())
        [result] = await (await self._store()).enqueue([EnqueueRequest(origin, self._actor)])
        return result

    async def _write(
        self, name: str, decide: Callable[[ScheduleRecord | None], tuple[Schedule, bool]]
    ) -> ScheduleRecord:
        """Decide on the current record, and write. After a concurrent firing or edit, decide again."""
        store = await self._store()
        for _ in range(TRIES_MAX):
            record = await store.schedules.get(name)
            schedule, paused = decide(record)
            if record is not None and (record.schedule, _is_paused(record)) == (schedule, paused):
                return record
            written = await store.schedules.put(
                schedule,
                next_at=await _next_at(store, record, schedule, paused=paused),
                paused=paused,
                expected_rev=0 if record is None else record.rev,
                actor=self._actor,
            )
            if written is not None:
                return written
        raise StoreUnavailable(f"schedule {name!r} changed concurrently {TRIES_MAX} times; try again")

    def _existing(self, name: str, record: ScheduleRecord | None) -> ScheduleRecord:
        if record is None:
            problem = f"{name!r} does not exist"
            raise InvalidInput(
                "schedule", f"{problem}; a schedule that the code declares is written when a worker starts"
            )
        return record


async def _next_at(store: Store, record: ScheduleRecord | None, schedule: Schedule, *, paused: bool) -> datetime | None:
    resumed = _is_paused(record) and not paused
    if record is not None and same_times(record.schedule, schedule) and not resumed:
        return record.next_at
    last_at = None if record is None else record.last_at
    found = next_time(schedule, now=await store.now(), last_at=last_at, zone=time_zone(schedule.timezone))
    if found is None:
        raise InvalidInput("cron", f"{schedule.cron!r} is never due; correct the expression")
    return found


def _is_paused(record: ScheduleRecord | None) -> bool:
    return record is not None and record.paused_at is not None
