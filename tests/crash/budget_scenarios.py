"""Scenarios of budgets: reserving before a call, and settling with its step."""

from __future__ import annotations

import msgspec

from tenure.lifecycle.budgets import SCALE, Budget
from tenure.lifecycle.records import Job, Role
from tenure.stores.contract import Charge, Reserve, ReserveOutcome, SaveStep, StepOutcome
from tenure.testing.contract.steps import save_request
from tenure.testing.driver import Driver, runner
from tests.crash.scenario import Context, Scenario, running

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


BUDGET_SCENARIOS = (
    Scenario("reserve", reserve, one_running),
    Scenario("settle", settle, one_reserved),
)
