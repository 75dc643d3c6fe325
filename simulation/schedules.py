"""Schedules in some of the runs: each due time leads to exactly one job, whatever faults occur."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from simulation.invariants import InvariantViolated
from simulation.random_streams import RandomStream
from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.cron import due_times, parse_cron
from tenure.lifecycle.records import Actor, Job, Policy, Role
from tenure.lifecycle.schedules import DUE_TAG, SCHEDULE_TAG, Missed, Schedule, next_time
from tenure.stores.contract import Store
from tenure.testing.clock import START

SHARE = 1 / 4
"""The share of runs with schedules."""
INTERVAL_SECONDS = (4, 9)
FATE = Actor(Role.CLIENT, "fate")
POLICY = Policy(lease_seconds=6.0)


class SimulatedSchedules:
    """The schedules of one run. The first catches up on every due time; the second skips some."""

    def __init__(self, chance: RandomStream) -> None:
        count = (1 + chance.happens(0.5)) * chance.happens(SHARE)
        seconds = [chance.whole(*INTERVAL_SECONDS) for _ in range(2)]
        ways: tuple[Missed, Missed] = ("all", "skip" if chance.happens(0.5) else "one")
        self._schedules = [_schedule(number, seconds[number], ways[number]) for number in range(count)]
        self._going = {schedule.name for schedule in self._schedules}

    async def begin(self, store: Store) -> None:
        for schedule in self._schedules:
            next_at = next_time(schedule, now=START, last_at=None, zone=time_zone(schedule.timezone))
            await store.schedules.put(schedule, next_at=next_at, paused=False, expected_rev=0, actor=FATE)

    async def caught_up(self, store: Store, until: datetime) -> bool:
        """Whether all due times until then are handled. A schedule that has come so far is paused: the run must end."""
        for name in sorted(self._going):
            record = await store.schedules.get(name)
            assert record is not None, "no schedule is removed in a run"
            if record.next_at is None or record.next_at > until:
                paused = await store.schedules.put(
                    record.schedule, next_at=record.next_at, paused=True, expected_rev=record.rev, actor=FATE
                )
                if paused is not None:
                    self._going.remove(name)
        return not self._going

    async def check(self, store: Store, jobs: list[Job], until: datetime) -> None:
        """Every due time that was handled has one job, or at most one if missed times may be skipped."""
        for schedule in self._schedules:
            record = await store.schedules.get(schedule.name)
            assert record is not None, "no schedule is removed in a run"
            reached = START if record.last_at is None else record.last_at
            when, zone = parse_cron(schedule.cron), time_zone(schedule.timezone)
            due = [_stamp(at) for at in due_times(when, zone, after=START, until=max(until, reached))]
            fired = Counter(
                (job.origin.tags or {})[DUE_TAG]
                for job in jobs
                if (job.origin.tags or {}).get(SCHEDULE_TAG) == schedule.name
            )
            twice = [stamp for stamp, times in fired.items() if times > 1]
            unknown = sorted(fired.keys() - set(due))
            missing = [stamp for stamp in due if stamp not in fired] if schedule.missed == "all" else []
            if twice or unknown or missing:
                raise InvariantViolated(
                    f"schedule {schedule.name}: fired twice {twice}, never due {unknown}, missed {missing}"
                )


def _schedule(number: int, seconds: int, missed: Missed) -> Schedule:
    return Schedule(
        name=f"tick-{number}",
        cron=f"every {seconds}s",
        kind="effect",
        payload='{"of":"tick"}',
        policy=POLICY,
        missed=missed,
        grace_seconds=2.0,
    )


def _stamp(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
