"""A scenario for each operation of the lifecycle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
    Signal,
    Stall,
    Start,
    Suspend,
    TimeOut,
    Unwind,
    Wake,
)
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import Outcome, Request
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner
from tests.crash.scenario import Context, Scenario, orphan, running, wait_until_recoverable

DEAD_LETTER = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)

One = Callable[[Driver], Awaitable[Job]]


def change(name: str, prepared: One, *operations: Operation, actor: Actor | None = None) -> Scenario:
    """A change by the job's owner or by `actor`. An owner decides on the record that it has, as a worker does; a client
    has only the id; recovery decides on the record that it read."""

    async def prepare(drive: Driver) -> list[Job]:
        return [await prepared(drive)]

    async def run(context: Context) -> list[Outcome]:
        by = actor or runner(context.job)
        job = context.job.id if by is CLIENT else context.job
        fresh = isinstance(job, Job)
        request = Request(job=job, operations=operations, actor=by, request_id="the-request", fresh=fresh)
        return await context.store.apply([request])

    return Scenario(name, run, prepare, verbs=tuple(operation.type for operation in operations))


def _claimed(drive: Driver) -> Awaitable[Job]:
    return running(drive, start=False)


async def _committed(drive: Driver) -> Job:
    return await drive.apply(await running(drive), Commit("1"))


async def _waiting(drive: Driver) -> Job:
    job = await drive.apply(await running(drive), Suspend())
    return await drive.job(job.id)


async def _lost(drive: Driver, **policy: object) -> Job:
    job = await orphan(drive, policy=policy)
    await drive.apply(job, Stall(), actor=RECOVERY)
    return await drive.job(job.id)


def _lost_for_good(drive: Driver) -> Awaitable[Job]:
    return _lost(drive, on_lost="fail")


async def _lost_after_commit(drive: Driver) -> Job:
    job = await running(drive, policy={"heartbeat_seconds": 0.01})
    await drive.apply(job, Commit('"paid"'))
    await wait_until_recoverable(drive, job.id)
    await drive.apply(await drive.job(job.id), Stall(), actor=RECOVERY)
    return await drive.job(job.id)


async def _overdue(drive: Driver) -> Job:
    job = await drive.add(policy={"timeouts": Timeouts(queued_seconds=0.001)})
    await wait_until_recoverable(drive, job.id)
    return await drive.job(job.id)


async def _exhausted(drive: Driver) -> Job:
    return await orphan(drive, policy={"max_attempts": 1, "on_exhausted": "dead_letter"}, correlation_id="order-7")


OPERATION_SCENARIOS: tuple[Scenario, ...] = (
    change("ack", _claimed, Ack()),
    change("start", _claimed, Start()),
    change("heartbeat", running, Heartbeat()),
    change("progress", running, Progress(40, "almost half")),
    change("commit", running, Commit('"paid"')),
    change("complete", running, Complete('"done"')),
    change("complete what is committed", _committed, Complete("1")),
    change("retry", running, Retry(ERROR, delay_seconds=60)),
    change("fail", running, Fail(ERROR)),
    change("halt", running, Halt("budget", "[1]")),
    change("suspend", running, Suspend(delay_seconds=60)),
    change("signal", _waiting, Signal("approved", '{"by":"ada"}'), actor=CLIENT),
    change("wake", _waiting, Wake(), actor=RECOVERY),
    change("unwind", _waiting, Unwind("failed", "timeout", ERROR), actor=RECOVERY),
    change("compensate and fail", running, Compensate(), Fail(ERROR)),
    change("release", running, Release()),
    change("request cancel", running, RequestCancel("no longer wanted"), actor=CLIENT),
    change("cancel", running, Cancel("no longer wanted"), actor=CLIENT),
    change("stall and requeue", orphan, Stall(), Requeue(), actor=RECOVERY),
    change("requeue", _lost, Requeue(), actor=RECOVERY),
    change("reconcile", _lost_after_commit, Reconcile(), actor=RECOVERY),
    change("give up", _lost_for_good, GiveUp(ERROR), actor=RECOVERY),
    change("time out", _overdue, TimeOut(ERROR), actor=RECOVERY),
    change("stall and dead letter", _exhausted, Stall(), DEAD_LETTER, actor=RECOVERY),
    change("dead letter by its owner", running, DEAD_LETTER),
)
