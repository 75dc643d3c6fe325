"""A worker that executes a run with a budget: parallel steps with declared maxima, in the run and in a child.

Each payment is a line of a file beside the database, written when a step pays. The crash points are the statements of
reserving and settling only, and the commits that follow them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import tenure
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.worker import Worker
from tests.crash.crash_points import RECORDER, When
from tests.crash.scenario import Context, Scenario
from tests.support.waiting import eventually

LEASE_SECONDS = 10
NEVER_SECONDS = 3600.0
LIMIT = 1.0
MOST = 0.3
BUDGET = tenure.Budget(cost=LIMIT)
TABLES = ("budgets", "reservations")


def price(number: int) -> float:
    """What a step pays: at most `MOST`, so that room is given back."""
    return MOST if number % 2 else 0.1


async def pay(file: str, number: int) -> int:
    amount = price(number)
    # One write of a line is not divided, and stays when the process is killed.
    line = f"{amount}\n".encode()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    assert os.write(descriptor, line) == len(line)
    os.close(descriptor)
    await asyncio.sleep(0)
    tenure.current_step().spend(cost=amount)
    return number


def declare(app: tenure.App) -> tenure.JobFunction[[str, str], int]:
    options = tenure.Backoff(base_seconds=0.05, max_seconds=0.05)

    @app.workflow(lease_seconds=LEASE_SECONDS, max_attempts=10, backoff=options)
    async def part(run: tenure.Run, file: str) -> int:
        return sum(await run.using(spend_max={"cost": MOST}).map(pay_in(file), range(2), concurrency=2))

    @app.workflow(lease_seconds=LEASE_SECONDS, max_attempts=10, backoff=options, budget=BUDGET)
    async def whole(run: tenure.Run, file: str, queue: str) -> int:
        child = await run.spawn(part.options(queue=queue), file)
        paid = await run.using(spend_max={"cost": MOST}).map(pay_in(file), range(4), concurrency=4)
        try:
            return sum(paid) + await child.result()
        except tenure.StepFailed:
            return sum(paid)  # The child was halted at the common limit.

    return whole


def pay_in(file: str) -> Callable[[int], Coroutine[Any, Any, int]]:
    async def pay_here(number: int) -> int:
        return await pay(file, number)

    return pay_here


async def execute(context: Context) -> None:
    """Run a worker of the run's queue until the run has ended. It recovers no run of an earlier process."""
    setattr(RecoveryWorker, "scan", _recover_nothing)  # noqa: B010 - only in this process
    setattr(RECORDER, "reach", _Filter(RECORDER.reach).reach)  # noqa: B010 - only in this process
    app = tenure.App(context.url)
    declare(app)
    async with app:
        await _work(context, app.worker(queues=[context.job.queue], scan_seconds=NEVER_SECONDS, poll_seconds=0.05))


async def _work(context: Context, worker: Worker) -> None:
    working = asyncio.create_task(worker.run())
    job_id = context.job.id

    async def ended() -> bool:
        return working.done() or not (await context.store.read([job_id]))[job_id].live

    await eventually(ended)
    worker.stop()
    await working


async def _recover_nothing(_recovery: RecoveryWorker) -> int:
    return 0


class _Filter:
    """Passes on the crash points of statements on budgets, and of the next commit."""

    def __init__(self, reach: Callable[[When, str], None]) -> None:
        self._reach, self._is_open = reach, False

    def reach(self, when: When, sql: str) -> None:
        on_budget = any(table in sql for table in TABLES)
        is_commit = sql.strip().rstrip(";").lower() == "commit"
        if on_budget or (is_commit and self._is_open):
            self._is_open = on_budget or when != "after"
            self._reach(when, sql)


BUDGET_RUN_SCENARIO = Scenario("execute a run with a budget", execute)
