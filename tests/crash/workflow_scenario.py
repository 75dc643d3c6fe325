"""A worker that executes a run of twenty steps, some of them parallel."""

from __future__ import annotations

import asyncio

import tenure
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.worker import Worker
from tests.crash.scenario import Context, Scenario
from tests.support.waiting import eventually

LEASE_SECONDS = 10
NEVER_SECONDS = 3600.0
SEQUENTIAL, PARALLEL = range(5), range(5, 10)
WRITTEN = (*SEQUENTIAL, *PARALLEL)
"""The numbers that the ten transactional steps write."""
RESULT = sum(number + 1 for number in SEQUENTIAL) + sum(2 * number for number in PARALLEL)


async def write(tx: tenure.StepTransaction, name: str, number: int) -> int:
    await tx.execute("insert into effects (name) values ($1)", effect(name, number))
    return number


def effect(name: str, number: int) -> str:
    return f"{name} {number}"


async def increase(number: int) -> int:
    return number + 1


def double(number: int) -> int:
    return 2 * number


async def twenty_steps(run: tenure.Run, name: str) -> int:
    total = 0
    for number in SEQUENTIAL:
        total += await run.step(increase, await run.transaction(write, name, number))
    written = await run.gather(*(run.transaction(write, name, number) for number in PARALLEL))
    return total + sum(await run.map(double, written))


def declare(app: tenure.App) -> tenure.JobFunction[[str], int]:
    backoff = tenure.Backoff(base_seconds=0.05, max_seconds=0.05)
    return app.workflow(lease_seconds=LEASE_SECONDS, max_attempts=10, backoff=backoff)(twenty_steps)


async def execute(context: Context) -> None:
    """Run a worker of the run's queue until the run has ended. It recovers no run of an earlier process."""
    setattr(RecoveryWorker, "scan", _recover_nothing)  # noqa: B010 - only in this process
    app = tenure.App(context.url)
    declare(app)
    async with app:
        await _work(app.worker(queues=[context.job.queue], scan_seconds=NEVER_SECONDS, poll_seconds=NEVER_SECONDS))


async def _work(worker: Worker) -> None:
    working = asyncio.create_task(worker.run())
    await eventually(lambda: working.done() or worker.counts[SUCCEEDED] > 0)
    worker.stop()
    await working


async def _recover_nothing(_recovery: RecoveryWorker) -> int:
    return 0


WORKFLOW_SCENARIO = Scenario("execute a run of twenty steps", execute)
