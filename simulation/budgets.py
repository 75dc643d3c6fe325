"""Runs that share a budget. Each attempt reserves before it pays, and settles with a step; it may die in between.

What was paid is counted here, outside of the store. It never passes the limit, whatever was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from simulation.invariants import InvariantViolated
from simulation.queue_limits import QUEUE
from simulation.random_streams import RandomStream
from simulation.simulated_worker import SimulatedWorker
from tenure.lifecycle.budgets import SCALE, Budget
from tenure.lifecycle.operations import Complete, Halt, Operation
from tenure.lifecycle.records import Actor, Job, Origin, Policy, Role
from tenure.lifecycle.steps import NewStep, StepKind, StepsDigest
from tenure.stores.contract import (
    Charge,
    EnqueueRequest,
    Failure,
    NotReserved,
    Request,
    Reserve,
    Reserved,
    SaveStep,
)

SHARE = 0.3
"""The share of runs of the simulator that have budgets."""
JOBS, STEPS = 3, 6
BUDGET = Budget(cost=5)
POLICY = Policy(lease_seconds=6.0, max_attempts=1000, budget=BUDGET)
CLIENT = Actor(Role.CLIENT, "budgets")


class SimulatedBudgets(SimulatedWorker):
    """A root and its children, which spend from one budget."""

    kind, name = "spends", "spender"

    def __init__(self, chance: RandomStream, sleep: Callable[[float], Awaitable[None]], *, dies: bool) -> None:
        super().__init__(chance, sleep, dies=dies)
        self.root_id: UUID | None = None
        self._paid: Counter[UUID] = Counter()
        """What was paid from each budget, by the run whose budget it is."""
        self._reused: dict[UUID, frozenset[str]] = {}
        """The steps that the fork of a run begins with, by that run."""
        self.problem: InvariantViolated | None = None
        self.happens = chance.happens(SHARE)

    async def enqueue(self, store: Any) -> None:
        """The client: enqueues the root, and its children."""
        for _ in range(JOBS):
            job_id = self._chance.job_id()
            origin = Origin(id=job_id, kind=self.kind, queue=QUEUE, payload="{}", policy=POLICY, parent_id=self.root_id)
            await self._until_replied(partial(store.enqueue, [EnqueueRequest(origin, CLIENT)]))
            self.root_id = self.root_id or job_id

    def expect_fork(self, job_id: UUID, reused: frozenset[str]) -> None:
        """The fork of this run pays for none of these steps."""
        self._reused[job_id] = reused

    def reused_by(self, job: Job) -> frozenset[str]:
        """The steps that a fork begins with; none for other jobs."""
        return frozenset() if job.origin.redrive_of is None else self._reused[job.origin.redrive_of]

    async def until_replied(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """The result of the request, which is repeated while the store is unavailable."""
        return await self._until_replied(send)

    def _budget_of(self, job: Job) -> UUID:
        """The run whose budget the job spends: a fork has its own."""
        assert self.root_id is not None
        return self.root_id if job.origin.redrive_of is None else job.id

    async def _attempt(self, store: Any, job: Job) -> None:
        actor = Actor(Role.RUNNER, self.name, job.token)
        recorded = {step.key for step in await store.steps(job.id)}
        operation: Operation = Complete("null")
        for number in range(STEPS):
            if f"step {number}" in recorded:
                continue
            outcome = await self._step(store, job, actor, f"step {number}")
            if isinstance(outcome, NotReserved):
                if outcome.exceeded.may_fit_later:
                    return  # The lease expires, and the job is tried again.
                operation = Halt(outcome.exceeded.reason, "null")
                break
            if outcome is None or (self._chance.happens(0.15) and self._dies):
                return  # The lease is lost, or the process dies here.
        await self._end(store, job, actor, operation)

    async def _step(self, store: Any, job: Job, actor: Actor, key: str) -> Reserved | NotReserved | None:
        root_id = self._budget_of(job)
        most = self._chance.whole(1, 10) * SCALE // 10
        request = Reserve(job=job, actor=actor, root_id=root_id, budget=BUDGET, key=key, amounts={"cost": most})
        outcome = await self._until_replied(partial(store.reserve, request))
        if isinstance(outcome, NotReserved):
            return outcome
        if isinstance(outcome, Failure):
            return None
        await self._sleep(self._chance.between(0.0, 2.0))
        amount = self._chance.whole(1, most)
        self._pay(job, key, amount)
        if self._chance.happens(0.15) and self._dies:
            return None  # The process dies after it has paid.
        step = NewStep(key=key, kind=StepKind.STEP, name="pay", result="1")
        charge = Charge(root_id=root_id, key=key, amounts={"cost": amount})
        save = SaveStep(job, step, actor, charge)
        [saved] = await self._until_replied(partial(store.save_steps, [save]))
        return None if isinstance(saved, Failure) else outcome

    def _pay(self, job: Job, key: str, amount: int) -> None:
        root_id, limit = self._budget_of(job), BUDGET.limits["cost"]
        self._paid[root_id] += amount
        paid = self._paid[root_id]
        if paid > limit and self.problem is None:
            self.problem = InvariantViolated(f"{paid} of {limit} millionths were paid from one budget")
        if key in self.reused_by(job):
            self.problem = InvariantViolated(f"the fork {job!r} paid again for {key!r}, which is recorded")

    async def _end(self, store: Any, job: Job, actor: Actor, operation: Operation) -> None:
        steps = StepsDigest.of(step.digest for step in await store.steps(job.id)).recorded
        request = Request(
            job=job, operations=(operation,), actor=actor, request_id=self._chance.name(), fresh=True, steps=steps
        )
        await self._apply(store, request)

    async def check(self, store: Any) -> None:
        """What the store counts covers what was paid, and is within the limit."""
        if self.problem is not None:
            raise self.problem
        for root_id, paid in self._paid.items():
            for line in await store.budget(root_id):
                if not paid <= line.used <= line.limit:
                    raise InvariantViolated(
                        f"of a limit of {line.limit} millionths {paid} were paid, and {line.used} are counted"
                    )
