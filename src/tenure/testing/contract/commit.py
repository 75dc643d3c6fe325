"""The commit: once per job, and what it forbids afterwards."""

from __future__ import annotations

import asyncio

import pytest

from tenure.errors import AlreadyCommitted, IllegalTransition, LeaseLost
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.executions import ExecutionStatus
from tenure.lifecycle.operations import (
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
    Signal,
    Stall,
    Suspend,
    TimeOut,
)
from tenure.lifecycle.statuses import RUNNING, STALLED, SUCCEEDED
from tenure.stores.contract import Applied
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.leases import named
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver

DEAD_LETTERING = DeadLetter(ReasonCode.TIMEOUT, Stage.COMMIT, ERROR)
BY_OWNER = (
    Commit("1"),
    Retry(ERROR),
    Fail(ERROR),
    Halt("cost", "1"),
    Suspend(),
    Compensate(),
    Release(),
    DEAD_LETTERING,
)
BY_CLIENT: tuple[Operation, ...] = (Signal("go"), RequestCancel(), Cancel())
BY_RECOVERY: tuple[Operation, ...] = (Requeue(), GiveUp(ERROR), TimeOut(ERROR), DEAD_LETTERING)


class CommitContract:
    """`commit`, `complete`, `reconcile`."""

    @pytest.mark.requirement("EL-01")
    async def test_a_commit_is_recorded_with_its_result_while_the_job_runs_on(self, drive: Driver) -> None:
        job = await drive.running()
        committed = await drive.apply(job, Commit('{"paid":1}'))
        assert (committed.status, committed.committed, committed.result) == (RUNNING, True, None)
        assert (committed.committed_result, committed.committed_at) == ('{"paid":1}', committed.updated_at)
        event = (await drive.events_of(job.id))[-1]
        assert (event.type, event.commits, event.digest is not None) == ("committed", True, True)
        [execution] = await drive.store.executions(job.id)
        assert execution.status is ExecutionStatus.COMMITTED

    async def test_a_committed_job_heartbeats_reports_progress_and_completes(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Commit("[7]"))
        job = await drive.apply(job, Heartbeat())
        job = await drive.apply(job, Progress(99, "nearly"))
        done = await drive.apply(job, Complete("[7]"))
        assert (done.status, done.result, done.committed_result) == (SUCCEEDED, "[7]", None)
        assert [event.commits for event in await drive.events_of(job.id)].count(True) == 1
        [execution] = await drive.store.executions(job.id)
        assert execution.status is ExecutionStatus.DONE

    async def test_without_a_commit_before_it_the_completion_is_the_commit(self, drive: Driver) -> None:
        done = await drive.apply(await drive.running(), Complete('"x"'))
        assert (done.status, done.result, done.committed_at) == (SUCCEEDED, '"x"', done.finished_at)
        assert (await drive.events_of(done.id))[-1].commits

    async def test_a_completion_with_another_result_than_the_committed_one_is_refused(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Commit("1"))
        assert isinstance(await drive.refuse(job, Complete("2")), IllegalTransition)

    @pytest.mark.requirement("EL-03", "EL-05")
    @pytest.mark.parametrize("operation", BY_OWNER, ids=named)
    async def test_after_a_commit_the_owner_can_only_finish(self, drive: Driver, operation: Operation) -> None:
        job = await drive.apply(await drive.running(), Commit("1"))
        refusal = await drive.refuse(job, operation)
        assert isinstance(refusal, AlreadyCommitted)
        assert set(refusal.allowed) == {"heartbeat", "progress", "complete", "stall"}

    @pytest.mark.requirement("EL-03")
    async def test_after_a_commit_neither_client_nor_recovery_can_undo_it(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.apply(await drive.running(policy={"lease_seconds": 10}), Commit("1"))
        for operation in BY_CLIENT:
            assert isinstance(await drive.refuse(job.id, operation, actor=CLIENT), AlreadyCommitted)
        clock.advance(100_000)
        for operation in BY_RECOVERY:
            assert isinstance(await drive.refuse(job.id, operation, actor=RECOVERY), AlreadyCommitted)
        stalled = await drive.apply(job.id, Stall(), actor=RECOVERY)
        for operation in BY_RECOVERY:
            assert isinstance(await drive.refuse(stalled.id, operation, actor=RECOVERY), AlreadyCommitted)
        for operation in BY_CLIENT:
            assert isinstance(await drive.refuse(stalled.id, operation, actor=CLIENT), AlreadyCommitted)

    @pytest.mark.requirement("EL-05", "EL-06")
    async def test_a_crash_after_the_commit_is_reconciled_with_the_committed_result(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.apply(
            await drive.running(policy={"lease_seconds": 10, "max_attempts": 1, "on_exhausted": "fail"}), Commit("[7]")
        )
        clock.advance(10)
        stalled = await drive.apply(job.id, Stall(), actor=RECOVERY)
        assert (stalled.status, stalled.failures, stalled.due_at) == (STALLED, 0, None)
        assert await drive.claim() == []
        assert (await drive.store.executions(job.id))[0].status is ExecutionStatus.COMMITTED
        assert isinstance(await drive.refuse(job, Complete("[7]")), LeaseLost)
        done = await drive.apply(job.id, Reconcile(), actor=RECOVERY)
        assert (done.status, done.result, done.committed_at) == (SUCCEEDED, "[7]", job.committed_at)
        event = (await drive.events_of(job.id))[-1]
        assert (event.type, event.cause, event.commits) == ("succeeded", "reconciled", False)

    async def test_stall_and_reconcile_can_be_one_request(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.apply(await drive.running(policy={"lease_seconds": 10}), Commit("[7]"))
        clock.advance(10)
        done = await drive.apply(job.id, Stall(), Reconcile(), actor=RECOVERY)
        assert (done.status, done.result, done.rev) == (SUCCEEDED, "[7]", 6)

    async def test_an_uncommitted_job_is_not_reconciled(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        await drive.apply(job.id, Stall(), actor=RECOVERY)
        assert isinstance(await drive.refuse(job.id, Reconcile(), actor=RECOVERY), IllegalTransition)

    @pytest.mark.requirement("EL-03")
    async def test_of_two_commits_at_once_one_is_made(self, drive: Driver) -> None:
        job = await drive.running()
        requests = [drive.request(job, Commit(str(number))) for number in range(8)]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.try_apply(request)) for request in requests]
        assert sum(isinstance(task.result(), Applied) for task in tasks) == 1
        assert (await drive.types_of(job.id)).count("committed") == 1

    async def test_a_commit_and_the_completion_can_be_one_request(self, drive: Driver) -> None:
        done = await drive.apply(await drive.running(), Commit("3"), Complete("3"))
        assert (done.status, done.result, done.rev) == (SUCCEEDED, "3", 5)
