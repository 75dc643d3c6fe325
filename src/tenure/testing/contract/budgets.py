"""Budgets: a reservation fits or is refused, is settled once with its step, and counts once its attempt is lost."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput, LeaseLost, NotAuthorised
from tenure.lifecycle.budgets import SCALE, Budget, BudgetLine
from tenure.lifecycle.operations import Complete, Requeue, Stall
from tenure.lifecycle.records import Job, Role
from tenure.stores.contract import (
    Charge,
    Failure,
    NotReserved,
    Reserve,
    Reserved,
    ReserveOutcome,
    SaveStep,
    StepExists,
    StepSaved,
    Store,
)
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import CLIENT, RECOVERY, Driver, prune_finished, runner

BUDGET = Budget(cost=1, steps=3)
RELEASING = Budget(cost=1, on_lost_spend="release")


async def reserve(
    store: Store, job: Job, key: str = "0", *, budget: Budget = BUDGET, root_id: UUID | None = None, **amounts: float
) -> ReserveOutcome:
    """Reserve as the owner of the job's lease."""
    exact = {unit: round(amount * SCALE) for unit, amount in amounts.items()}
    actor = runner(job, role=Role.WORKFLOW)
    request = Reserve(job=job, actor=actor, root_id=root_id or job.id, budget=budget, key=key, amounts=exact)
    return await store.reserve(request)


def charged(job: Job, key: str = "0", *, root_id: UUID | None = None, **amounts: float) -> SaveStep:
    """A step that settles the reservation of its key."""
    exact = {unit: round(amount * SCALE) for unit, amount in amounts.items()}
    charge = Charge(root_id=root_id or job.id, key=key, amounts=exact)
    return msgspec.structs.replace(save_request(job, key), charge=charge)


async def line(store: Store, job: Job, unit: str = "cost") -> BudgetLine:
    [found] = [one for one in await store.budget(job.id) if one.unit == unit]
    return found


def figures(line: BudgetLine) -> tuple[float, float, float, float]:
    """Limit, spent, reserved, lost."""
    return line.limit / SCALE, line.spent / SCALE, line.reserved / SCALE, line.lost / SCALE


class BudgetContract:
    """`reserve`, `budget`, and `SaveStep.charge`."""

    @pytest.mark.requirement("WC-06", "WF-19")
    async def test_a_reservation_counts_until_its_step_settles_it(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        assert await store.budget(job.id) == []
        outcome = await reserve(store, job, cost=0.6, steps=1)
        assert isinstance(outcome, Reserved)
        assert outcome.lines == await store.budget(job.id)
        assert figures(await line(store, job)) == (1, 0, 0.6, 0)
        await save(store, charged(job, cost=0.2, steps=1))
        assert figures(await line(store, job)) == (1, 0.2, 0, 0)
        assert figures(await line(store, job, "steps")) == (3, 1, 0, 0)

    @pytest.mark.requirement("WC-06")
    async def test_a_limit_may_be_reached_and_not_passed(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        assert isinstance(await reserve(store, job, "0", cost=0.7), Reserved)
        refused = await reserve(store, job, "1", cost=0.300001)
        assert isinstance(refused, NotReserved)
        assert (refused.exceeded.line.unit, refused.exceeded.may_fit_later) == ("cost", True)
        assert isinstance(await reserve(store, job, "1", cost=0.3), Reserved)
        assert isinstance(await reserve(store, job, "2"), Reserved)
        never = await reserve(store, job, "2", cost=1.1)
        assert isinstance(never, NotReserved)
        assert not never.exceeded.may_fit_later

    @pytest.mark.requirement("WC-06")
    async def test_a_refused_reservation_of_several_units_reserves_none(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        assert isinstance(await reserve(store, job, cost=0.5, steps=4), NotReserved)
        assert figures(await line(store, job)) == (1, 0, 0, 0)
        assert figures(await line(store, job, "steps")) == (3, 0, 0, 0)

    async def test_a_repeated_reservation_reserves_once(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        for _ in range(3):
            assert isinstance(await reserve(store, job, cost=0.6), Reserved)
        assert figures(await line(store, job)) == (1, 0, 0.6, 0)

    @pytest.mark.requirement("WF-19")
    async def test_a_step_that_exists_is_not_charged_again(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, cost=0.6)
        await save(store, charged(job, cost=0.2))
        [again] = await store.save_steps([charged(job, cost=0.2)])
        assert isinstance(again, StepExists)
        assert figures(await line(store, job)) == (1, 0.2, 0, 0)

    @pytest.mark.requirement("WC-06")
    async def test_spend_beyond_the_limit_is_charged_and_refuses_every_further_call(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job)
        await save(store, charged(job, cost=1.5))
        assert figures(await line(store, job)) == (1, 1.5, 0, 0)
        refused = await reserve(store, job, "1")
        assert isinstance(refused, NotReserved)
        assert refused.exceeded.reason == "budget exceeded: 1.5 of 1 cost spent"

    @pytest.mark.requirement("WF-15", "WF-19")
    async def test_a_child_reserves_from_the_budget_of_its_root(self, drive: Driver) -> None:
        store, root, child = drive.store, await drive.running(), await drive.running()
        await reserve(store, root, cost=0.6)
        assert isinstance(await reserve(store, child, root_id=root.id, cost=0.5), NotReserved)
        assert isinstance(await reserve(store, child, root_id=root.id, cost=0.4), Reserved)
        await save(store, charged(child, root_id=root.id, cost=0.1))
        assert figures(await line(store, root)) == (1, 0.1, 0.6, 0)
        assert await store.budget(child.id) == []

    @pytest.mark.requirement("WF-19")
    async def test_the_reservation_of_a_lost_attempt_is_charged_once(self, drive: Driver, clock: DatabaseClock) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, cost=0.6)
        again = await self._lost_and_claimed(drive, clock, job)
        assert figures(await line(store, job)) == (1, 0, 0, 0.6)
        refused = await reserve(store, again, cost=0.5)
        assert isinstance(refused, NotReserved)
        assert not refused.exceeded.may_fit_later
        assert isinstance(await reserve(store, again, cost=0.4), Reserved)
        await save(store, charged(again, cost=0.3))
        assert figures(await line(store, job)) == (1, 0.3, 0, 0.6)
        await drive.apply(again, Complete("1"), steps=await recorded(store, again))
        assert figures(await line(store, job)) == (1, 0.3, 0, 0.6)

    @pytest.mark.requirement("WF-19")
    async def test_the_reservation_of_a_lost_attempt_is_released_where_the_budget_says_so(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, budget=RELEASING, cost=0.6)
        again = await self._lost_and_claimed(drive, clock, job)
        assert figures(await line(store, job)) == (1, 0, 0, 0)
        assert isinstance(await reserve(store, again, budget=RELEASING, cost=1), Reserved)

    async def test_without_the_lease_nothing_is_reserved_or_charged(self, drive: Driver, clock: DatabaseClock) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, cost=0.1)
        again = await self._lost_and_claimed(drive, clock, job)
        refused = await reserve(store, job, "1", cost=0.1)
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, LeaseLost)
        [late] = await store.save_steps([charged(job, cost=0.1)])
        assert isinstance(late, Failure)
        assert figures(await line(store, again)) == (1, 0, 0, 0.1)

    async def test_only_an_owners_role_may_reserve(self, drive: Driver) -> None:
        job = await drive.running()
        request = Reserve(job=job, actor=CLIENT, root_id=job.id, budget=BUDGET, key="0", amounts={"cost": 1})
        refused = await drive.store.reserve(request)
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, NotAuthorised)
        assert await drive.store.budget(job.id) == []

    @pytest.mark.parametrize("amounts", [{"cost": -1}, {"cost": 0.5}, {"a b": 1}, {"cost": 10**16}], ids=str)
    async def test_bad_amounts_are_refused(self, drive: Driver, amounts: dict[str, int]) -> None:
        job = await drive.running()
        actor = runner(job, role=Role.WORKFLOW)
        request = Reserve(job=job, actor=actor, root_id=job.id, budget=BUDGET, key="0", amounts=amounts)
        refused = await drive.store.reserve(request)
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, InvalidInput)
        step = msgspec.structs.replace(charged(job), charge=Charge(root_id=job.id, key="0", amounts=amounts))
        [not_saved] = await drive.store.save_steps([step])
        assert isinstance(not_saved, Failure)
        assert await drive.store.budget(job.id) == []

    async def test_a_step_in_a_transaction_is_settled_with_it(self, drive: Driver) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, cost=0.6)
        with pytest.raises(ZeroDivisionError):
            async with store.transaction(deadline_seconds=30) as tx:
                assert isinstance(await tx.save_step(charged(job, cost=0.2)), StepSaved)
                raise ZeroDivisionError
        assert figures(await line(store, job)) == (1, 0, 0.6, 0)
        async with store.transaction(deadline_seconds=30) as tx:
            assert isinstance(await tx.save_step(charged(job, cost=0.2)), StepSaved)
        assert figures(await line(store, job)) == (1, 0.2, 0, 0)

    @pytest.mark.requirement("WC-13")
    async def test_retention_removes_a_budget_with_its_run(self, drive: Driver, clock: DatabaseClock) -> None:
        store, job = drive.store, await drive.running()
        await reserve(store, job, cost=0.6)
        await drive.apply(job, Complete("1"))
        clock.advance(100)
        assert figures(await line(store, job)) == (1, 0, 0, 0.6)
        await prune_finished(store, older_than_seconds=1)
        assert await store.budget(job.id) == []

    async def _lost_and_claimed(self, drive: Driver, clock: DatabaseClock, job: Job) -> Job:
        clock.advance(61)
        stalled = await drive.apply(job, Stall(), actor=RECOVERY)
        await drive.apply(stalled, Requeue(), actor=RECOVERY)
        clock.advance(3600)
        [again] = [one for one in await drive.claim(start=True) if one.id == job.id]
        return again
