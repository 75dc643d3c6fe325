"""The deadline of a job: when it is fixed, what inherits it, and which jobs recovery finds by it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.errors import IllegalTransition, InvalidInput, NotYet
from tenure.lifecycle.deadlines import DEADLINE_TAG, deadline_of, stamp, with_deadline
from tenure.lifecycle.operations import (
    Operation,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Suspend,
    TimeOut,
    Unwind,
    Wake,
)
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.statuses import FAILED
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver

IN_A_MINUTE = {"deadline_seconds": 60}
RELEASING: tuple[Operation, ...] = (
    Suspend(),
    Suspend(delay_seconds=86_400),
    Suspend(waiting_for="children", children_max=0),
    Retry(ERROR, delay_seconds=86_400),
    Release("snooze", 86_400),
)
WAKING: tuple[tuple[Operation, Actor], ...] = ((Signal("go"), CLIENT), (Wake(), RECOVERY), (RequestCancel(), CLIENT))


def named(operation: Operation) -> str:
    return f"{operation.type.value}-{getattr(operation, 'waiting_for', None)}"


def seconds_after(job: Job, seconds: float) -> datetime:
    return job.created_at + timedelta(seconds=seconds)


class DeadlineContract:
    """`Policy.deadline_seconds`, the tag of an inherited deadline, and `timeout_at` of a job without a lease."""

    @pytest.mark.requirement("WF-15")
    async def test_a_deadline_counts_from_the_enqueue_by_the_databases_clock(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        alone = await drive.add(policy=IN_A_MINUTE, delay_ms=3_600_000)
        together = await drive.store.enqueue([drive.enqueue(policy=IN_A_MINUTE) for _ in range(3)])
        keyed = await drive.add(policy=IN_A_MINUTE, request_id="order 7")
        for job in (alone, keyed, *(one.job for one in together)):
            read = await drive.job(job.id)
            assert deadline_of(read) == read.timeout_at == job.timeout_at == seconds_after(job, 60)
        clock.advance(59.999)
        assert isinstance(await drive.refuse(alone.id, TimeOut(ERROR), actor=RECOVERY), NotYet)
        assert await drive.store.recoverable(limit=100) == []
        clock.advance(0.001)
        assert len(await drive.store.recoverable(limit=100)) == 5
        failed = await drive.apply(alone.id, TimeOut(ERROR), actor=RECOVERY)
        assert (failed.status, failed.timeout_at) == (FAILED, None)

    @pytest.mark.requirement("WF-15")
    @pytest.mark.parametrize("inherited_seconds", [30, 90])
    async def test_of_its_own_deadline_and_that_of_its_parent_the_earlier_one_holds(
        self, drive: Driver, inherited_seconds: int
    ) -> None:
        parent = await drive.add(policy={"deadline_seconds": inherited_seconds})
        inherited = deadline_of(parent)
        request = drive.enqueue(policy=IN_A_MINUTE, parent_id=parent.id, tags={"tenant": "x"})
        origin = with_deadline(request.origin, inherited)
        other = with_deadline(drive.enqueue("other", parent_id=parent.id).origin, inherited)
        several = [type(request)(one, CLIENT) for one in (origin, other)]
        child, plain = [one.job for one in await drive.store.enqueue(several)]
        expected = min(seconds_after(child, 60), seconds_after(parent, inherited_seconds))
        assert deadline_of(await drive.job(child.id)) == child.timeout_at == expected
        assert deadline_of(await drive.job(plain.id)) == plain.timeout_at == inherited
        assert (child.origin.tags or {})["tenant"] == "x"

    @pytest.mark.requirement("WF-15")
    async def test_a_child_alone_inherits_a_deadline_too(self, drive: Driver) -> None:
        """One job has a statement of its own."""
        parent = await drive.add(policy=IN_A_MINUTE)
        child = await drive.add(tags={DEADLINE_TAG: stamp(seconds_after(parent, 60))}, parent_id=parent.id)
        assert (await drive.job(child.id)).timeout_at == child.timeout_at == deadline_of(parent)

    @pytest.mark.requirement("WF-15")
    async def test_a_deadline_that_is_none_is_refused(self, drive: Driver) -> None:
        with pytest.raises(InvalidInput, match="deadline"):
            await drive.add(tags={DEADLINE_TAG: "tomorrow"})

    @pytest.mark.requirement("WF-15")
    @pytest.mark.parametrize("operation", RELEASING, ids=named)
    async def test_a_job_without_a_lease_is_found_at_its_deadline(
        self, drive: Driver, clock: DatabaseClock, operation: Operation
    ) -> None:
        job = await drive.running(policy=IN_A_MINUTE)
        clock.advance(10)
        unleased = await drive.apply(job, operation)
        assert unleased.timeout_at == (await drive.job(job.id)).timeout_at == seconds_after(job, 60)
        clock.advance(49.999)
        assert unleased.id not in [one.id for one in await drive.store.recoverable(limit=100) if one.timeout_at]
        clock.advance(0.001)
        assert [one.id for one in await drive.store.recoverable(limit=100)] == [job.id]
        assert (await drive.apply(job.id, TimeOut(ERROR), actor=RECOVERY)).status is FAILED

    @pytest.mark.requirement("WF-15")
    @pytest.mark.parametrize("waking", WAKING, ids=lambda waking: named(waking[0]))
    @pytest.mark.parametrize("queued_seconds", [None, 5, 500])
    async def test_a_woken_job_keeps_its_deadline(
        self, drive: Driver, clock: DatabaseClock, waking: tuple[Operation, Actor], queued_seconds: float | None
    ) -> None:
        operation, actor = waking
        policy = {**IN_A_MINUTE, "timeouts": Timeouts(queued_seconds=queued_seconds)}
        job = await drive.running(policy=policy)
        await drive.apply(job, Suspend(delay_seconds=40))
        clock.advance(10)
        due = await drive.apply(job.id, operation, actor=actor)
        queued_at = due.updated_at + timedelta(seconds=queued_seconds or 1_000)
        assert due.timeout_at == (await drive.job(job.id)).timeout_at == min(queued_at, seconds_after(job, 60))
        again = await drive.apply(job.id, Signal("again"), actor=CLIENT)
        assert again.timeout_at == due.timeout_at

    @pytest.mark.requirement("WF-15")
    async def test_under_a_lease_the_deadline_is_the_owners_to_keep(self, drive: Driver, clock: DatabaseClock) -> None:
        policy = {**IN_A_MINUTE, "lease_seconds": 600, "heartbeat_seconds": 500}
        job = await drive.running(policy=policy)
        assert job.timeout_at == job.updated_at + timedelta(days=1), "running_seconds alone"
        clock.advance(100)
        assert await drive.store.recoverable(limit=100) == []
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), IllegalTransition)

    @pytest.mark.requirement("WF-15")
    async def test_a_lost_job_is_found_at_once_if_its_deadline_has_passed(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={**IN_A_MINUTE, "lease_seconds": 120})
        clock.advance(120)
        requeued = await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        assert requeued.timeout_at == seconds_after(job, 60)
        assert [one.id for one in await drive.store.recoverable(limit=100)] == [job.id]

    @pytest.mark.requirement("WF-15")
    async def test_a_job_that_undoes_its_steps_has_no_deadline_any_more(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.apply(await drive.running(policy=IN_A_MINUTE), Suspend())
        clock.advance(60)
        unwinding = await drive.apply(job.id, Unwind("failed", "timeout", ERROR), actor=RECOVERY)
        assert (unwinding.timeout_at, unwinding.due_at) == (None, unwinding.updated_at)
        assert await drive.store.recoverable(limit=100) == []
        signalled = await drive.apply(job.id, Signal("go"), actor=CLIENT)
        assert signalled.timeout_at == (await drive.job(job.id)).timeout_at is None

    @pytest.mark.requirement("WF-15")
    @pytest.mark.parametrize("seconds", [0, -1, 1e9, float("nan"), True, "60"])
    def test_a_deadline_is_a_number_of_seconds_in_range(self, drive: Driver, seconds: object) -> None:
        with pytest.raises(InvalidInput, match="deadline_seconds"):
            drive.enqueue(policy={"deadline_seconds": seconds})
