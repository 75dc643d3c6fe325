"""Several real schedulers on the store, through changes of daylight saving time and jumps of the database's clock."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.cron import due_times, parse_cron
from tenure.lifecycle.schedules import next_time
from tenure.seams import SYSTEM
from tenure.testing.clock import START
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.schedules import fired, put, schedule
from tenure.testing.driver import Driver
from tenure.workers.maintenance.scheduler import Scheduler


class SchedulerContract:
    """`Scheduler` on `store.schedules`."""

    @pytest.mark.parametrize(
        ("zone", "change"),
        [
            ("Europe/Berlin", "2030-03-31T01:00:00+00:00"),
            ("Europe/Berlin", "2030-10-27T01:00:00+00:00"),
            ("Australia/Lord_Howe", "2030-04-06T15:00:00+00:00"),
            ("Australia/Lord_Howe", "2030-10-05T15:30:00+00:00"),
        ],
    )
    async def test_over_a_change_of_clocks_three_schedulers_fire_each_due_time_once(
        self, drive: Driver, clock: DatabaseClock, zone: str, change: str
    ) -> None:
        begin = datetime.fromisoformat(change) - timedelta(hours=3)
        clock.advance((begin - START).total_seconds())
        crons = {"named": "15,45 1,2,3 * * *", "repeated": "*/20 * * * *"}
        for name, cron in crons.items():
            one = schedule(name, cron=cron, timezone=zone)
            await put(drive, one, next_at=next_time(one, now=begin, last_at=None, zone=time_zone(zone)))
        schedulers = [Scheduler(drive.store, SYSTEM, name=f"worker-{number}") for number in range(3)]
        # Advance in steps; now and then the database's clock is set back or jumps ahead.
        for minutes in (50, 50, 50, -70, 30, 60, -20, 10, 150, -100, 90, 70):
            clock.advance(minutes * 60)
            await asyncio.gather(*(scheduler.scan() for scheduler in schedulers))  # noqa: TID251 - the kit's own tasks
        now = await drive.store.now()
        for name, cron in crons.items():
            due = [*due_times(parse_cron(cron), time_zone(zone), after=begin, until=now)]
            assert due[0] < datetime.fromisoformat(change) < due[-1]
            assert await fired(drive, name) == [one.isoformat().replace("+00:00", "Z") for one in due]
