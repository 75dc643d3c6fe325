"""What becomes of a schedule that is due, late, edited or declared anew. Pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidInput
from tenure.jobs.time_zones import time_zone
from tenure.lifecycle.records import Origin, Policy
from tenure.lifecycle.schedules import (
    FIRED_MOST,
    Missed,
    Schedule,
    ScheduleRecord,
    declaration_applies,
    firing,
    job_of,
    next_time,
    same_times,
    template_of,
    triggered_job_of,
)

START = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def schedule(**facts: Any) -> Schedule:
    defaults: dict[str, Any] = {"name": "tick", "cron": "every 1m", "kind": "mail", "payload": "{}", "policy": Policy()}
    return Schedule(**{**defaults, **facts})


def record(**facts: Any) -> ScheduleRecord:
    state: dict[str, Any] = {
        name: facts.pop(name) for name in ("rev", "next_at", "last_at", "paused_at") if name in facts
    }
    defaults: dict[str, Any] = {"rev": 3, "next_at": START + MINUTE, "last_at": START, "paused_at": None}
    return ScheduleRecord(schedule=schedule(**facts), updated_at=START, **{**defaults, **state})


def test_on_time_every_policy_fires_the_due_time() -> None:
    for missed in ("one", "all", "skip"):
        plan = firing(record(missed=missed), now=START + MINUTE, zone=UTC)
        assert plan is not None
        assert (plan.due, plan.until, plan.next_at) == ((START + MINUTE,), START + MINUTE, START + 2 * MINUTE)
        assert (plan.name, plan.rev) == ("tick", 3)


def test_one_job_is_made_for_all_missed_due_times_and_names_the_last() -> None:
    plan = firing(record(missed="one"), now=START + timedelta(minutes=90, seconds=59), zone=UTC)
    assert plan is not None
    assert (plan.due, plan.next_at) == ((START + 90 * MINUTE,), START + 91 * MINUTE)


def test_all_are_made_up_for_in_order_and_not_too_many_at_once() -> None:
    plan = firing(record(missed="all"), now=START + 5 * MINUTE, zone=UTC)
    assert plan is not None
    assert plan.due == tuple(START + number * MINUTE for number in range(1, 6))
    many = firing(record(missed="all"), now=START + timedelta(days=3), zone=UTC)
    assert many is not None
    assert len(many.due) == FIRED_MOST
    assert (many.due[-1], many.next_at) == (START + FIRED_MOST * MINUTE, START + (FIRED_MOST + 1) * MINUTE)


def test_what_is_over_for_too_long_is_skipped_and_what_is_not_is_fired() -> None:
    late = record(missed="skip", cron="0 * * * *", grace_seconds=30.0, next_at=START + 60 * MINUTE)
    for seconds, fired in ((3600, 1), (3630, 1), (3631, 0), (2 * 3600 + 29, 1), (2 * 3600 + 31, 0)):
        plan = firing(late, now=START + timedelta(seconds=seconds), zone=UTC)
        assert plan is not None
        assert len(plan.due) == fired
        assert plan.until == START + seconds // 3600 * 60 * MINUTE
        assert plan.next_at == plan.until + 60 * MINUTE


def test_what_is_paused_not_due_or_over_for_ever_is_left_alone() -> None:
    assert firing(record(paused_at=START), now=START + 9 * MINUTE, zone=UTC) is None
    assert firing(record(), now=START + MINUTE - timedelta(microseconds=1), zone=UTC) is None
    assert firing(record(next_at=None), now=START + 9 * MINUTE, zone=UTC) is None


def test_the_time_that_is_written_down_counts_though_the_expression_has_another() -> None:
    odd = record(cron="0 12 * * *", next_at=START + timedelta(hours=7))
    plan = firing(odd, now=START + timedelta(hours=8), zone=UTC)
    assert plan is not None
    assert (plan.due, plan.next_at) == ((START + timedelta(hours=7),), START + timedelta(hours=12))


WAYS: st.SearchStrategy[Missed] = st.sampled_from(["one", "all", "skip"])
CRONS = st.sampled_from(["every 7s", "*/5 * * * *", "30 2 * * *", "0 */3 * * 1-5", "15 0 L * *"])


@given(WAYS, CRONS, st.lists(st.integers(-400_000, 900_000), max_size=12))
def test_however_the_clock_jumps_no_due_time_comes_twice_and_none_goes_back(
    missed: Missed, cron: str, jumps: list[int]
) -> None:
    zone = time_zone("Europe/Berlin")
    now = START
    one = schedule(cron=cron, missed=missed)
    state = record(cron=cron, missed=missed, last_at=None, next_at=next_time(one, now=now, last_at=None, zone=zone))
    seen: list[datetime] = []
    for jump in jumps:
        now += timedelta(seconds=jump)
        for _ in range(3):
            plan = firing(state, now=now, zone=zone)
            if plan is None:
                break
            seen += plan.due
            assert plan.until <= now
            assert plan.next_at is not None
            assert plan.next_at > plan.until
            state = msgspec.structs.replace(state, rev=state.rev + 1, last_at=plan.until, next_at=plan.next_at)
    assert seen == sorted(set(seen))


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_after_an_edit_the_next_time_is_after_now_and_after_the_last(now_minutes: int, last_minutes: int) -> None:
    now, last_at = START + now_minutes * MINUTE, START + last_minutes * MINUTE
    found = next_time(schedule(cron="0 9 * * *"), now=now, last_at=last_at, zone=UTC)
    assert found is not None
    assert found > max(now, last_at)


def test_a_declared_schedule_is_written_unless_it_was_changed_at_run_time() -> None:
    declared = schedule(source="code")
    assert declaration_applies(None, declared)
    assert not declaration_applies(record(source="code"), declared)
    assert declaration_applies(record(source="code", cron="every 2m"), declared)
    assert declaration_applies(record(source="code", payload='{"to":"bob"}'), declared)
    assert not declaration_applies(record(source="operator", cron="every 2m"), declared)


def test_an_edit_of_anything_but_the_time_keeps_the_next_due_time() -> None:
    assert same_times(schedule(), schedule(payload="[]", missed="all", queue="slow"))
    assert not same_times(schedule(), schedule(cron="every 2m"))
    assert not same_times(schedule(), schedule(timezone="Europe/Berlin"))


def test_the_job_of_a_due_time_has_one_name_whatever_else_changes() -> None:
    due = datetime.fromisoformat("2026-10-25T02:30:00+02:00")
    jobs = [
        job_of(one, due.astimezone(zone), job_id=UUID(int=number))
        for number, (one, zone) in enumerate(
            [(schedule(), UTC), (schedule(payload="[]"), time_zone("Asia/Kolkata"))], 1
        )
    ]
    assert {job.request_id for job in jobs} == {"cron:tick:2026-10-25T00:30:00Z"}
    assert jobs[0].tags == {"tenure.schedule": "tick", "tenure.due": "2026-10-25T00:30:00Z"}
    assert triggered_job_of(schedule(tags={"a": "b"}), job_id=UUID(int=3)).request_id is None


def test_options_of_a_single_job_cannot_be_scheduled() -> None:
    origin = Origin(id=UUID(int=1), kind="mail", payload="{}", policy=Policy(), tags={"a": "b"}, queue="slow")
    made = template_of(origin, name="x", cron="@daily")
    assert (made.kind, made.queue, made.tags, made.source) == ("mail", "slow", {"a": "b"}, "operator")
    with pytest.raises(InvalidInput, match="request_id"):
        template_of(msgspec.structs.replace(origin, request_id="r"), name="x", cron="@daily")
    with pytest.raises(InvalidInput, match="tags"):
        template_of(msgspec.structs.replace(origin, tags={"tenure.due": "now"}), name="x", cron="@daily")
