"""Schedules: their records, and that each due time leads to its jobs once, however often it is fired."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tenure.errors import DedupeKeyConflict, InvalidInput, RequestIdReused
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Firing, Schedule, ScheduleRecord, firing, job_of
from tenure.stores.contract import EnqueueRequest, EnqueueResult, JobFilter
from tenure.testing.clock import START
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, OPERATOR, Driver

MINUTE = timedelta(minutes=1)
POLICY = Policy(lease_seconds=7.0, max_attempts=3)


def schedule(name: str = "morning", **facts: Any) -> Schedule:
    defaults: dict[str, Any] = {
        "cron": "every 1m",
        "kind": "mail",
        "payload": '{"to":"ada"}',
        "policy": POLICY,
        "missed": "all",
    }
    return Schedule(name=name, **{**defaults, **facts})


def full(name: str = "full") -> Schedule:
    """A schedule with every field set."""
    return schedule(
        name,
        cron="0 9 * * 1-5",
        timezone="Europe/Berlin",
        missed="skip",
        grace_seconds=12.5,
        queue="post",
        priority=-3,
        dedupe_key="one at a time",
        correlation_id="order-7",
        submitted_by="ada",
        partition_key="tenant",
        tags={"a": "b", "ü": "é"},
        source="code",
    )


async def put(drive: Driver, one: Schedule, **facts: Any) -> ScheduleRecord:
    """Write a schedule that is due one minute after the clock's start, unless given otherwise."""
    defaults: dict[str, Any] = {"next_at": START + MINUTE, "paused": False, "expected_rev": 0, "actor": OPERATOR}
    record = await drive.store.schedules.put(one, **{**defaults, **facts})
    assert record is not None
    return record


def planned(record: ScheduleRecord, now: datetime) -> Firing:
    plan = firing(record, now=now, zone=UTC)
    assert plan is not None
    return plan


def requests(drive: Driver, record: ScheduleRecord, plan: Firing) -> list[EnqueueRequest]:
    return [EnqueueRequest(job_of(record.schedule, due, job_id=drive.random.job_id()), CLIENT) for due in plan.due]


async def fire(drive: Driver, record: ScheduleRecord) -> list[EnqueueResult] | None:
    """Fire the schedule as a scheduler does that has read this record."""
    plan = planned(record, await drive.store.now())
    return await drive.store.schedules.fire(plan, requests(drive, record, plan))


async def fired(drive: Driver, name: str = "morning") -> list[str]:
    """The due times that have jobs, once for each."""
    page = await drive.store.find(JobFilter(tags={"tenure.schedule": name}), limit=1000)
    return sorted((job.origin.tags or {})["tenure.due"] for job in page.jobs)


class ScheduleContract:
    """`store.schedules`: put, remove, get, known, soonest and fire."""

    # Records.

    async def test_a_schedule_is_read_back_unchanged(self, drive: Driver) -> None:
        now = await drive.store.now()
        record = await put(drive, full(), next_at=START + 9 * MINUTE)
        assert record == ScheduleRecord(
            schedule=full(), rev=1, next_at=START + 9 * MINUTE, last_at=None, paused_at=None, updated_at=now
        )
        assert await drive.store.schedules.get("full") == record
        assert await drive.store.schedules.known() == [record]

    async def test_schedules_are_listed_by_name_in_pages(self, drive: Driver) -> None:
        for name in ("b", "a", "ü", "B", "c"):
            await put(drive, schedule(name))
        seen = await drive.store.schedules.known(limit=3)
        rest = await drive.store.schedules.known(after=seen[-1].name, limit=3)
        assert [one.name for one in (*seen, *rest)] == ["B", "a", "b", "c", "ü"]
        assert await drive.store.schedules.get("nobody") is None

    async def test_a_schedule_is_changed_only_at_its_current_revision(self, drive: Driver) -> None:
        first = await put(drive, schedule())
        assert await drive.store.schedules.put(
            schedule(), next_at=None, paused=False, expected_rev=0, actor=OPERATOR
        ) is None  # fmt: skip
        changed = await put(drive, schedule(cron="every 5m"), next_at=START + 5 * MINUTE, expected_rev=first.rev)
        assert (changed.rev, changed.schedule.cron, changed.next_at) == (2, "every 5m", START + 5 * MINUTE)
        for rev in (0, 1, 3):
            late = await drive.store.schedules.put(
                schedule(cron="@daily"), next_at=None, paused=True, expected_rev=rev, actor=OPERATOR
            )
            assert late is None
        assert await drive.store.schedules.get("morning") == changed
        assert (
            await drive.store.schedules.put(schedule("new"), next_at=None, paused=False, expected_rev=1, actor=OPERATOR)
            is None
        )
        assert await drive.store.schedules.get("new") is None

    async def test_removing_a_schedule_keeps_its_jobs(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(60)
        await fire(drive, record)
        assert await drive.store.schedules.remove("morning", actor=OPERATOR) is True
        assert await drive.store.schedules.remove("morning", actor=OPERATOR) is False
        assert await drive.store.schedules.known() == []
        assert await fired(drive) == ["2030-01-01T00:01:00Z"]

    async def test_a_pause_keeps_its_timestamp(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(10)
        paused = await put(drive, schedule(), paused=True, expected_rev=record.rev)
        assert paused.paused_at == START + timedelta(seconds=10)
        clock.advance(10)
        again = await put(drive, schedule(), paused=True, expected_rev=paused.rev)
        assert again.paused_at == paused.paused_at
        assert again.updated_at == START + timedelta(seconds=20)
        resumed = await put(drive, schedule(), paused=False, expected_rev=again.rev)
        assert resumed.paused_at is None

    @pytest.mark.parametrize(
        "facts",
        [
            {"name": ""},
            {"name": " padded"},
            {"cron": "61 * * * *"},
            {"cron": ""},
            {"timezone": ""},
            {"timezone": "a\x00"},
            {"missed": "some"},
            {"source": "nobody"},
            {"grace_seconds": -1.0},
            {"grace_seconds": float("nan")},
            {"kind": ""},
            {"payload": "{"},
            {"priority": 40_000},
            {"queue": "\n"},
            {"tags": {"a": 1}},
            {"dedupe_key": ""},
            {"partition_key": "x" * 501},
        ],
    )
    async def test_an_invalid_schedule_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        wrong = msgspec.structs.replace(schedule(), **facts)
        with pytest.raises(InvalidInput):
            await drive.store.schedules.put(wrong, next_at=None, paused=False, expected_rev=0, actor=OPERATOR)
        assert await drive.store.schedules.known() == []

    # Due schedules.

    async def test_due_schedules_are_in_the_order_of_their_due_times_with_the_databases_time(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        for name, minutes in (("late", 9), ("b", 2), ("a", 2), ("soon", 1)):
            await put(drive, schedule(name), next_at=START + minutes * MINUTE)
        await put(drive, schedule("never"), next_at=None)
        await put(drive, schedule("paused"), paused=True)
        clock.advance(90)
        soonest = await drive.store.schedules.soonest(limit=3)
        assert soonest.now == START + timedelta(seconds=90)
        assert [one.name for one in soonest.records] == ["soon", "a", "b"]
        after = (START + 2 * MINUTE, "a")
        behind = await drive.store.schedules.soonest(limit=3, after=after)
        assert [one.name for one in behind.records] == ["b", "late"]

    async def test_without_schedules_only_the_databases_time_is_returned(self, drive: Driver) -> None:
        soonest = await drive.store.schedules.soonest(limit=10)
        assert (soonest.now, soonest.records) == (await drive.store.now(), [])

    # Firing.

    async def test_a_due_time_leads_to_a_job_that_names_it(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, full(), next_at=START + MINUTE)
        clock.advance(61)
        [added] = await fire(drive, record) or []
        job = added.job
        assert added.created
        assert (await drive.job(job.id)).origin == job.origin
        assert job.origin.tags == {
            "a": "b", "ü": "é", "tenure.schedule": "full", "tenure.due": "2030-01-01T00:01:00Z"
        }  # fmt: skip
        assert job.origin.request_id == "cron:full:2030-01-01T00:01:00Z"
        expected = {"queue": "post", "priority": -3, "dedupe_key": "one at a time", "correlation_id": "order-7"}
        expected |= {"submitted_by": "ada", "partition_key": "tenant", "payload": '{"to":"ada"}', "policy": POLICY}
        assert {name: getattr(job.origin, name) for name in expected} == expected
        moved = await drive.store.schedules.get("full")
        assert moved is not None
        assert (moved.rev, moved.last_at, moved.updated_at) == (2, START + MINUTE, record.updated_at)
        assert moved.next_at is not None
        assert moved.next_at > START + MINUTE
        assert moved.schedule == full()

    async def test_a_repeated_firing_makes_no_second_job(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        assert len(await fire(drive, record) or []) == 1
        assert await fire(drive, record) is None
        assert await fired(drive) == ["2030-01-01T00:01:00Z"]

    async def test_of_concurrent_firings_of_one_due_time_one_makes_the_job(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        plan = planned(record, await drive.store.now())
        asked = [drive.store.schedules.fire(plan, requests(drive, record, plan)) for _ in range(16)]
        answers = await asyncio.gather(*asked)  # noqa: TID251 - the kit's own tasks
        assert sorted(len(answer) if answer is not None else 0 for answer in answers) == [0] * 15 + [1]
        assert await fired(drive) == ["2030-01-01T00:01:00Z"]

    async def test_several_due_times_are_fired_together_or_not_at_all(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule())
        clock.advance(185)
        assert len(await fire(drive, record) or []) == 3
        assert await fired(drive) == [f"2030-01-01T00:0{minute}:00Z" for minute in (1, 2, 3)]
        assert (await drive.store.schedules.soonest(limit=1)).records[0].next_at == START + 4 * MINUTE

    async def test_a_schedule_that_is_not_due_by_the_databases_clock_is_not_fired(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule())
        plan = planned(record, START + MINUTE)
        clock.advance(59.9)
        assert await drive.store.schedules.fire(plan, requests(drive, record, plan)) is None
        clock.advance(0.1)
        assert len(await drive.store.schedules.fire(plan, requests(drive, record, plan)) or []) == 1
        assert await fired(drive) == ["2030-01-01T00:01:00Z"]

    async def test_a_paused_removed_or_changed_schedule_is_not_fired(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        plan = planned(record, await drive.store.now())
        paused = await put(drive, schedule(), paused=True, expected_rev=record.rev)
        at_its_rev = msgspec.structs.replace(plan, rev=paused.rev)
        assert await drive.store.schedules.fire(at_its_rev, requests(drive, record, plan)) is None
        await put(drive, schedule(payload="{}"), expected_rev=paused.rev)
        assert await drive.store.schedules.fire(plan, requests(drive, record, plan)) is None
        await drive.store.schedules.remove("morning", actor=OPERATOR)
        assert await drive.store.schedules.fire(plan, requests(drive, record, plan)) is None
        assert await fired(drive) == []

    async def test_a_due_time_can_be_skipped_without_a_job(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule(missed="skip", grace_seconds=5.0))
        clock.advance(100)
        assert await fire(drive, record) == []
        moved = await drive.store.schedules.get("morning")
        assert moved is not None
        assert (moved.last_at, moved.next_at) == (START + MINUTE, START + 2 * MINUTE)
        assert await fired(drive) == []

    async def test_a_schedule_without_a_next_due_time_ends(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(60)
        plan = msgspec.structs.replace(planned(record, await drive.store.now()), next_at=None)
        assert len(await drive.store.schedules.fire(plan, requests(drive, record, plan)) or []) == 1
        assert (await drive.store.schedules.soonest(limit=1)).records == []
        ended = await drive.store.schedules.get("morning")
        assert ended is not None
        assert (ended.next_at, ended.last_at) == (None, START + MINUTE)

    async def test_a_clock_that_is_set_back_repeats_no_due_time(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(125)
        await fire(drive, record)
        clock.advance(-100)
        moved = await drive.store.schedules.get("morning")
        assert moved is not None
        assert moved.next_at == START + 3 * MINUTE
        assert firing(moved, now=await drive.store.now(), zone=UTC) is None
        clock.advance(155)
        await fire(drive, moved)
        assert await fired(drive) == [f"2030-01-01T00:0{minute}:00Z" for minute in (1, 2, 3)]

    async def test_a_changed_schedule_repeats_no_due_time(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(125)
        await fire(drive, record)
        for next_at in (START + MINUTE, START + 2 * MINUTE):
            with pytest.raises(InvalidInput, match="next_at"):
                await put(drive, schedule(payload="{}"), next_at=next_at, expected_rev=2)
        moved = await drive.store.schedules.get("morning")
        assert moved is not None
        assert (moved.rev, moved.schedule) == (2, schedule())

    async def test_a_due_time_that_fired_under_another_definition_is_refused(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule())
        clock.advance(60)
        await fire(drive, record)
        await drive.store.schedules.remove("morning", actor=OPERATOR)
        other = await put(drive, schedule(payload="{}"))
        with pytest.raises(RequestIdReused) as refusal:
            await fire(drive, other)
        assert refusal.value.request_id == "cron:morning:2030-01-01T00:01:00Z"
        assert await drive.store.schedules.get("morning") == other
        assert len(await fired(drive)) == 1

    async def test_with_a_dedupe_key_a_firing_returns_the_live_job(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule(dedupe_key="alone"))
        clock.advance(60)
        [first] = await fire(drive, record) or []
        clock.advance(60)
        moved = await drive.store.schedules.get("morning")
        assert moved is not None
        [second] = await fire(drive, moved) or []
        assert (second.created, second.job.id) == (False, first.job.id)
        assert await fired(drive) == ["2030-01-01T00:01:00Z"]

    @pytest.mark.requirement("LC-11")
    async def test_a_dedupe_key_of_another_kind_does_not_advance_the_schedule(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule(dedupe_key="alone"))
        other = await drive.add("another", dedupe_key="alone")
        clock.advance(60)
        with pytest.raises(DedupeKeyConflict, match=str(other.id)):
            await fire(drive, record)
        assert await drive.store.schedules.get("morning") == record

    async def test_a_firing_before_the_last_one_is_refused(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        plan = msgspec.structs.replace(planned(record, await drive.store.now()), next_at=START + MINUTE)
        with pytest.raises(InvalidInput, match="next_at"):
            await drive.store.schedules.fire(plan, requests(drive, record, plan))
        assert await fired(drive) == []

    async def test_jobs_that_cannot_be_enqueued_do_not_advance_the_schedule(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        plan = planned(record, await drive.store.now())
        [request] = requests(drive, record, plan)
        origin = msgspec.structs.replace(request.origin, payload="{")
        with pytest.raises(InvalidInput):
            await drive.store.schedules.fire(plan, [msgspec.structs.replace(request, origin=origin)])
        assert await drive.store.schedules.get("morning") == record

    async def test_the_jobs_of_a_schedule_are_jobs_like_all_others(self, drive: Driver, clock: DatabaseClock) -> None:
        record = await put(drive, schedule())
        clock.advance(61)
        [added] = await fire(drive, record) or []
        claimed: list[Job] = await drive.claim()
        assert [job.id for job in claimed] == [added.job.id]
        [enqueued, *_] = (await drive.store.history([added.job.id]))[added.job.id]
        assert (enqueued.request_id, enqueued.actor) == (added.job.origin.request_id, str(CLIENT))
