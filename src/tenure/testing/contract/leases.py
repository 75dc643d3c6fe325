"""Leases: tokens, expiry, renewal, and what happens to a job whose owner vanishes."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from tenure.errors import IllegalTransition, LeaseLost, NotAuthorised, NotYet
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Commit,
    Compensate,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Halt,
    Heartbeat,
    Operation,
    Progress,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Stall,
    Start,
    Suspend,
)
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import FAILED, QUEUED, RUNNING, STALLED
from tenure.stores.contract import Applied, Failure, Outcome
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

OWNERS: tuple[Operation, ...] = (
    Heartbeat(),
    Progress(5),
    Commit("1"),
    Complete("1"),
    Retry(ERROR),
    Fail(ERROR),
    Halt("cost", "1"),
    Suspend(),
    Compensate(),
    Release(),
    DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR),
    Cancel(),
)
"""What only the owner of the lease may do to a running job."""


def named(operation: Operation) -> str:
    return operation.type.value


class LeaseContract:
    """Tokens, expiry, renewal, stall and what follows it."""

    @pytest.mark.requirement("LC-05")
    @pytest.mark.parametrize("operation", OWNERS, ids=named)
    async def test_an_owners_operation_needs_the_current_token(self, drive: Driver, operation: Operation) -> None:
        job = await drive.running()
        stranger = Actor(Role.RUNNER, "worker-1", drive.random.token())
        assert isinstance(await drive.refuse(job, operation, actor=stranger), LeaseLost)
        assert isinstance(await drive.refuse(job, operation, actor=Actor(Role.RUNNER, "worker-1")), LeaseLost)

    @pytest.mark.requirement("LC-05")
    @pytest.mark.parametrize("operation", OWNERS, ids=named)
    async def test_an_expired_lease_is_lost_before_recovery_stalls_the_job(
        self, drive: Driver, clock: DatabaseClock, operation: Operation
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        refusal = await drive.refuse(job, operation)
        assert isinstance(refusal, LeaseLost)
        assert refusal.current is not None
        assert refusal.current.status is RUNNING

    @pytest.mark.requirement("LC-05")
    @pytest.mark.parametrize("operation", OWNERS, ids=named)
    async def test_a_paused_worker_cannot_change_a_job_that_was_reclaimed(
        self, drive: Driver, clock: DatabaseClock, operation: Operation
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [taken] = await drive.claim(worker="worker-1")
        refusal = await drive.refuse(job, operation)
        assert isinstance(refusal, LeaseLost)
        assert refusal.current is not None
        assert refusal.current.token is None, "the new owner's secret was shown to the former one"
        await drive.apply(taken, Complete("2"))
        assert isinstance(await drive.refuse(job, operation), LeaseLost)

    @pytest.mark.requirement("LC-05")
    async def test_a_first_attempt_is_completed_by_its_owner_alone_and_under_its_lease(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        """The requests bring the records that were decided on, so that the statement itself has to refuse."""
        job = await drive.running(policy={"lease_seconds": 10, "heartbeat_seconds": 30})
        stranger = msgspec.structs.replace(job, token=drive.random.token())

        async def complete(record: Job) -> Outcome:
            request = drive.request(record, Complete("1"), actor=runner(record), fresh=True)
            [outcome] = await drive.store.apply([request])
            return outcome

        refused = await complete(stranger)
        assert isinstance(refused, Failure), "a stranger completed the job"
        assert isinstance(refused.error, LeaseLost)
        clock.advance(10)
        late = await complete(job)
        assert isinstance(late, Failure), "the job was completed after its lease"
        assert isinstance(late.error, LeaseLost)

    async def test_a_lease_is_valid_until_it_expires(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10, "heartbeat_seconds": 30})
        clock.advance(9.999)
        await drive.apply(job, Complete("1"))

    async def test_the_pool_starts_its_own_fresh_claim_and_nothing_else(self, drive: Driver) -> None:
        job = await drive.claimed()
        pool = runner(job, role=Role.POOL)
        for operation in (Ack(), Heartbeat(), Release()):
            assert isinstance(await drive.refuse(job, operation, actor=pool), NotAuthorised)
        stranger = Actor(Role.POOL, "worker-1", drive.random.token())
        assert isinstance(await drive.refuse(job, Start(), actor=stranger), LeaseLost)
        started = await drive.apply(job, Start(), actor=pool)
        assert (started.status, started.rev) == (RUNNING, 3)

    async def test_an_acknowledged_claim_can_then_be_started(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.claimed(policy={"heartbeat_seconds": 10})
        clock.advance(5)
        acked = await drive.apply(job, Ack(), actor=runner(job, role=Role.GATEWAY))
        assert acked.heartbeat_deadline_at == acked.updated_at + timedelta(seconds=20)
        clock.advance(5)
        started = await drive.apply(acked, Start())
        assert started.started_at == started.updated_at
        assert started.heartbeat_deadline_at == started.updated_at + timedelta(seconds=20)
        assert await drive.types_of(job.id) == ["enqueued", "claimed", "acked", "started"]

    @pytest.mark.requirement("SM-05", "LC-09")
    async def test_a_heartbeat_renews_the_lease_once_half_of_it_has_passed(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 60, "heartbeat_seconds": 20})
        first_end = job.lease_expires_at
        clock.advance(29.999)
        early = await drive.try_apply(drive.request(job, Heartbeat()))
        assert isinstance(early, Applied)
        assert not early.renewed
        assert (early.job.lease_expires_at, early.job.rev) == (first_end, 4)
        assert early.job.heartbeat_deadline_at == early.at + timedelta(seconds=40)
        clock.advance(0.001)
        late = await drive.try_apply(drive.request(early.job, Heartbeat()))
        assert isinstance(late, Applied)
        assert late.renewed
        assert late.job.lease_expires_at == late.at + timedelta(seconds=60)
        assert [event.until_at for event in (await drive.events_of(job.id))[3:]] == [None, late.job.lease_expires_at]
        assert (await drive.job(job.id)).lease_expires_at == late.job.lease_expires_at

    async def test_a_claimed_job_heartbeats_too(self, drive: Driver) -> None:
        job = await drive.claimed()
        assert (await drive.apply(job, Heartbeat())).status == "claimed"

    @pytest.mark.requirement("SM-06")
    async def test_a_job_whose_lease_runs_and_whose_heartbeats_come_is_no_orphan(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 60, "heartbeat_seconds": 20})
        for _ in range(6):
            clock.advance(20)
            job = await drive.apply(job, Heartbeat())
            assert isinstance(await drive.refuse(job.id, Stall(), actor=RECOVERY), NotYet)

    @pytest.mark.requirement("SM-06")
    @pytest.mark.parametrize("start", [True, False])
    async def test_two_missed_heartbeats_make_an_orphan_under_a_lease_that_still_runs(
        self, drive: Driver, clock: DatabaseClock, start: bool
    ) -> None:
        policy = {"lease_seconds": 600, "heartbeat_seconds": 10}
        job = await (drive.running(policy=policy) if start else drive.claimed(policy=policy))
        clock.advance(19.999)
        assert isinstance(await drive.refuse(job.id, Stall(), actor=RECOVERY), NotYet)
        clock.advance(0.001)
        stalled = await drive.apply(job.id, Stall("heartbeats_missed"), actor=RECOVERY)
        assert (stalled.status, stalled.lost, stalled.owner, stalled.lease_expires_at) == (STALLED, True, None, None)
        assert (await drive.events_of(job.id))[-1].cause == "heartbeats_missed"
        assert isinstance(await drive.refuse(job, Heartbeat()), LeaseLost)

    @pytest.mark.requirement("SM-06", "LC-06")
    async def test_an_expired_lease_makes_an_orphan_although_its_heartbeat_interval_is_longer(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10, "heartbeat_seconds": 60})
        clock.advance(9.999)
        assert isinstance(await drive.refuse(job.id, Stall(), actor=RECOVERY), NotYet)
        clock.advance(0.001)
        assert (await drive.apply(job.id, Stall(), actor=RECOVERY)).status is STALLED

    async def test_a_loss_while_running_is_a_failure_and_one_while_claimed_is_none(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        policy = {"lease_seconds": 10}
        ran, waited = await drive.running(policy=policy), await drive.claimed(policy=policy)
        clock.advance(10)
        lost = [await drive.apply(job.id, Stall(), actor=RECOVERY) for job in (ran, waited)]
        assert [(job.failures, job.losses) for job in lost] == [(1, 1), (0, 0)]

    @pytest.mark.requirement("SM-03", "LC-12")
    async def test_stall_and_requeue_in_one_request_are_two_events_and_the_next_claim_a_new_attempt(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        requeued = await drive.apply(job, Stall(), Requeue(), actor=RECOVERY)
        assert (requeued.status, requeued.rev, requeued.attempt) == (QUEUED, 5, 1)
        assert (await drive.types_of(job.id))[-2:] == ["stalled", "requeued"]
        [again] = await drive.claim()
        assert (again.id, again.attempt, again.rev) == (job.id, 2, 7)

    @pytest.mark.requirement("SM-07", "SM-09")
    async def test_a_lost_job_is_requeued_while_failures_are_left_and_then_given_up(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10, "max_attempts": 2, "on_exhausted": "fail"})
        clock.advance(10)
        assert isinstance(await drive.refuse(job.id, Stall(), GiveUp(ERROR), actor=RECOVERY), IllegalTransition)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        await drive.claim()
        clock.advance(10)
        lost = await drive.apply(job.id, Stall(), actor=RECOVERY)
        assert (lost.failures, lost.due_at) == (2, None)
        assert isinstance(await drive.refuse(job.id, Requeue(), actor=RECOVERY), IllegalTransition)
        assert await drive.claim() == []
        failed = await drive.apply(job.id, GiveUp(ERROR), actor=RECOVERY)
        assert (failed.status, failed.error, failed.failures) == (FAILED, ERROR, 2)
        assert (await drive.events_of(job.id))[-1].cause == "lost"

    @pytest.mark.requirement("SM-07")
    async def test_on_lost_fail_applies_at_the_first_loss(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10, "on_lost": "fail"})
        clock.advance(10)
        assert isinstance(await drive.refuse(job.id, Stall(), Requeue(), actor=RECOVERY), IllegalTransition)
        assert (await drive.apply(job.id, Stall(), GiveUp(ERROR), actor=RECOVERY)).status is FAILED

    @pytest.mark.requirement("SM-07", "SM-09")
    @pytest.mark.parametrize("policy", [{"on_lost": "dead_letter"}, {"max_attempts": 1, "on_exhausted": "dead_letter"}])
    async def test_a_lost_job_is_dead_lettered_under_that_policy(
        self, drive: Driver, clock: DatabaseClock, policy: dict[str, object]
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10, **policy})
        clock.advance(10)
        await drive.apply(job.id, Stall(), actor=RECOVERY)
        for refused in (Requeue(), GiveUp(ERROR)):
            assert isinstance(await drive.refuse(job.id, refused, actor=RECOVERY), IllegalTransition)
        burial = DeadLetter(ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, ERROR)
        assert (await drive.apply(job.id, burial, actor=RECOVERY)).status == "dead_lettered"

    @pytest.mark.requirement("WC-01")
    async def test_only_recovery_stalls_requeues_reconciles_and_gives_up(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        for operation in (Stall(), Requeue(), Reconcile(), GiveUp(ERROR)):
            for actor in (CLIENT, runner(job), runner(job, role=Role.POOL), Actor(Role.OUTBOX, "relay")):
                assert isinstance(await drive.refuse(job, operation, actor=actor), NotAuthorised)

    @pytest.mark.requirement("SM-17")
    async def test_timestamps_never_decrease_although_the_databases_clock_does(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running()
        clock.advance(-3600)
        job = await drive.apply(job, Heartbeat())
        assert job.updated_at == (await drive.events_of(job.id))[-2].at
        clock.advance(1)
        job = await drive.apply(job, Progress(50))
        ended = await drive.apply(job, Complete("1"))
        assert ended.finished_at is not None
        assert ended.finished_at >= ended.created_at

    @pytest.mark.requirement("SM-02", "SM-17")
    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("operation", OWNERS, ids=lambda operation: operation.type)
    async def test_an_expired_lease_stays_expired_when_the_clock_is_set_back(
        self, drive: Driver, clock: DatabaseClock, operation: Operation, fresh: bool
    ) -> None:
        held = await drive.running(policy={"lease_seconds": 10})
        clock.advance(11)
        asked = await drive.apply(held.id, RequestCancel(), actor=CLIENT)
        clock.advance(-5)
        job = msgspec.structs.replace(asked, token=held.token)
        assert isinstance(await drive.refuse(job, operation, fresh=fresh), LeaseLost)
        assert (await drive.apply(job.id, Stall(), actor=RECOVERY)).status is STALLED

    @pytest.mark.requirement("SM-02")
    async def test_of_concurrent_recovery_and_owner_one_outcome_is_written(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 600, "heartbeat_seconds": 10})
        clock.advance(20)
        requests = [drive.request(job, Complete("1")), drive.request(job, Stall(), actor=RECOVERY)]
        outcomes = await drive.store.apply(requests)
        assert [isinstance(outcome, Applied) for outcome in outcomes].count(True) == 1
