"""Jobs that nobody holds and that wait for something; and jobs that are asked to end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import IllegalTransition, LeaseLost, NotAuthorised, NotYet
from tenure.lifecycle.operations import (
    Cancel,
    Compensate,
    Complete,
    Heartbeat,
    Operation,
    Progress,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Suspend,
    Wake,
)
from tenure.lifecycle.records import Actor, Role, Timeouts
from tenure.lifecycle.statuses import CANCELLED, STALLED, WAITING
from tenure.stores.contract import SignalRecord
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver

Telling = tuple[Operation, Actor]
TELLING: tuple[Telling, ...] = ((Signal("go"), CLIENT), (Wake(), RECOVERY), (RequestCancel(), CLIENT))
"""What makes a waiting job due, and who says it."""


def told_by(told: Telling) -> str:
    return told[0].type.value


class WaitingContract:
    """`suspend`, `signal`, `wake`, `release`, `progress`, `compensate`, and both ways to cancel."""

    async def test_a_suspended_job_holds_no_worker_and_counts_no_failure(self, drive: Driver) -> None:
        waiting = await drive.apply(await drive.running(), Suspend(delay_seconds=60))
        assert (waiting.status, waiting.failures, waiting.owner) == (WAITING, 0, None)
        assert waiting.due_at == waiting.updated_at + timedelta(seconds=60)
        assert (await drive.events_of(waiting.id))[-1].until_at == waiting.due_at

    async def test_a_signal_is_kept_and_makes_a_waiting_job_due(self, drive: Driver, clock: DatabaseClock) -> None:
        waiting = await drive.apply(await drive.running(), Suspend())
        clock.advance(5)
        due = await drive.apply(waiting.id, Signal("approved", '{"by":"bob"}'), actor=CLIENT)
        assert (due.status, due.due_at) == (WAITING, due.updated_at)
        signal = SignalRecord(job_id=due.id, rev=due.rev, name="approved", payload='{"by":"bob"}', at=due.updated_at)
        assert await drive.store.signals(due.id) == [signal]
        [again] = await drive.claim()
        assert again.id == waiting.id

    @pytest.mark.requirement("WC-02")
    @pytest.mark.parametrize("told", TELLING, ids=told_by)
    async def test_a_waiting_job_that_is_already_due_keeps_its_place_when_it_is_told_something(
        self, drive: Driver, clock: DatabaseClock, told: Telling
    ) -> None:
        operation, actor = told
        first, second = [await drive.running() for _ in range(2)]
        due = await drive.apply(first, Suspend(delay_seconds=1))
        await drive.apply(second, Suspend(delay_seconds=2))
        clock.advance(5)
        after = await drive.apply(first.id, operation, actor=actor)
        assert after.due_at == due.due_at == (await drive.job(first.id)).due_at
        assert [job.id for job in await drive.claim(limit=2)] == [first.id, second.id]

    @pytest.mark.parametrize("told", TELLING, ids=told_by)
    async def test_a_waiting_job_that_is_due_tomorrow_is_due_now_when_it_is_told_something(
        self, drive: Driver, clock: DatabaseClock, told: Telling
    ) -> None:
        operation, actor = told
        for delay_seconds in (86_400, None):
            waiting = await drive.apply(await drive.running(), Suspend(delay_seconds=delay_seconds))
            clock.advance(5)
            after = await drive.apply(waiting.id, operation, actor=actor)
            assert after.due_at == after.updated_at == await drive.store.now()
            assert [job.id for job in await drive.claim(limit=2)] == [waiting.id]

    async def test_a_signal_may_come_early_and_several_keep_their_order(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=9000)
        due_at = job.due_at
        for number in range(3):
            job = await drive.apply(job.id, Signal("step", str(number)), actor=CLIENT)
        assert job.due_at == due_at
        assert [signal.payload for signal in await drive.store.signals(job.id)] == ["0", "1", "2"]
        assert [signal.rev for signal in await drive.store.signals(job.id)] == [2, 3, 4]

    async def test_a_running_job_can_be_signalled_without_losing_its_lease(self, drive: Driver) -> None:
        job = await drive.running()
        signalled = await drive.apply(job.id, Signal("go"), actor=CLIENT)
        assert signalled.token is None, "the owner's secret was shown to a client"
        await drive.apply(job.id, Complete("1"), actor=Actor(Role.RUNNER, "worker-1", job.token))

    async def test_the_last_childs_end_wakes_a_waiting_job(self, drive: Driver, clock: DatabaseClock) -> None:
        for actor in (RECOVERY, Actor(Role.RUNNER, "the child's runner", drive.random.token())):
            waiting = await drive.apply(await drive.running(), Suspend())
            clock.advance(1)
            woken = await drive.apply(waiting.id, Wake(), actor=actor)
            assert (woken.status, woken.due_at) == (WAITING, woken.updated_at)
            assert len(await drive.claim()) == 1
            assert isinstance(await drive.refuse(waiting.id, Wake(), actor=RECOVERY), IllegalTransition)

    async def test_progress_is_shown_until_the_next_attempt(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Progress(40, "almost half"))
        assert (job.progress, job.progress_message) == (40, "almost half")
        job = await drive.apply(job, Progress(41))
        assert (job.progress, job.progress_message) == (41, None)
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        [again] = await drive.claim()
        assert (again.progress, again.progress_message) == (None, None)

    async def test_undo_steps_are_told_before_the_end(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job.id, RequestCancel(), actor=CLIENT)
        current = await drive.job(job.id)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        done = await drive.apply(current, Compensate(), Cancel("undone"), actor=owner)
        assert (done.status, done.reason) == (CANCELLED, "undone")
        assert (await drive.types_of(job.id))[-2:] == ["compensated", "cancelled"]

    @pytest.mark.parametrize("start", [True, False])
    async def test_a_released_job_is_handed_back_without_a_failure(self, drive: Driver, start: bool) -> None:
        job = await (drive.running() if start else drive.claimed())
        released = await drive.apply(job, Release("shutdown"))
        assert (released.status, released.lost, released.failures, released.losses) == (STALLED, False, 0, 0)
        assert released.due_at == job.due_at
        assert (await drive.events_of(job.id))[-1].cause == "shutdown"
        [again] = await drive.claim()
        assert (again.id, again.attempt) == (job.id, 2)

    async def test_a_snoozed_job_is_neither_claimed_nor_requeued_before_it_is_due(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"timeouts": Timeouts(queued_seconds=10)})
        snoozed = await drive.apply(job, Release("snooze", delay_seconds=30))
        assert snoozed.due_at == snoozed.updated_at + timedelta(seconds=30)
        clock.advance(29.999)
        assert isinstance(await drive.refuse(job.id, Requeue(), actor=RECOVERY), NotYet)
        assert await drive.claim() == []
        clock.advance(0.001)
        requeued = await drive.apply(job.id, Requeue(), actor=RECOVERY)
        assert (requeued.due_at, requeued.attempt) == (snoozed.due_at, 1)
        assert requeued.timeout_at == requeued.updated_at + timedelta(seconds=10)
        assert len(await drive.claim()) == 1

    @pytest.mark.requirement("SM-10")
    async def test_a_cancel_request_is_told_to_the_owner_who_then_may_cancel(self, drive: Driver) -> None:
        job = await drive.running()
        assert isinstance(await drive.refuse(job, Cancel()), NotAuthorised)
        asked = await drive.apply(job.id, RequestCancel("changed my mind"), actor=CLIENT)
        assert (asked.status, asked.cancel_requested, asked.token) == ("running", True, None)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        beaten = await drive.apply(job.id, Heartbeat(), actor=owner)
        assert beaten.cancel_requested
        ended = await drive.apply(beaten, Cancel("as asked"), actor=owner)
        assert (ended.status, ended.reason, ended.owner) == (CANCELLED, "as asked", None)

    @pytest.mark.requirement("SM-10")
    async def test_a_cancel_request_makes_waiting_and_retrying_jobs_due(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        waiting = await drive.apply(await drive.running(), Suspend())
        retrying = await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=100))
        clock.advance(3)
        for job in (waiting, retrying):
            asked = await drive.apply(job.id, RequestCancel(), actor=CLIENT)
            assert (asked.status, asked.due_at) == (job.status, asked.updated_at)

    @pytest.mark.requirement("SM-10", "WC-02")
    async def test_a_cancel_request_does_not_cost_a_retrying_job_its_place(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        retrying = await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=1))
        clock.advance(5)
        assert (await drive.apply(retrying.id, RequestCancel(), actor=CLIENT)).due_at == retrying.due_at

    @pytest.mark.requirement("SM-10")
    @pytest.mark.parametrize("delay_seconds", [None, 0, 86_400])
    async def test_a_job_that_was_asked_to_cancel_does_not_wait_when_it_suspends_itself(
        self, drive: Driver, clock: DatabaseClock, delay_seconds: float | None
    ) -> None:
        job = await drive.running()
        await drive.apply(job.id, RequestCancel(), actor=CLIENT)
        clock.advance(3)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        waiting = await drive.apply(job.id, Suspend(delay_seconds=delay_seconds), actor=owner)
        assert (waiting.status, waiting.due_at) == (WAITING, waiting.updated_at)
        [again] = await drive.claim()
        assert again.cancel_requested
        assert (await drive.apply(again, Cancel())).status is CANCELLED

    async def test_a_cancel_request_leaves_a_delayed_jobs_due_time_alone(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=5000)
        assert (await drive.apply(job.id, RequestCancel(), actor=CLIENT)).due_at == job.due_at

    @pytest.mark.requirement("SM-10")
    async def test_a_cancel_request_survives_a_loss_and_a_requeue(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        await drive.apply(job.id, RequestCancel(), actor=CLIENT)
        clock.advance(10)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [again] = await drive.claim()
        assert again.cancel_requested
        assert (await drive.apply(again, Cancel())).status is CANCELLED

    @pytest.mark.requirement("SM-10", "SM-01")
    async def test_a_clients_cancel_ends_the_job_at_once_and_revokes_the_lease(self, drive: Driver) -> None:
        job = await drive.running()
        ended = await drive.apply(job.id, Cancel("stop"), actor=CLIENT)
        assert (ended.status, ended.reason, ended.lease_expires_at) == (CANCELLED, "stop", None)
        assert isinstance(await drive.refuse(job, Heartbeat()), LeaseLost)
        assert isinstance(await drive.refuse(job, Complete("1")), LeaseLost)

    @pytest.mark.requirement("SM-01")
    async def test_every_live_job_can_be_cancelled(self, drive: Driver) -> None:
        jobs = [
            await drive.add(delay_ms=1000),
            await drive.claimed(),
            await drive.running(),
            await drive.apply(await drive.running(), Suspend()),
            await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=100)),
            await drive.apply(await drive.running(), Release(delay_seconds=100)),
        ]
        assert len({job.status for job in jobs}) == 6
        for job in jobs:
            assert (await drive.apply(job.id, Cancel(), actor=CLIENT)).status is CANCELLED
