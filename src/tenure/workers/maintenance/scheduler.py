"""Fires schedules. Every worker does: each due time is fired by whoever comes first, and by nobody else.

The scheduler has no clock of its own. What is due, it reads with the database's time; how long to wait, it computes
from that; and the store makes sure of it all again when it fires.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from tenure.errors import InvalidInput, RequestIdReused, StoreUnavailable, TenureError
from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.schedules import (
    Firing,
    Schedule,
    ScheduleRecord,
    declaration_applies,
    firing,
    job_of,
    next_time,
    same_times,
)
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, EnqueueResult, ScheduleStore
from tenure.workers.reconnect import ReconnectBackoff

BATCH = 100
IDLE_FACTOR = 6.0
"""Where there is no schedule at all, one that comes is looked for this much more seldom."""
JITTER_SECONDS = 0.2
"""Schedulers that wait for the same moment wake up over this time, so that most find the work done already."""
TRIES_MAX = 20

log = logging.getLogger("tenure.workers")


class SchedulerStore(Protocol):
    """The part of a store that the scheduler holds."""

    @property
    def schedules(self) -> ScheduleStore: ...

    async def now(self) -> datetime: ...


class Scheduler:
    """Writes down the schedules that the code declares, then fires what is due, again and again."""

    def __init__(self, store: SchedulerStore, seams: Seams, *, name: str, declared: Sequence[Schedule] = ()) -> None:
        self._store, self._seams = store, seams
        self._declared = list(declared)
        self._actor = Actor(Role.CLIENT, name)
        self._warned: set[tuple[str, int]] = set()

    async def live(self, *, scan_seconds: float) -> None:
        """Go on until cancelled. A schedule that is put meanwhile is seen after `scan_seconds` at the latest, the very
        first one after six times as long."""
        outage = ReconnectBackoff(self._seams)
        while True:
            try:
                await self.declare()
                wait_seconds = await self.scan(scan_seconds=scan_seconds)
                outage.over()
            except TenureError as problem:
                log.warning("schedules could not be looked after and will be looked at again: %s", problem)
                await outage.pause()
            else:
                if wait_seconds > 0:
                    await self._seams.clock.sleep(wait_seconds + JITTER_SECONDS * self._seams.random.fraction())

    # Declaring.

    async def declare(self) -> None:
        """Write down what the code declares and nobody has changed at run time. Once: it is not repeated later."""
        while self._declared:
            try:
                await self._write_down(self._declared[0])
            except InvalidInput as problem:
                log.error("schedule %r cannot be written down: %s", self._declared[0].name, problem)
            del self._declared[0]

    async def _write_down(self, schedule: Schedule) -> None:
        for _ in range(TRIES_MAX):
            there = await self._store.schedules.get(schedule.name)
            if not declaration_applies(there, schedule):
                if there is not None and there.schedule.source == "operator":
                    log.info("schedule %r stays as it was changed at run time", schedule.name)
                return
            written = await self._store.schedules.put(
                schedule,
                next_at=await self._next_of(schedule, there),
                paused=there is not None and there.paused_at is not None,
                expected_rev=0 if there is None else there.rev,
                actor=self._actor,
            )
            if written is not None:
                log.info("schedule %r is written down: %s, %s", schedule.name, schedule.cron, schedule.timezone)
                return
        log.warning("schedule %r changes all the time, and is left as it is", schedule.name)

    async def _next_of(self, schedule: Schedule, there: ScheduleRecord | None) -> datetime | None:
        if there is not None and same_times(there.schedule, schedule):
            return there.next_at
        last_at = None if there is None else there.last_at
        return next_time(schedule, now=await self._store.now(), last_at=last_at, zone=time_zone(schedule.timezone))

    # Firing.

    async def scan(self, *, scan_seconds: float = 5.0) -> float:
        """Fire all that is due, once; how many seconds to wait before the next look."""
        after: tuple[datetime, str] | None = None
        waits = [scan_seconds]
        while True:
            soonest = await self._store.schedules.soonest(limit=BATCH, after=after)
            if after is None and not soonest.records:
                return IDLE_FACTOR * scan_seconds
            waiting = [(record.next_at, record) for record in soonest.records if record.next_at is not None]
            due = [record for next_at, record in waiting if next_at <= soonest.now]
            times = [await self._fire(record, soonest.now) for record in due]
            times += [next_at for next_at, _ in waiting[len(due) :]]
            waits += [(next_at - soonest.now).total_seconds() for next_at in times if next_at is not None]
            if len(due) < BATCH:
                return max(0.0, min(waits))
            after = (waiting[-1][0], due[-1].name)

    async def _fire(self, record: ScheduleRecord, now: datetime) -> datetime | None:
        """Fire one schedule; when it is due next. One that cannot be fired, or not here, holds no other up."""
        try:
            planned = firing(record, now=now, zone=time_zone(record.schedule.timezone))
            assert planned is not None, "what is paused, or not due, is not fired"
            added = await self._send(planned, record.schedule)
        except StoreUnavailable:
            raise
        except TenureError as problem:
            self._warn(record, problem)
            return None
        if added:
            log.debug("schedule %r: %d jobs for times up to %s", record.name, len(added), planned.until)
        # Where somebody else was first, they have most likely moved it to the same time.
        return planned.next_at

    async def _send(self, planned: Firing, schedule: Schedule) -> list[EnqueueResult] | None:
        """The jobs of a firing; None where somebody else was first.

        A due time whose request id was used for another body had its job under an earlier definition of this name, and
        gets no second one.
        """
        requests = [self._request(schedule, due) for due in planned.due]
        while True:
            try:
                return await self._store.schedules.fire(planned, requests)
            except RequestIdReused as used:
                kept = [request for request in requests if request.request_id != used.request_id]
                if len(kept) == len(requests):
                    raise
                log.warning("schedule %r: %s has its job already", schedule.name, used.request_id)
                requests = kept

    def _request(self, schedule: Schedule, due: datetime) -> EnqueueRequest:
        return EnqueueRequest(job_of(schedule, due, job_id=self._seams.random.job_id()), self._actor)

    def _warn(self, record: ScheduleRecord, problem: TenureError) -> None:
        """Once for each revision: it is met again with every scan."""
        if (record.name, record.rev) not in self._warned:
            self._warned.add((record.name, record.rev))
            log.error("schedule %r cannot be fired here: %s", record.name, problem)
