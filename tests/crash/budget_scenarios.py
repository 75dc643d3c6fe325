"""Scenarios of budgets and forks: reserving before a call, settling with its step, and forking a halted run."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tenure.client.forks import fork_run
from tenure.lifecycle.budgets import SCALE, Budget
from tenure.lifecycle.operations import Halt
from tenure.lifecycle.records import Job, Role
from tenure.seams import Seams, SystemRandom
from tenure.stores.contract import Charge, EnqueueResult, Reserve, ReserveOutcome, SaveStep, StepOutcome
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import CLIENT, Driver, runner
from tests.crash.scenario import Context, Scenario, job_id, running

BUDGET = Budget(cost=1, steps=3)
AMOUNTS = {"cost": 600_000, "steps": SCALE}


def request(job: Job) -> Reserve:
    actor = runner(job, role=Role.WORKFLOW)
    return Reserve(job=job, actor=actor, root_id=job.id, budget=BUDGET, key="main/1", amounts=AMOUNTS)


def charged(job: Job) -> SaveStep:
    charge = Charge(root_id=job.id, key="main/1", amounts={"cost": 200_000, "steps": SCALE})
    return msgspec.structs.replace(save_request(job, "main/1"), charge=charge)


async def reserve(context: Context) -> ReserveOutcome:
    """The first call of a run, which also writes its budget."""
    return await context.store.reserve(request(context.job))


async def settle(context: Context) -> list[StepOutcome]:
    return await context.store.save_steps([charged(context.job)])


async def one_running(drive: Driver) -> list[Job]:
    return [await running(drive)]


async def one_reserved(drive: Driver) -> list[Job]:
    job = await running(drive)
    await drive.store.reserve(request(job))
    return [job]


async def fork(context: Context) -> EnqueueResult:
    """A job with copies of the recorded steps, under the same id in every process."""
    seams = Seams(random=_SameId())
    return await fork_run(
        context.store, context.job, actor=CLIENT, seams=seams, from_step="main/2", budget=BUDGET, request_id="fork"
    )


class _SameId(SystemRandom):
    def job_id(self) -> UUID:
        return job_id(90)


async def one_halted(drive: Driver) -> list[Job]:
    job = await running(drive)
    await save(drive.store, *(save_request(job, f"main/{number}") for number in range(3)))
    return [await drive.apply(job, Halt("budget", "null"), steps=await recorded(drive.store, job))]


BUDGET_SCENARIOS = (
    Scenario("fork", fork, one_halted, new_policies=True),
    Scenario("reserve", reserve, one_running),
    Scenario("settle", settle, one_reserved),
)
