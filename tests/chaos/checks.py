"""Checks at the end of every chaos test, by the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.verify import problems_of
from tenure.stores.contract import Store
from tenure.testing.driver import Driver
from tenure.testing.store_check import all_jobs, check_job, whole_tail
from tests.chaos.processes import until
from tests.support.databases import Database

OWNERS = ("runner", "pool")


def prepare_effects(database: Database) -> None:
    """The test's own table, in which the same effect can be inserted twice."""
    database.rows("create table effects (job_id text not null, attempt integer not null)")


def effects(database: Database) -> Counter[str]:
    """How often each job's effect was applied."""
    return Counter(job_id for (job_id,) in database.rows("select job_id from effects"))


async def queue(
    store: Store, kind: str, count: int = 1, *, policy: dict[str, object], to: str = "default", **payload: object
) -> list[UUID]:
    """Enqueue jobs in a queue; returns their ids."""
    drive = Driver(store)
    enqueues = [drive.enqueue(kind, policy=policy, payload=encode(payload), queue=to) for _ in range(count)]
    return [one.job.id for one in await store.enqueue(enqueues)]


async def ended(store: Store, ids: Sequence[UUID], *, seconds: float = 60.0) -> list[Job]:
    """The jobs, once none of them is live."""

    async def all_ended() -> bool:
        jobs = await store.read(ids)
        return len(jobs) == len(ids) and not any(job.live for job in jobs.values())

    await until(all_ended, f"{len(ids)} jobs have ended", seconds=seconds)
    jobs = await store.read(ids)
    return [jobs[job_id] for job_id in ids]


async def history(store: Store, job_id: UUID) -> list[Event]:
    return (await store.history([job_id]))[job_id]


async def check_everything(store: Store) -> None:
    """Every job's record agrees with its log, no leases overlap, and no event was written under another worker's
    lease."""
    jobs = await all_jobs(store)
    tail_events: dict[UUID, list[Event]] = {}
    for event in await whole_tail(store, expected=sum(job.rev for job in jobs)):
        tail_events.setdefault(event.job_id, []).append(event)
    assert tail_events.keys() == {job.id for job in jobs}
    for job in jobs:
        events = tail_events[job.id]
        check_job(job, events)
        assert problems_of(job, events) == []
        check_owners(events)


async def check_applied_once(store: Store, database: Database, ids: Iterable[UUID]) -> None:
    """All of them succeeded, and each effect was applied once."""
    await check_everything(store)
    jobs = await store.read(list(ids))
    assert {job.status for job in jobs.values()} == {SUCCEEDED}
    assert effects(database) == Counter({str(job_id): 1 for job_id in jobs})


def check_owners(events: Sequence[Event]) -> None:
    """Events under a lease were written by the worker that claimed it."""
    owner = ""
    for event in events:
        if event.type is EventType.CLAIMED:
            owner = event.owner
        role = event.actor.partition(":")[0]
        assert role not in OWNERS or event.owner == owner, (
            f"job {event.job_id}: {event.type} of revision {event.rev} was written by {event.owner} under attempt "
            f"{event.attempt}, which is {owner}'s"
        )


def of_type(events: Iterable[Event], *types: EventType) -> list[Event]:
    return [event for event in events if event.type in types]


def lease_end(events: Sequence[Event], *, attempt: int) -> datetime:
    """When the attempt's lease expired, by the last event that set it."""
    set_by = [
        event.until_at
        for event in of_type(events, EventType.CLAIMED, EventType.HEARTBEAT)
        if event.attempt == attempt and event.until_at is not None
    ]
    return set_by[-1]


def check_recovered_in_time(events: Sequence[Event], *, scan_seconds: float, slack_seconds: float) -> None:
    """Each loss was recorded at most one scan after its lease had expired. Scans have a jitter of a quarter, and a busy
    machine is late by some slack. All times are those of the log."""
    for stall in of_type(events, EventType.STALLED):
        late = stall.at - lease_end(events, attempt=stall.attempt)
        assert late <= timedelta(seconds=1.25 * scan_seconds + slack_seconds), f"{stall.id} came {late} late"
