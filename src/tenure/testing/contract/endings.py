"""Ends of jobs and of attempts: retries, failures, limits, dead letters."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import IllegalTransition, LeaseLost, NotAuthorised
from tenure.lifecycle.backoff import retry_delay_ms
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Operation,
    RequestCancel,
    Retry,
    Signal,
    Stall,
    TimeOut,
)
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, HALTED, LIVE
from tenure.lifecycle.statuses import RETRY as RETRYING
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.leases import named
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

OTHER_ERROR = '{"type":"OSError","message":"again"}'


class EndingContract:
    """`retry`, `fail`, `halt`, `dead_letter`, and terminal jobs."""

    @pytest.mark.requirement("SM-08", "WC-11", "WC-03")
    async def test_a_retry_is_due_after_the_seeded_backoff(self, drive: Driver) -> None:
        job = await drive.running()
        retried = await drive.apply(job, Retry(ERROR))
        delay_ms = retry_delay_ms(job.policy.backoff, job_id=job.id, attempt=1, failures=1)
        assert (retried.status, retried.failures, retried.last_error) == (RETRYING, 1, ERROR)
        assert retried.due_at == retried.updated_at + timedelta(milliseconds=delay_ms)
        assert (retried.error, retried.owner, retried.lease_expires_at) == (None, None, None)
        event = (await drive.events_of(job.id))[-1]
        assert (event.type, event.until_at) == ("retry_scheduled", retried.due_at)

    async def test_a_retry_with_an_explicit_delay_is_due_after_it(self, drive: Driver) -> None:
        retried = await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=90))
        assert retried.due_at == retried.updated_at + timedelta(seconds=90)

    @pytest.mark.requirement("SM-09")
    async def test_a_retry_is_refused_once_the_failures_are_used_up(self, drive: Driver) -> None:
        job = await drive.running(policy={"max_attempts": 2, "on_exhausted": "fail"})
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        [again] = await drive.claim()
        assert isinstance(await drive.refuse(again, Retry(OTHER_ERROR)), IllegalTransition)
        failed = await drive.apply(again, Fail(OTHER_ERROR, permanent=False))
        assert (failed.status, failed.failures, failed.error, failed.attempt) == (FAILED, 2, OTHER_ERROR, 2)
        assert (await drive.events_of(job.id))[-1].cause == "exhausted_retries"

    @pytest.mark.requirement("SM-09")
    async def test_a_transient_error_fails_the_job_only_on_the_last_attempt_under_that_policy(
        self, drive: Driver
    ) -> None:
        early = await drive.running()
        assert isinstance(await drive.refuse(early, Fail(ERROR, permanent=False)), IllegalTransition)
        dead = await drive.running(policy={"max_attempts": 1, "on_exhausted": "dead_letter"})
        assert isinstance(await drive.refuse(dead, Fail(ERROR, permanent=False)), IllegalTransition)

    async def test_a_permanent_error_fails_the_job_at_once(self, drive: Driver) -> None:
        failed = await drive.apply(await drive.running(), Fail(ERROR))
        assert (failed.status, failed.error, failed.last_error, failed.failures) == (FAILED, ERROR, ERROR, 1)
        assert failed.finished_at == failed.updated_at
        assert (await drive.events_of(failed.id))[-1].cause == "permanent_error"

    async def test_each_attempts_error_stays_in_the_log(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        [again] = await drive.claim()
        await drive.apply(again, Fail(OTHER_ERROR))
        details = [event.detail or "" for event in await drive.events_of(job.id)]
        assert ERROR in details[3]
        assert OTHER_ERROR in details[-1]

    @pytest.mark.requirement("WC-04")
    async def test_a_halted_job_keeps_its_reason_and_its_partial_result(self, drive: Driver) -> None:
        halted = await drive.apply(await drive.running(), Halt("cost budget", '{"pages":3}'))
        assert (halted.status, halted.reason, halted.partial_result) == (HALTED, "cost budget", '{"pages":3}')
        assert (halted.result, halted.failures) == (None, 0)

    @pytest.mark.requirement("SM-11", "LC-02")
    async def test_a_dead_letter_has_its_whole_record(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(correlation_id="c-1", policy={"lease_seconds": 60, "heartbeat_seconds": 30})
        clock.advance(40)
        job = await drive.apply(job, Heartbeat())
        clock.advance(1)
        dead = await drive.apply(job, DeadLetter(ReasonCode.DEPENDENCY_UNAVAILABLE, Stage.FETCH, ERROR))
        assert (dead.status, dead.reason, dead.last_error) == (DEAD_LETTERED, "dependency_unavailable", ERROR)
        assert await drive.store.dead_letter(job.id) == DeadLetterRecord(
            job_id=job.id,
            reason_code=ReasonCode.DEPENDENCY_UNAVAILABLE,
            stage=Stage.FETCH,
            last_error=ERROR,
            attempts=1,
            at=dead.updated_at,
            last_owner="worker-1",
            last_lease_expires_at=job.lease_expires_at,
            correlation_id="c-1",
        )

    @pytest.mark.requirement("SM-11")
    async def test_a_dead_letter_of_a_job_that_was_never_claimed_names_no_owner(self, drive: Driver) -> None:
        job = await drive.add()
        await drive.apply(job.id, DeadLetter(ReasonCode.PARSE_ERROR, Stage.INPUT, ERROR), actor=RECOVERY)
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert (letter.attempts, letter.last_owner, letter.last_lease_expires_at) == (0, None, None)
        assert (letter.reason_code, letter.stage) == (ReasonCode.PARSE_ERROR, Stage.INPUT)

    @pytest.mark.requirement("SM-11", "WC-01")
    async def test_a_client_dead_letters_any_live_job_and_revokes_its_lease(self, drive: Driver) -> None:
        burial = DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR)
        running = await drive.running()
        jobs = [
            running,
            await drive.claimed(),
            await drive.add(delay_ms=1000),
            await drive.apply(await drive.running(), Retry(ERROR)),
        ]
        for job in jobs:
            assert (await drive.apply(job.id, burial, actor=CLIENT)).status is DEAD_LETTERED
            assert isinstance(await drive.refuse(job.id, burial, actor=CLIENT), IllegalTransition)
        assert isinstance(await drive.refuse(running, Heartbeat()), LeaseLost)
        for role in (Role.POOL, Role.WORKFLOW, Role.OUTBOX):
            queued = await drive.add()
            assert isinstance(await drive.refuse(queued.id, burial, actor=Actor(role, "x")), NotAuthorised)

    async def test_a_dead_letter_in_a_later_attempt_names_its_last_owner(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        await drive.apply(job.id, Stall(), actor=RECOVERY)
        [again] = await drive.claim(worker="worker-2")
        clock.advance(10)
        burial = DeadLetter(ReasonCode.INFRASTRUCTURE_FAILURE, Stage.EXEC, ERROR)
        await drive.apply(job.id, Stall(), burial, actor=RECOVERY)
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert (letter.attempts, letter.last_owner) == (2, "worker-2")
        assert letter.last_lease_expires_at == again.lease_expires_at

    async def test_a_job_that_was_not_dead_lettered_has_no_such_record(self, drive: Driver) -> None:
        assert await drive.store.dead_letter((await drive.add()).id) is None
        assert await drive.store.dead_letter(drive.random.job_id()) is None

    @pytest.mark.requirement("LC-03", "WC-12")
    async def test_an_ended_job_accepts_no_operation(self, drive: Driver) -> None:
        for ended in await ended_jobs(drive):
            refusals = [
                await drive.refuse(ended.id, operation, actor=actor)
                for operation, actor in (
                    (Signal("go"), CLIENT),
                    (RequestCancel(), CLIENT),
                    (Cancel(), CLIENT),
                    (DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR), RECOVERY),
                    (TimeOut(ERROR), RECOVERY),
                )
            ]
            for refusal in refusals:
                assert isinstance(refusal, IllegalTransition)
                assert (refusal.status, refusal.allowed) == (ended.status, ())

    @pytest.mark.requirement("LC-03")
    @pytest.mark.parametrize("operation", [Complete("1"), Retry(ERROR), Fail(ERROR), Halt("x", "1")], ids=named)
    async def test_a_job_that_has_not_started_can_neither_complete_nor_fail(
        self, drive: Driver, operation: Operation
    ) -> None:
        job = await drive.claimed()
        refusal = await drive.refuse(job, operation)
        assert isinstance(refusal, IllegalTransition)
        assert (refusal.status, refusal.operation) == ("claimed", operation.type)
        assert {"start", "heartbeat", "release"} <= set(refusal.allowed)
        assert str(job.id) in str(refusal)

    @pytest.mark.requirement("WC-01")
    async def test_roles_have_no_authority_beyond_their_own(self, drive: Driver) -> None:
        job = await drive.running()
        for role in (Role.CLIENT, Role.POOL, Role.RECOVERY, Role.WORKFLOW, Role.OUTBOX):
            for operation in (Complete("1"), Fail(ERROR), Retry(ERROR), Heartbeat()):
                assert isinstance(await drive.refuse(job, operation, actor=runner(job, role=role)), NotAuthorised)


async def ended_jobs(drive: Driver) -> list[Job]:
    """One job of each end."""
    burial = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
    ended = [
        await drive.apply(await drive.running(), operation)
        for operation in (Complete('"needle"'), Fail(ERROR), Halt("limit", "1"), burial)
    ]
    ended.append(await drive.apply((await drive.add()).id, Cancel(), actor=CLIENT))
    assert not {job.status for job in ended} & LIVE
    return ended
