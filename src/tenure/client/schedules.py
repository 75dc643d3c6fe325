"""An app's schedules: what is to be done again and again, declared in code, and looked after at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.client.job_function import Enqueuer, Prepared
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.jobs.time_zones import zone_of
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

__all__ = ["GRACE_SECONDS", "AppSchedules", "Call", "Missed", "Schedule", "ScheduleRecord", "schedule_of", "upcoming"]

TRIES_MAX = 50
PAGE = 500

Call = Prepared[Any] | Enqueuer[[], Any]
"""What a schedule enqueues: `send.request("ada")`, or a job that takes no arguments itself."""


def schedule_of(
    call: Call,
    cron: str,
    *,
    name: str | None,
    timezone: str = "UTC",
    missed: Missed = "one",
    grace_seconds: float = GRACE_SECONDS,
    source: Source,
) -> Schedule:
    """The schedule that enqueues this call, checked: a refusal names the field. It is named after its job's kind."""
    prepared = call if isinstance(call, Prepared) else call.request()
    if prepared.enqueue.delay_ms:
        raise InvalidInput("delay_seconds", "cannot be given: a schedule says itself when its jobs are due")
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
    return checked(schedule)


def checked(schedule: Schedule) -> Schedule:
    """The schedule, if every store could hold it and its time zone is known here."""
    nobody = Actor(Role.CLIENT, "nobody")
    validate_schedule(schedule, next_at=None, expected_rev=0, actor=nobody)
    zone_of(schedule.timezone)
    return msgspec.structs.replace(schedule, grace_seconds=float(schedule.grace_seconds))


def upcoming(schedule: Schedule, *, after: datetime, count: int) -> list[datetime]:
    """The next due times of a schedule, in its own time zone."""
    zone = zone_of(schedule.timezone)
    latest = datetime.max.replace(tzinfo=after.tzinfo)
    found = islice(due_times(parse_cron(schedule.cron), zone, after=after, until=latest), count)
    return [moment.astimezone(zone) for moment in found]


class AppSchedules:
    """Schedules at run time. A change holds for the whole fleet, and from the next look of its schedulers on.

    What is changed here stays when a worker starts whose code declares otherwise.
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
        """Write a schedule, or another definition of one. A pause stays; a due time that was fired never comes again.

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
        schedule = schedule_of(
            call,
            cron,
            name=name,
            timezone=timezone,
            missed=missed,
            grace_seconds=grace_seconds,
            source="operator",
        )
        return await self._write(schedule.name, lambda there: (schedule, _is_paused(there)))

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
        """Change some of what a schedule says; None leaves it as it is. `payload` is JSON text, and not compared with
        the job's function, which this program may not have."""
        given = {"cron": cron, "timezone": timezone, "missed": missed, "grace_seconds": grace_seconds}
        given |= {"payload": payload, "queue": queue, "priority": priority}
        facts = {field: value for field, value in given.items() if value is not None}

        def edited(there: ScheduleRecord | None) -> tuple[Schedule, bool]:
            before = self._found(name, there)
            return checked(msgspec.structs.replace(before.schedule, **facts, source="operator")), _is_paused(there)

        return await self._write(name, edited)

    async def pause(self, name: str) -> ScheduleRecord:
        """Fire it no more. Due times that come meanwhile are let go."""
        return await self._write(name, lambda there: (self._found(name, there).schedule, True))

    async def resume(self, name: str) -> ScheduleRecord:
        """Go on with the next due time from now."""
        return await self._write(name, lambda there: (self._found(name, there).schedule, False))

    async def remove(self, name: str) -> None:
        """Remove it; its jobs stay. One that the code declares comes back when a worker starts: pause it instead."""
        if not await (await self._store()).schedules.remove(name, actor=self._actor):
            self._found(name, None)

    async def get(self, name: str) -> ScheduleRecord:
        return self._found(name, await (await self._store()).schedules.get(name))

    async def list(self) -> Sequence[ScheduleRecord]:
        """All of them, in the order of their names."""
        schedules = (await self._store()).schedules
        found = page = await schedules.known(limit=PAGE)
        while len(page) == PAGE:
            page = await schedules.known(after=page[-1].name, limit=PAGE)
            found = [*found, *page]
        return found

    async def trigger(self, name: str) -> EnqueueResult:
        """A job of the schedule now, besides those of its due times, also when it is paused."""
        record = await self.get(name)
        origin = triggered_job_of(record.schedule, job_id=self._seams.random.job_id())
        [added] = await (await self._store()).enqueue([EnqueueRequest(origin, self._actor)])
        return added

    async def _write(
        self, name: str, decide: Callable[[ScheduleRecord | None], tuple[Schedule, bool]]
    ) -> ScheduleRecord:
        """Decide upon what is there, and again where somebody was faster: a firing, or another edit."""
        store = await self._store()
        for _ in range(TRIES_MAX):
            there = await store.schedules.get(name)
            schedule, paused = decide(there)
            if there is not None and (there.schedule, _is_paused(there)) == (schedule, paused):
                return there
            written = await store.schedules.put(
                schedule,
                next_at=await _next_at(store, there, schedule, paused=paused),
                paused=paused,
                expected_rev=0 if there is None else there.rev,
                actor=self._actor,
            )
            if written is not None:
                return written
        raise StoreUnavailable(f"schedule {name!r} was changed by others {TRIES_MAX} times in a row; try again")

    def _found(self, name: str, record: ScheduleRecord | None) -> ScheduleRecord:
        if record is None:
            raise InvalidInput(
                "schedule", f"there is no {name!r}; one that the code declares is written down when a worker starts"
            )
        return record


async def _next_at(store: Store, there: ScheduleRecord | None, schedule: Schedule, *, paused: bool) -> datetime | None:
    goes_on = there is not None and same_times(there.schedule, schedule) and (paused or not _is_paused(there))
    if there is not None and goes_on:
        return there.next_at
    last_at = None if there is None else there.last_at
    found = next_time(schedule, now=await store.now(), last_at=last_at, zone=zone_of(schedule.timezone))
    if found is None:
        raise InvalidInput("cron", f"{schedule.cron!r} names a time that never comes")
    return found


def _is_paused(record: ScheduleRecord | None) -> bool:
    return record is not None and record.paused_at is not None
