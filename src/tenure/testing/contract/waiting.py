"""Jobs that wait without a lease, what wakes them, and cancel requests."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from tenure.errors import AlreadyCommitted, IllegalTransition, LeaseLost, NotAuthorised, NotYet
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
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
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import CANCELLED, LIVE, STALLED, WAITING
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import SignalRecord
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver

WakeUp = tuple[Operation, Actor]
WAKE_UPS: tuple[WakeUp, ...] = ((Signal("go"), CLIENT), (Wake(), RECOVERY))
"""Operations that set `signal_rev`, each with an actor that may apply it."""
MAKES_DUE_NOW: tuple[WakeUp, ...] = (*WAKE_UPS, (RequestCancel(), CLIENT))
"""Operations that make a waiting job due."""
WAKERS = (CLIENT, RECOVERY, Actor(Role.RUNNER, "runner of the child"), Actor(Role.GATEWAY, "gateway"))


def operation_type(waker: WakeUp) -> str:
    return waker[0].type.value


class WaitingContract:
    """`suspend`, `signal`, `wake`, `release`, `progress`, `compensate`, and both ways to cancel."""

    async def test_a_suspended_job_has_no_lease_and_counts_no_failure(self, drive: Driver) -> None:
        waiting = await drive.apply(await drive.running(), Suspend(delay_seconds=60))
        assert (waiting.status, waiting.failures, waiting.owner) == (WAITING, 0, None)
        assert waiting.due_at == waiting.updated_at + timedelta(seconds=60)
        assert (await drive.events_of(waiting.id))[-1].until_at == waiting.due_at

    async def test_a_signal_is_stored_and_makes_a_waiting_job_due(self, drive: Driver, clock: DatabaseClock) -> None:
        waiting = await drive.apply(await drive.running(), Suspend())
        clock.advance(5)
        due = await drive.apply(waiting.id, Signal("approved", '{"by":"bob"}'), actor=CLIENT)
        assert (due.status, due.due_at) == (WAITING, due.updated_at)
        signal = SignalRecord(job_id=due.id, rev=due.rev, name="approved", payload='{"by":"bob"}', at=due.updated_at)
        assert await drive.store.signals(due.id) == [signal]
        [again] = await drive.claim()
        assert again.id == waiting.id

    @pytest.mark.requirement("WC-02")
    @pytest.mark.parametrize("waker", MAKES_DUE_NOW, ids=operation_type)
    async def test_a_waiting_job_that_is_already_due_keeps_its_due_time_when_it_is_woken(
        self, drive: Driver, clock: DatabaseClock, waker: WakeUp
    ) -> None:
        operation, actor = waker
        first, second = [await drive.running() for _ in range(2)]
        due = await drive.apply(first, Suspend(delay_seconds=1))
        await drive.apply(second, Suspend(delay_seconds=2))
        clock.advance(5)
        after = await drive.apply(first.id, operation, actor=actor)
        assert after.due_at == due.due_at == (await drive.job(first.id)).due_at
        assert [job.id for job in await drive.claim(limit=2)] == [first.id, second.id]

    @pytest.mark.parametrize("waker", MAKES_DUE_NOW, ids=operation_type)
    async def test_a_waiting_job_that_is_due_tomorrow_is_due_now_when_it_is_woken(
        self, drive: Driver, clock: DatabaseClock, waker: WakeUp
    ) -> None:
        operation, actor = waker
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

    @pytest.mark.parametrize("actor", WAKERS, ids=str)
    async def test_the_last_childs_end_wakes_a_waiting_job(
        self, drive: Driver, clock: DatabaseClock, actor: Actor
    ) -> None:
        waiting = await drive.apply(await drive.running(), Suspend(waiting_for="children"))
        clock.advance(1)
        woken = await drive.apply(waiting.id, Wake(), actor=actor)
        assert (woken.status, woken.due_at) == (WAITING, woken.updated_at)
        assert [job.id for job in await drive.claim()] == [waiting.id]

    @pytest.mark.parametrize("waker", WAKE_UPS, ids=operation_type)
    @pytest.mark.parametrize("delay_seconds", [None, 86_400])
    async def test_a_wake_of_a_running_job_makes_it_due_when_it_suspends(
        self, drive: Driver, clock: DatabaseClock, waker: WakeUp, delay_seconds: float | None
    ) -> None:
        operation, actor = waker
        job = await drive.running()
        met = await drive.apply(job.id, operation, actor=actor)
        assert (met.status, met.signal_rev, met.due_at) == ("running", met.rev, job.due_at)
        clock.advance(3)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        waiting = await drive.apply(job.id, Suspend(delay_seconds, seen_rev=job.rev), actor=owner)
        assert (waiting.status, waiting.due_at) == (WAITING, waiting.updated_at)
        [again] = await drive.claim()
        assert (again.id, again.signal_rev, again.waiting_for) == (job.id, met.rev, None)

    @pytest.mark.parametrize("waker", WAKE_UPS, ids=operation_type)
    async def test_a_wake_that_the_job_had_seen_does_not_end_its_wait(self, drive: Driver, waker: WakeUp) -> None:
        operation, actor = waker
        job = await drive.running()
        met = await drive.apply(job.id, operation, actor=actor)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        waiting = await drive.apply(job.id, Suspend(seen_rev=met.rev), actor=owner)
        assert (waiting.due_at, waiting.signal_rev) == (None, met.rev)
        assert await drive.claim() == []

    @pytest.mark.parametrize("waker", WAKE_UPS, ids=operation_type)
    async def test_a_wake_is_accepted_in_every_live_status_and_makes_only_a_waiting_job_due(
        self, drive: Driver, clock: DatabaseClock, waker: WakeUp
    ) -> None:
        operation, actor = waker
        for job in await one_of_each_live_status(drive):
            clock.advance(1)
            met = await drive.apply(job.id, operation, actor=actor)
            due_at = met.updated_at if job.status is WAITING else job.due_at
            assert (met.status, met.signal_rev, met.due_at) == (job.status, met.rev, due_at)
            stored = await drive.job(job.id)
            assert (stored.status, stored.signal_rev, stored.due_at) == (job.status, met.rev, due_at)

    async def test_a_signal_revision_survives_retries_losses_and_requeues(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        met = await drive.apply(job.id, Signal("go"), actor=CLIENT)
        clock.advance(10)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [again] = await drive.claim()
        await drive.apply(again, Retry(ERROR, delay_seconds=0))
        [third] = await drive.claim()
        assert (third.attempt, third.signal_rev) == (3, met.rev)

    async def test_a_job_that_suspends_again_after_a_wake_waits(self, drive: Driver) -> None:
        """A wake ends one wait, not every later one."""
        waiting = await drive.apply(await drive.running(), Suspend())
        await drive.apply(waiting.id, Signal("go"), actor=CLIENT)
        [again] = await drive.claim()
        second = await drive.apply(again, Suspend(seen_rev=again.rev))
        assert (second.status, second.due_at) == (WAITING, None)

    async def test_a_job_cannot_have_seen_a_revision_that_it_never_had(self, drive: Driver) -> None:
        job = await drive.running()
        assert isinstance(await drive.refuse(job, Suspend(seen_rev=job.rev + 1)), IllegalTransition)
        assert (await drive.apply(job, Suspend(seen_rev=job.rev))).status is WAITING

    @pytest.mark.parametrize(
        "suspend",
        [Suspend(5), Suspend(), Suspend(waiting_for="children", seen_rev=2), Suspend(5, waiting_for="code")],
        ids=["time", "signal", "children", "code"],
    )
    async def test_a_waiting_job_shows_what_it_waits_for_until_it_is_claimed(
        self, drive: Driver, clock: DatabaseClock, suspend: Suspend
    ) -> None:
        waiting = await drive.apply(await drive.running(), suspend)
        assert waiting.waiting_for == (await drive.job(waiting.id)).waiting_for == suspend.waiting_for
        detail = msgspec.json.decode((await drive.events_of(waiting.id))[-1].detail or "")
        assert (detail["seen_rev"], detail["waiting_for"]) == (suspend.seen_rev, suspend.waiting_for)
        await drive.apply(waiting.id, Wake(), actor=CLIENT)
        claimed = await drive.claim()
        assert [(job.id, job.waiting_for) for job in claimed] == [(waiting.id, None)]
        assert (await drive.job(waiting.id)).waiting_for is None

    async def test_a_waiting_job_that_ends_has_no_awaited_condition(self, drive: Driver) -> None:
        waiting = await drive.apply(await drive.running(), Suspend())
        assert (await drive.apply(waiting.id, Cancel(), actor=CLIENT)).waiting_for is None

    @pytest.mark.parametrize("waker", WAKE_UPS, ids=operation_type)
    async def test_a_wake_after_the_commit_or_the_end_is_refused(self, drive: Driver, waker: WakeUp) -> None:
        operation, actor = waker
        committed = await drive.apply(await drive.running(), Commit("1"))
        assert isinstance(await drive.refuse(committed.id, operation, actor=actor), AlreadyCommitted)
        ended = await drive.apply(await drive.running(), Cancel(), actor=CLIENT)
        assert isinstance(await drive.refuse(ended.id, operation, actor=actor), IllegalTransition)

    async def test_progress_is_shown_until_the_next_attempt(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Progress(40, "almost half"))
        assert (job.progress, job.progress_message) == (40, "almost half")
        job = await drive.apply(job, Progress(41))
        assert (job.progress, job.progress_message) == (41, None)
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        [again] = await drive.claim()
        assert (again.progress, again.progress_message) == (None, None)

    async def test_compensation_is_recorded_before_the_end(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job.id, RequestCancel(), actor=CLIENT)
        current = await drive.job(job.id)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        done = await drive.apply(current, Compensate("cancelled", "requested"), Cancel("undone"), actor=owner)
        assert (done.status, done.reason) == (CANCELLED, "undone")
        assert (await drive.types_of(job.id))[-2:] == ["compensated", "cancelled"]

    @pytest.mark.parametrize("start", [True, False])
    async def test_a_released_job_is_queued_without_a_failure(self, drive: Driver, start: bool) -> None:
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
    async def test_a_cancel_request_is_shown_to_the_owner_which_may_then_cancel(self, drive: Driver) -> None:
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
    async def test_a_cancel_request_keeps_the_due_time_of_a_due_retry(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        retrying = await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=1))
        clock.advance(5)
        assert (await drive.apply(retrying.id, RequestCancel(), actor=CLIENT)).due_at == retrying.due_at

    @pytest.mark.requirement("SM-10")
    @pytest.mark.parametrize("delay_seconds", [None, 0, 86_400])
    async def test_a_job_with_a_cancel_request_does_not_wait_when_it_suspends(
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

    async def test_a_cancel_request_keeps_a_delayed_jobs_due_time(self, drive: Driver) -> None:
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
        for job in await one_of_each_live_status(drive):
            assert (await drive.apply(job.id, Cancel(), actor=CLIENT)).status is CANCELLED


async def one_of_each_live_status(drive: Driver) -> list[Job]:
    """None of them is due except those under a lease."""
    jobs = [
        await drive.add(delay_ms=1000),
        await drive.claimed(),
        await drive.running(),
        await drive.apply(await drive.running(), Suspend()),
        await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=100)),
        await drive.apply(await drive.running(), Release(delay_seconds=100)),
    ]
    assert {job.status for job in jobs} == LIVE
    return jobs
