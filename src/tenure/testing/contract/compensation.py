"""Jobs that undo their steps: `unwind`, `compensate`, and the end that follows."""

from __future__ import annotations

import pytest

from tenure.errors import AlreadyCommitted, IllegalTransition, NotAuthorised
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Compensate,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
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
    Unwind,
)
from tenure.lifecycle.records import EndsAs, Job
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

UNWIND = Unwind("failed", "timeout", ERROR)
UNDONE = Compensate("failed", "timeout")
LETTER = DeadLetter(ReasonCode.COMPENSATION_FAILED, Stage.EXEC, ERROR)
OTHER = '{"type":"Other","message":"no"}'
ENDS: dict[EndsAs, Operation] = {"failed": Fail(OTHER), "cancelled": Cancel("enough"), "dead_lettered": LETTER}
RECOVERY_ENDS: dict[EndsAs, Operation] = {**ENDS, "failed": GiveUp(OTHER), "cancelled": Cancel()}
STATUSES = {"failed": FAILED, "cancelled": CANCELLED, "dead_lettered": DEAD_LETTERED}


async def unleased(drive: Driver, clock: DatabaseClock) -> list[Job]:
    """A job in each status from which a job can be unwound; none of them is due."""
    stalled = await drive.running(policy={"lease_seconds": 5, "max_attempts": 1})
    clock.advance(5)
    return [
        await drive.add(delay_ms=60_000),
        await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=60)),
        await drive.apply(await drive.running(), Suspend()),
        await drive.apply(stalled.id, Stall(), actor=RECOVERY),
    ]


class CompensationContract:
    """What follows when a job has steps to undo."""

    @pytest.mark.requirement("SM-21")
    async def test_an_unwound_job_keeps_its_status_records_its_end_and_is_due(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        for job in await unleased(drive, clock):
            clock.advance(1)
            unwound = await drive.apply(job.id, UNWIND, actor=RECOVERY)
            assert (unwound.status, unwound.rev) == (job.status, job.rev + 1)
            assert (unwound.ends_as, unwound.ends_because, unwound.last_error) == ("failed", "timeout", ERROR)
            assert (unwound.due_at, unwound.timeout_at, unwound.lost) == (unwound.updated_at, None, False)
            assert (await drive.job(job.id)) == unwound
            event = (await drive.events_of(job.id))[-1]
            assert (event.type.value, event.cause, event.actor) == ("unwinding", "timeout", str(RECOVERY))
            [claimed] = await drive.claim()
            assert (claimed.id, claimed.ends_as, claimed.ends_because) == (job.id, "failed", "timeout")
            assert isinstance(await drive.refuse(job.id, UNWIND, actor=RECOVERY), IllegalTransition)
            await drive.apply(claimed, Release(delay_seconds=1000))

    @pytest.mark.requirement("SM-21", "WC-01")
    async def test_only_recovery_unwinds_and_no_leased_committed_or_ended_job(self, drive: Driver) -> None:
        queued, running = await drive.add(delay_ms=1000), await drive.running()
        assert isinstance(await drive.refuse(queued.id, UNWIND, actor=CLIENT), NotAuthorised)
        assert isinstance(await drive.refuse(running, UNWIND), NotAuthorised)
        assert isinstance(await drive.refuse(running.id, UNWIND, actor=RECOVERY), IllegalTransition)
        committed = await drive.apply(running, Commit("1"))
        assert isinstance(await drive.refuse(committed.id, UNWIND, actor=RECOVERY), AlreadyCommitted)
        assert isinstance(await drive.refuse(committed, UNDONE), AlreadyCommitted)

    @pytest.mark.requirement("SM-21")
    async def test_failures_of_undo_attempts_are_counted_afresh_whatever_the_policy(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        policy = {"max_attempts": 2, "on_lost": "fail", "on_exhausted": "fail", "lease_seconds": 5}
        job = await drive.running(policy=policy)
        await drive.apply(job, Retry(ERROR, delay_seconds=60))
        await drive.apply(job.id, UNWIND, actor=RECOVERY)
        [first] = await drive.claim()
        assert (first.failures, first.failures_before_undo) == (1, 1)
        clock.advance(5)
        lost = await drive.apply(first.id, Stall(), Requeue(), actor=RECOVERY)
        assert (lost.failures, lost.exhausted) == (2, False)
        [second] = await drive.claim()
        assert isinstance(await drive.refuse(second, Retry(ERROR)), IllegalTransition)
        assert isinstance(await drive.refuse(second, Fail(ERROR, permanent=False)), IllegalTransition)
        clock.advance(5)
        stalled = await drive.apply(second.id, Stall(), actor=RECOVERY)
        assert (stalled.exhausted, stalled.due_at, stalled.recovery_action()) == (True, None, "dead_letter")
        ended = await drive.apply(second.id, LETTER, actor=RECOVERY)
        assert (ended.status, ended.reason) == (DEAD_LETTERED, "compensation_failed")

    @pytest.mark.requirement("SM-21")
    async def test_an_unwound_job_does_nothing_but_undo(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=1000, policy={"timeouts": Timeouts(queued_seconds=1)})
        await drive.apply(job.id, UNWIND, actor=RECOVERY)
        [held] = await drive.claim()
        for operation in (Commit("1"), Complete("1"), Fail(ERROR)):
            assert isinstance(await drive.refuse(held, operation), IllegalTransition)
        await drive.apply(held.id, RequestCancel(), actor=CLIENT)
        assert isinstance(await drive.refuse(held.id, Cancel(), actor=runner(held)), IllegalTransition)
        assert isinstance(
            await drive.refuse(held.id, Compensate("cancelled", "x"), actor=runner(held)), IllegalTransition
        )
        done = await drive.apply(held.id, UNDONE, Fail(OTHER), actor=runner(held))
        assert (done.status, done.error) == (FAILED, OTHER)

    @pytest.mark.requirement("SM-10", "SM-21")
    async def test_a_hard_cancel_ends_a_job_that_undoes_its_steps(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=1000)
        await drive.apply(job.id, UNWIND, actor=RECOVERY)
        await drive.claim()
        assert (await drive.apply(job.id, Cancel("now"), actor=CLIENT)).status is CANCELLED

    @pytest.mark.requirement("SM-21")
    @pytest.mark.parametrize("ends_as", ENDS)
    async def test_a_compensated_job_ends_as_was_recorded_and_in_no_other_way(
        self, drive: Driver, ends_as: EndsAs
    ) -> None:
        """Without an earlier unwind: a running workflow compensates and ends itself."""
        job = await drive.running()
        await drive.apply(job.id, RequestCancel("enough"), actor=CLIENT)
        owner = runner(job)
        undone = await drive.apply(job.id, Compensate(ends_as, "because"), actor=owner)
        assert (undone.compensated_at, undone.ends_as, undone.ends_because) == (undone.updated_at, ends_as, "because")
        assert (await drive.job(job.id)).compensated_at == undone.compensated_at
        for operation in (Compensate(ends_as, "because"), Complete("1"), Retry(ERROR), Suspend(), Release()):
            assert isinstance(await drive.refuse(job.id, operation, actor=owner), IllegalTransition)
        for other in (end for name, end in ENDS.items() if name != ends_as):
            assert isinstance(await drive.refuse(job.id, other, actor=owner), IllegalTransition)
        for by_client in (Cancel("now"), Signal("go"), RequestCancel(), LETTER):
            assert isinstance(await drive.refuse(job.id, by_client, actor=CLIENT), IllegalTransition)
        await drive.apply(job.id, Heartbeat(), actor=owner)
        await drive.apply(job.id, Progress(99), actor=owner)
        ended = await drive.apply(job.id, ENDS[ends_as], actor=owner)
        assert (ended.status, ended.compensated_at) == (STATUSES[ends_as], undone.compensated_at)

    @pytest.mark.requirement("SM-21")
    @pytest.mark.parametrize("ends_as", ENDS)
    async def test_a_compensated_job_that_is_lost_never_runs_again_and_recovery_ends_it(
        self, drive: Driver, clock: DatabaseClock, ends_as: EndsAs
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 5})
        await drive.apply(job.id, RequestCancel("enough"), actor=CLIENT)
        await drive.apply(job.id, Compensate(ends_as, "because"), actor=runner(job))
        assert isinstance(await drive.refuse(job.id, LETTER, actor=RECOVERY), IllegalTransition)
        clock.advance(5)
        stalled = await drive.apply(job.id, Stall(), actor=RECOVERY)
        assert (stalled.due_at, stalled.failures) == (None, 0)
        assert [found.id for found in await drive.store.recoverable(limit=10)] == [job.id]
        assert await drive.claim() == []
        assert isinstance(await drive.refuse(job.id, Requeue(), actor=RECOVERY), IllegalTransition)
        ended = await drive.apply(job.id, RECOVERY_ENDS[ends_as], actor=RECOVERY)
        assert ended.status is STATUSES[ends_as]
