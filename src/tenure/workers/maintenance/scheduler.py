"""Fires schedules. Every worker does, and each due time is fired by exactly one of them.

The scheduler uses the database's time: it reads what is due with it and computes its waits from it. The store checks
the due time again when a schedule is fired.
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
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

BATCH = 100
IDLE_FACTOR = 6.0
"""While no schedule exists, scans are this much less frequent."""
JITTER_SECONDS = 0.2
"""Schedulers that wait for the same due time wake up spread over this time, so that most find it fired."""
TRIES_MAX = 20

log = logging.getLogger("tenure.workers")


class SchedulerStore(Protocol):
    """The part of a store that the scheduler uses."""

    @property
    def schedules(self) -> ScheduleStore: ...

    async def now(self) -> datetime: ...


class Scheduler:
    """Stores the schedules that the code declares, then fires those that are due."""

    def __init__(
        self,
        store: SchedulerStore,
        seams: Seams,
        *,
        name: str,
        declared: Sequence[Schedule] = (),
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._store, self._seams, self._availability = store, seams, availability
        self._declared = list(declared)
        self._actor = Actor(Role.CLIENT, name)
        self._logged: set[tuple[str, int]] = set()

    async def run(self, *, scan_seconds: float) -> None:
        """Fire until cancelled. A schedule that is added meanwhile is seen after `scan_seconds` at the latest, the
        first one of all after six times as long."""
        backoff = ReconnectBackoff(self._seams, self._availability)
        while True:
            try:
                await self.declare()
                wait_seconds = await self.scan(scan_seconds=scan_seconds)
                backoff.reset()
            except TenureError as error:
                await self._seams.clock.sleep(backoff.failed("schedule scan", error))
            else:
                if wait_seconds > 0:
                    await self._seams.clock.sleep(wait_seconds + JITTER_SECONDS * self._seams.random.fraction())

    # Declaring.

    async def declare(self) -> None:
        """Store what the code declares, once, except where an operator has changed a schedule at run time."""
        while self._declared:
            try:
                await self._store_declared(self._declared[0])
            except InvalidInput as error:
                log.error("schedule %r not stored: %s", self._declared[0].name, error)
            del self._declared[0]

    async def _store_declared(self, schedule: Schedule) -> None:
        for _ in range(TRIES_MAX):
            current = await self._store.schedules.get(schedule.name)
            if not declaration_applies(current, schedule):
                if current is not None and current.schedule.source == "operator":
                    log.info("schedule %r kept as it was changed at run time", schedule.name)
                return
            written = await self._store.schedules.put(
                schedule,
                next_at=await self._next_at(schedule, current),
                paused=current is not None and current.paused_at is not None,
                expected_rev=0 if current is None else current.rev,
                actor=self._actor,
            )
            if written is not None:
                log.info("schedule %r stored: %s, %s", schedule.name, schedule.cron, schedule.timezone)
                return
        log.warning("schedule %r not stored: it was changed %d times meanwhile", schedule.name, TRIES_MAX)

    async def _next_at(self, schedule: Schedule, current: ScheduleRecord | None) -> datetime | None:
        if current is not None and same_times(current.schedule, schedule):
            return current.next_at
        last_at = None if current is None else current.last_at
        return next_time(schedule, now=await self._store.now(), last_at=last_at, zone=time_zone(schedule.timezone))

    # Firing.

    async def scan(self, *, scan_seconds: float = 5.0) -> float:
        """Fire all schedules that are due, once. Returns the seconds to wait before the next scan."""
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
        """Fire one schedule. Returns when it is due next. An error is logged, so that it delays no other schedule."""
        try:
            planned = firing(record, now=now, zone=time_zone(record.schedule.timezone))
            assert planned is not None, "a paused schedule is never due"
            added = await self._send(planned, record.schedule)
        except StoreUnavailable:
            raise
        except TenureError as error:
            self._log_once(record, error)
            return None
        if added:
            log.debug("schedule %r fired: %d jobs for due times up to %s", record.name, len(added), planned.until)
        # Another scheduler that fired it first has most likely set the same next time.
        return planned.next_at

    async def _send(self, planned: Firing, schedule: Schedule) -> list[EnqueueResult] | None:
        """The jobs of a firing; None if another scheduler fired it first.

        A due time whose request id was used for another body has its job, enqueued under an earlier definition of this
        schedule, and gets no second one.
        """
        requests = [self._request(schedule, due) for due in planned.due]
        while True:
            try:
                return await self._store.schedules.fire(planned, requests)
            except RequestIdReused as error:
                kept = [request for request in requests if request.request_id != error.request_id]
                if len(kept) == len(requests):
                    raise
                log.warning("schedule %r: due time %s already has its job", schedule.name, error.request_id)
                requests = kept

    def _request(self, schedule: Schedule, due: datetime) -> EnqueueRequest:
        return EnqueueRequest(job_of(schedule, due, job_id=self._seams.random.job_id()), self._actor)

    def _log_once(self, record: ScheduleRecord, error: TenureError) -> None:
        """Log once for each revision, since every scan meets the error again."""
        if (record.name, record.rev) not in self._logged:
            self._logged.add((record.name, record.rev))
            log.error("schedule %r not fired: %s", record.name, error)
