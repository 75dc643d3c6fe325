"""A fork of an ended run: it begins with the recorded steps of that run, and pays for none of them again.

The client repeats its request until there is a reply, also when the COMMIT of the transaction had none. There is one
fork, with a budget of its own, whatever was lost.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simulation.budgets import BUDGET, STEPS, SimulatedBudgets
from simulation.invariants import InvariantViolated
from simulation.random_streams import RandomStream
from tenure.client.forks import continued_by, fork_run
from tenure.lifecycle.forks import FORK_KEY
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import Seams
from tenure.stores.contract import EnqueueResult

CLIENT = Actor(Role.CLIENT, "forks")


class SimulatedForks:
    """The client that forks the first run with a budget once it has ended."""

    def __init__(self, chance: RandomStream, seams: Seams, budgets: SimulatedBudgets) -> None:
        self._chance, self._seams, self._budgets = chance, seams, budgets
        self._old: Job | None = None
        self.many = 0

    async def fork(self, store: Any) -> None:
        """Wait for the end of the run, and fork it from one of its steps, or from its end if it was halted."""
        budgets = self._budgets
        while (job := await self._ended(store)) is None:
            await self._seams.clock.sleep(1.0)
        keys = [step.key for step in await budgets.until_replied(partial(store.steps, job.id))]
        if not keys:
            return
        number = self._chance.whole(1, len(keys) - 1) if len(keys) > 1 else 0
        from_step = keys[number] if number or len(keys) == STEPS else None
        fork = partial(
            fork_run,
            store,
            job,
            actor=CLIENT,
            seams=self._seams,
            from_step=from_step,
            budget=BUDGET,
            request_id="fork",
        )
        # The fork may be claimed before the reply comes.
        budgets.expect_fork(job.id, frozenset(keys if from_step is None else keys[:number]))
        result: EnqueueResult = await budgets.until_replied(fork)
        self._old, self.many = job, 1
        if result.job.origin.redrive_of != job.id:
            raise InvariantViolated(f"{result.job!r} is not forked from {job!r}")

    async def _ended(self, store: Any) -> Job | None:
        root_id = self._budgets.root_id
        if root_id is None:
            return None
        job: Job = (await self._budgets.until_replied(partial(store.read, [root_id])))[root_id]
        return None if job.live else job

    async def check(self, store: Any) -> None:
        """There is one fork, and it has the steps that it began with."""
        if self._old is None:
            return
        forks = [job async for job in continued_by(store, self._old)]
        if len(forks) != 1:
            raise InvariantViolated(f"{self._old!r} was forked once, and has {len(forks)} forks")
        recorded = {step.key for step in await store.steps(forks[0].id)}
        missing = {FORK_KEY, *self._budgets.reused_by(forks[0])} - recorded
        if missing:
            raise InvariantViolated(f"the fork {forks[0]!r} does not have the recorded steps {sorted(missing)}")
