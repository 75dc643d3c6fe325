"""How long a job may stay in a status, when that time starts, and what follows when it has passed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import AlreadyCommitted, IllegalTransition, NotAuthorised, NotYet
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Ack,
    Commit,
    DeadLetter,
    Fail,
    GiveUp,
    Heartbeat,
    Operation,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
    TimeOut,
    Wake,
)
from tenure.lifecycle.records import Actor, Job, OnTimeout, Role
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, QUEUED, STALLED, SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

GATEWAY = Actor(Role.GATEWAY, "gateway-1")
PATIENT = {"lease_seconds": 600, "heartbeat_seconds": 500}
QUEUED_10 = {"timeouts": Timeouts(queued_seconds=10)}
RELEASING: tuple[Operation, ...] = (Suspend(delay_seconds=20), Retry(ERROR, delay_seconds=20), Release("snooze", 20))
"""Operations that leave a running job without a lease, due after 20 s."""
WAKING: tuple[tuple[Operation, Actor], ...] = ((Signal("go"), CLIENT), (Wake(), RECOVERY), (RequestCancel(), CLIENT))
"""Operations that make a waiting job due."""


def named(operation: Operation) -> str:
    return operation.type.value


def after(job: Job, seconds: float) -> object:
    return job.updated_at + timedelta(seconds=seconds)


class TimeoutContract:
    """`time_out`, `stall` for a timeout, and `timeout_at` after every event."""

    @pytest.mark.requirement("EH-03")
    async def test_a_queued_jobs_timeout_starts_when_it_is_due(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.add(delay_ms=60_000, policy={"timeouts": Timeouts(queued_seconds=30)})
        clock.advance(89.999)
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), NotYet)
        clock.advance(0.001)
        failed = await drive.apply(job.id, TimeOut(ERROR), actor=RECOVERY)
        assert (failed.status, failed.error, failed.failures, failed.attempt) == (FAILED, ERROR, 0, 0)
        assert (await drive.events_of(job.id))[-1].cause == "timeout"
        assert await drive.store.executions(job.id) == []

    @pytest.mark.requirement("EH-03")
    @pytest.mark.parametrize("operation", RELEASING, ids=named)
    async def test_a_job_without_a_lease_has_the_queued_timeout_once_it_is_due(
        self, drive: Driver, clock: DatabaseClock, operation: Operation
    ) -> None:
        unleased = await drive.apply(await drive.running(policy=QUEUED_10), operation)
        assert unleased.timeout_at == after(unleased, 30)
        clock.advance(29.999)
        assert isinstance(await drive.refuse(unleased.id, TimeOut(ERROR), actor=RECOVERY), NotYet)
        assert unleased.id not in [job.id for job in await drive.store.recoverable(limit=100)]
        clock.advance(0.001)
        assert [job.id for job in await drive.store.recoverable(limit=100)] == [unleased.id]
        failed = await drive.apply(unleased.id, TimeOut(ERROR), actor=RECOVERY)
        assert (failed.status, failed.timeout_at, failed.failures) == (FAILED, None, unleased.failures)

    @pytest.mark.requirement("EH-03")
    async def test_a_waiting_job_without_a_due_time_has_no_timeout(self, drive: Driver, clock: DatabaseClock) -> None:
        waiting = await drive.apply(await drive.running(policy=QUEUED_10), Suspend())
        clock.advance(1_000_000)
        assert waiting.timeout_at is None
        assert isinstance(await drive.refuse(waiting.id, TimeOut(ERROR), actor=RECOVERY), NotYet)

    @pytest.mark.requirement("EH-03")
    @pytest.mark.parametrize("waking", WAKING, ids=lambda waking: named(waking[0]))
    @pytest.mark.parametrize("delay_seconds", [None, 86_400])
    async def test_the_queued_timeout_starts_when_the_job_is_made_due(
        self, drive: Driver, clock: DatabaseClock, waking: tuple[Operation, Actor], delay_seconds: float | None
    ) -> None:
        operation, actor = waking
        waiting = await drive.apply(await drive.running(policy=QUEUED_10), Suspend(delay_seconds=delay_seconds))
        clock.advance(5)
        due = await drive.apply(waiting.id, operation, actor=actor)
        assert due.timeout_at == after(due, 10) == (await drive.job(due.id)).timeout_at
        clock.advance(5)
        again = await drive.apply(waiting.id, Signal("again"), actor=CLIENT)
        assert again.timeout_at == due.timeout_at, "a job that is due keeps its timeout"
        clock.advance(5)
        assert (await drive.apply(waiting.id, TimeOut(ERROR), actor=RECOVERY)).status is FAILED

    @pytest.mark.requirement("EH-03", "SM-10")
    async def test_a_cancel_request_starts_the_queued_timeout_of_a_retry(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        retry = await drive.apply(await drive.running(policy=QUEUED_10), Retry(ERROR, delay_seconds=100))
        clock.advance(5)
        due = await drive.apply(retry.id, RequestCancel(), actor=CLIENT)
        assert due.timeout_at == after(due, 10)

    @pytest.mark.requirement("EH-03")
    async def test_a_signal_does_not_start_the_timeout_of_a_delayed_job(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=60_000, policy=QUEUED_10)
        assert (await drive.apply(job.id, Signal("early"), actor=CLIENT)).timeout_at == job.timeout_at

    @pytest.mark.requirement("EH-03")
    async def test_the_time_under_a_lease_does_not_count_as_queued(self, drive: Driver, clock: DatabaseClock) -> None:
        policy = {**QUEUED_10, "lease_seconds": 60}
        released, lost = await drive.running(policy=policy), await drive.running(policy=policy)
        clock.advance(60)
        stalled = await drive.apply(lost.id, Stall(), actor=RECOVERY)
        assert stalled.timeout_at == after(stalled, 10)
        clock.advance(4)
        requeued = await drive.apply(lost.id, Requeue(), actor=RECOVERY)
        assert (requeued.status, requeued.timeout_at) == (QUEUED, stalled.timeout_at), "a requeue starts no new time"
        assert isinstance(await drive.refuse(released.id, TimeOut(ERROR), actor=RECOVERY), IllegalTransition)

    @pytest.mark.requirement("EH-02", "EH-03")
    async def test_an_ack_restarts_the_claimed_timeout(self, drive: Driver, clock: DatabaseClock) -> None:
        policy = {**PATIENT, "timeouts": Timeouts(claimed_seconds=10), "on_timeout": "fail"}
        job = await drive.claimed(policy=policy)
        assert job.timeout_at == after(job, 10)
        clock.advance(9)
        acked = await drive.apply(job, Ack())
        assert acked.timeout_at == after(acked, 10)
        clock.advance(9.999)
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=GATEWAY), NotYet)
        clock.advance(0.001)
        assert (await drive.apply(job.id, TimeOut(ERROR), actor=GATEWAY)).status is FAILED

    @pytest.mark.requirement("EH-03")
    async def test_claimed_and_running_have_separate_timeouts(self, drive: Driver, clock: DatabaseClock) -> None:
        timeouts = Timeouts(claimed_seconds=10, running_seconds=60)
        policy = {"lease_seconds": 600, "timeouts": timeouts, "on_timeout": "fail"}
        job = await drive.claimed(policy=policy)
        other = await drive.claimed(policy=policy)
        clock.advance(9)
        running = await drive.apply(job, Start())
        clock.advance(1)
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), NotYet)
        assert (await drive.apply(other.id, TimeOut(ERROR), actor=RECOVERY)).failures == 0
        clock.advance(59)
        running = await drive.apply(running, Heartbeat())
        assert (await drive.apply(running.id, TimeOut(ERROR), actor=RECOVERY)).failures == 1

    async def test_a_status_without_a_timeout_never_times_out(self, drive: Driver, clock: DatabaseClock) -> None:
        queued, claimed = await drive.add(), await drive.claimed(policy={"on_timeout": "fail"})
        running = await drive.running(policy={"timeouts": Timeouts(running_seconds=None), "on_timeout": "fail"})
        clock.advance(1_000_000)
        for job in (queued, claimed, running):
            assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), NotYet)

    @pytest.mark.requirement("EH-02", "WC-01")
    async def test_a_gateway_times_out_a_claimed_job_and_no_other(self, drive: Driver, clock: DatabaseClock) -> None:
        timeouts = Timeouts(queued_seconds=5, claimed_seconds=5, running_seconds=5)
        policy = {**PATIENT, "timeouts": timeouts, "on_timeout": "fail"}
        claimed, running = await drive.claimed(policy=policy), await drive.running(policy=policy)
        queued = await drive.add(kind="other", policy=policy)
        clock.advance(5)
        for job in (running, queued):
            assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=GATEWAY), NotAuthorised)
        for actor in (CLIENT, runner(claimed), runner(claimed, role=Role.POOL)):
            assert isinstance(await drive.refuse(claimed.id, TimeOut(ERROR), actor=actor), NotAuthorised)
        assert (await drive.apply(claimed.id, TimeOut(ERROR), actor=GATEWAY)).status is FAILED

    @pytest.mark.requirement("EH-03", "SM-09")
    @pytest.mark.parametrize("on_timeout", ["retry", "dead_letter"])
    @pytest.mark.parametrize("start", [True, False])
    async def test_a_leased_job_fails_by_its_timeout_only_where_its_policy_is_to_fail(
        self, drive: Driver, clock: DatabaseClock, on_timeout: OnTimeout, start: bool
    ) -> None:
        timeouts = Timeouts(claimed_seconds=10, running_seconds=10)
        policy = {**PATIENT, "timeouts": timeouts, "on_timeout": on_timeout}
        job = await (drive.running(policy=policy) if start else drive.claimed(policy=policy))
        clock.advance(10)
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), IllegalTransition)

    @pytest.mark.requirement("EH-03", "SM-09")
    async def test_a_stall_for_a_timeout_is_a_failure_and_no_loss(self, drive: Driver, clock: DatabaseClock) -> None:
        policy = {
            **PATIENT,
            "timeouts": Timeouts(running_seconds=10),
            "max_attempts": 2,
            "on_exhausted": "fail",
            "on_lost": "fail",
        }
        job = await drive.running(policy=policy)
        clock.advance(9.999)
        assert isinstance(await drive.refuse(job.id, Stall("timeout"), actor=RECOVERY), NotYet)
        clock.advance(0.001)
        assert isinstance(await drive.refuse(job.id, Stall(), actor=RECOVERY), NotYet), "its owner is not lost"
        requeued = await drive.apply(job.id, Stall("timeout"), Requeue(), actor=RECOVERY)
        assert (requeued.status, requeued.failures, requeued.losses) == (QUEUED, 1, 0)
        assert (await drive.events_of(job.id))[-2].cause == "timeout"
        [again] = await drive.claim()
        assert (again.id, again.attempt) == (job.id, 2)

    @pytest.mark.requirement("EH-02")
    async def test_a_timeout_while_claimed_counts_no_failure(self, drive: Driver, clock: DatabaseClock) -> None:
        policy = {**PATIENT, "timeouts": Timeouts(claimed_seconds=10), "max_attempts": 1, "on_exhausted": "fail"}
        job = await drive.claimed(policy=policy)
        clock.advance(10)
        requeued = await drive.apply(job.id, Stall("timeout"), Requeue(), actor=RECOVERY)
        assert (requeued.status, requeued.failures) == (QUEUED, 0)

    @pytest.mark.requirement("EH-03", "SM-09")
    @pytest.mark.parametrize(("on_exhausted", "on_lost"), [("fail", "dead_letter"), ("dead_letter", "fail")])
    async def test_a_timeout_on_the_last_attempt_applies_on_exhausted(
        self, drive: Driver, clock: DatabaseClock, on_exhausted: str, on_lost: str
    ) -> None:
        policy = {**PATIENT, "timeouts": Timeouts(running_seconds=10), "max_attempts": 1, "on_exhausted": "fail"}
        job = await drive.running(policy={**policy, "on_exhausted": on_exhausted, "on_lost": on_lost})
        clock.advance(10)
        stalled = await drive.apply(job.id, Stall("timeout"), actor=RECOVERY)
        assert (stalled.status, stalled.due_at, stalled.lost) == (STALLED, None, False)
        assert await drive.claim() == []
        assert [one.id for one in await drive.store.recoverable(limit=100)] == [job.id]
        assert isinstance(await drive.refuse(job.id, Requeue(), actor=RECOVERY), IllegalTransition)
        give_up = GiveUp(ERROR, "exhausted_retries")
        if on_exhausted == "fail":
            assert (await drive.apply(job.id, give_up, actor=RECOVERY)).status is FAILED
            assert (await drive.events_of(job.id))[-1].cause == "exhausted_retries"
        else:
            assert isinstance(await drive.refuse(job.id, give_up, actor=RECOVERY), IllegalTransition)
            letter = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
            assert (await drive.apply(job.id, letter, actor=RECOVERY)).status is DEAD_LETTERED

    @pytest.mark.requirement("EH-03")
    @pytest.mark.parametrize("on_timeout", ["fail", "dead_letter"])
    @pytest.mark.parametrize("max_attempts", [1, 3])
    async def test_a_job_that_is_stalled_for_a_timeout_only_ends_where_its_policy_ends_it(
        self, drive: Driver, clock: DatabaseClock, on_timeout: OnTimeout, max_attempts: int
    ) -> None:
        """Recovery stalls a run that has steps to undo. What it has counted and `on_exhausted` make no difference."""
        on_exhausted = {"fail": "dead_letter", "dead_letter": "fail"}[on_timeout]
        policy = {**PATIENT, "timeouts": Timeouts(running_seconds=10), "max_attempts": max_attempts}
        job = await drive.running(policy={**policy, "on_timeout": on_timeout, "on_exhausted": on_exhausted})
        clock.advance(10)
        stalled = await drive.apply(job.id, Stall("timeout"), actor=RECOVERY)
        assert (stalled.status, stalled.due_at, stalled.lost, stalled.failures) == (STALLED, None, False, 1)
        assert stalled.ends_by_policy
        assert await drive.claim() == []
        assert [one.id for one in await drive.store.recoverable(limit=100)] == [job.id]
        assert isinstance(await drive.refuse(job.id, Requeue(), actor=RECOVERY), IllegalTransition)
        give_up = GiveUp(ERROR, "timeout")
        if on_timeout == "fail":
            assert (await drive.apply(job.id, give_up, actor=RECOVERY)).status is FAILED
            assert (await drive.events_of(job.id))[-1].cause == "timeout"
        else:
            assert isinstance(await drive.refuse(job.id, give_up, actor=RECOVERY), IllegalTransition)
            letter = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
            assert (await drive.apply(job.id, letter, actor=RECOVERY)).status is DEAD_LETTERED

    @pytest.mark.requirement("EL-06")
    async def test_a_committed_job_that_hangs_is_reconciled_after_its_timeout(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        policy = {**PATIENT, "timeouts": Timeouts(running_seconds=10)}
        job = await drive.apply(await drive.running(policy=policy), Commit("1"))
        clock.advance(10)
        assert isinstance(await drive.refuse(job.id, TimeOut(ERROR), actor=RECOVERY), AlreadyCommitted)
        done = await drive.apply(job.id, Stall("timeout"), Reconcile(), actor=RECOVERY)
        assert (done.status, done.result, done.failures) == (SUCCEEDED, "1", 0)

    @pytest.mark.requirement("EH-03", "SM-17")
    async def test_an_owners_end_by_a_timeout_has_that_cause(self, drive: Driver) -> None:
        retried = await drive.apply(await drive.running(), Retry(ERROR, timed_out=True))
        failed = await drive.apply(await drive.running(), Fail(ERROR, timed_out=True))
        assert [(await drive.events_of(job.id))[-1].cause for job in (retried, failed)] == ["timeout", "timeout"]
