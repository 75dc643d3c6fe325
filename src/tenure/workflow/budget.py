"""What an attempt of a run spends: reserved before each call that is executed, and charged with the call's record."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from tenure.errors import LeaseLost, StoreUnavailable
from tenure.lifecycle.budgets import ACTIVE_SECONDS, SCALE, STEPS, Budget, encode_spend, in_units, sum_amounts
from tenure.lifecycle.continuations import ContinuedFrom
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import NewStep, StepKind
from tenure.stores.contract import Charge, Failure, NotReserved, Reserve, Reserved, ReserveOutcome
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import EndsAttempt, Halted
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workflow.branch import Place
from tenure.workflow.placed_call import PlacedCall

if TYPE_CHECKING:
    from tenure.workflow.engine import WorkflowEngine

POLL_SECONDS, POLL_SECONDS_MAX = 0.02, 1.0
"""How soon a call that waits for reservations of other calls checks the budget again."""
ROOT_REMOVED = "budget exceeded: the run that this one shares its budget with was removed"


class SpendMeter:
    """The spend of one attempt. Without a budget, spend is recorded with the steps and limits nothing."""

    def __init__(self, attempt: RunningAttempt, root_id: UUID | None = None, budget: Budget | None = None) -> None:
        self._attempt, self.root_id, self.budget = attempt, root_id or attempt.job.id, budget
        self._reserved_by_call: dict[str, Mapping[str, int]] = {}
        """The amounts that the calls in progress may have reserved, by key."""
        self.is_open = False
        """Whether this attempt has reserved before, so that the rows of the budget exist."""
        self._limits = {} if budget is None else budget.limits
        self._clock = attempt.services.seams.clock
        self._charged_until_seconds = self._clock.monotonic_seconds()

    @classmethod
    async def of(cls, attempt: RunningAttempt, continued: ContinuedFrom | None = None) -> SpendMeter:
        """The meter of a run. A child shares the budget of the topmost ancestor that has one, a continued run that of
        the run before it."""
        job = attempt.job
        if job.policy.budget is None:
            return cls(attempt)
        root, store = job, attempt.services.run_store
        if continued is not None:
            root_id = continued.budget_root_id
            if not await store.budget(root_id) and not await store.read([root_id]):
                raise EndsAttempt(Halted(ROOT_REMOVED, "null"))
            return cls(attempt, root_id, job.policy.budget)
        while (parent_id := root.origin.parent_id) is not None:
            parent: Job | None = (await store.read([parent_id])).get(parent_id)
            if parent is None and not await store.budget(root.id):
                raise EndsAttempt(Halted(ROOT_REMOVED, "null"))
            if parent is None or parent.policy.budget is None:
                break
            root = parent
        return cls(attempt, root.id, root.policy.budget)

    async def reserve(self, call: PlacedCall, spend_max: Mapping[str, int]) -> str | None:
        """Reserve what a call may spend. Waits while calls in progress hold the room that it needs. Returns the reason
        to halt the run; None: the call may begin."""
        if self.budget is None:
            return None
        amounts = sum_amounts(spend_max, call.spend, {STEPS: SCALE} if STEPS in self._limits else {})
        pause_seconds = POLL_SECONDS
        while True:
            self._reserved_by_call[call.place.key] = amounts
            outcome = await self._reserve(self.budget, call.place.key, amounts)
            if not isinstance(outcome, NotReserved):
                return None
            del self._reserved_by_call[call.place.key]
            if not outcome.exceeded.may_fit_later:
                return outcome.exceeded.reason
            await self._clock.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, POLL_SECONDS_MAX)

    async def exceeded(self, key: str) -> str | None:
        """Why a run that returns is halted instead: a limit was passed."""
        if self.budget is None:
            return None
        outcome = await self._reserve(self.budget, key, {})
        return None if not isinstance(outcome, NotReserved) else outcome.exceeded.reason

    async def left(self) -> dict[str, float]:
        """What is left of each limited unit."""
        lines = await self._attempt.services.run_store.budget(self.root_id)
        left = {line.unit: in_units(line.left) for line in lines}
        return {unit: left.get(unit, in_units(limit)) for unit, limit in sorted(self._limits.items())}

    def charged(
        self, step: NewStep, key: str, amounts: Mapping[str, int], *, executed: bool = True
    ) -> tuple[NewStep, Charge | None]:
        """The step with its spend, and what it charges. `executed`: the step counts as one."""
        if self.budget is None:
            return _with_spend(step, amounts), None
        spend = sum_amounts(amounts, {STEPS: SCALE} if executed and STEPS in self._limits else {}, self._active())
        charge = Charge(
            root_id=self.root_id,
            key=key,
            amounts={unit: amount for unit, amount in spend.items() if amount and unit in self._limits},
        )
        return _with_spend(step, spend), charge

    def settled(self, key: str) -> None:
        """The record of this call was saved, with its charge."""
        self._reserved_by_call.pop(key, None)

    def reserved_for(self, key: str) -> Mapping[str, int]:
        """The amounts that the call of this key may have reserved."""
        return self._reserved_by_call.get(key, {})

    def _active(self) -> dict[str, int]:
        """The time since the last charge, where it is limited."""
        if ACTIVE_SECONDS not in self._limits:
            return {}
        now = self._clock.monotonic_seconds()
        passed = max(0, round((now - self._charged_until_seconds) * SCALE))
        self._charged_until_seconds = now
        return {ACTIVE_SECONDS: passed}

    async def _reserve(self, budget: Budget, key: str, amounts: Mapping[str, int]) -> Reserved | NotReserved:
        attempt = self._attempt
        backoff = ReconnectBackoff(attempt.services.seams)
        request = Reserve(
            job=attempt.job,
            actor=attempt.lease.actor,
            root_id=self.root_id,
            budget=budget,
            key=key,
            amounts=amounts,
        )
        while True:
            try:
                outcome = _reserved(await attempt.services.run_store.reserve(request))
            except LeaseLost:
                attempt.lease.lose()
                raise
            except StoreUnavailable:
                if attempt.lease.lost:
                    raise
                await backoff.wait()
            else:
                self.is_open = True
                return outcome


async def charge_cancelled(
    engine: WorkflowEngine, call: PlacedCall, reported: Mapping[str, int], *, has_begun: bool = True
) -> None:
    """A call was cancelled in progress, and the run continues: `run.first` has another result, for example.

    It is charged what it has reported, and at least what it had reserved, since it may have been paid. A call that has
    not begun is charged nothing. The record ends the reservation, for which later calls would wait otherwise.
    """
    reserved = engine.meter.reserved_for(call.place.key)
    spent = sum_amounts(call.spend, reported) if has_begun else {}
    if engine.has_ended or not (reserved or spent):
        return
    number = next(n for n in count() if engine.steps.peek(cancelled_key(call, n)) is None)
    place = Place(cancelled_key(call, number), call.place.branch, call.place.ordinal)
    step = PlacedCall(place, StepKind.DECISION, call.name).step(result="null")
    amounts = (
        {unit: max(reserved.get(unit, 0), spent.get(unit, 0)) for unit in {**reserved, **spent}} if has_begun else {}
    )
    await engine.save(*engine.meter.charged(step, call.place.key, amounts, executed=False))


def cancelled_key(call: PlacedCall, number: int = 0) -> str:
    """The key of the record of a call that was cancelled in progress."""
    return call.place.sub_key(f"cancelled.{number}")


def unspent(call: PlacedCall) -> PlacedCall:
    """The call without what was spent before it, which another record is charged with."""
    return msgspec.structs.replace(call, spend={})


def _reserved(outcome: ReserveOutcome) -> Reserved | NotReserved:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


def _with_spend(step: NewStep, amounts: Mapping[str, int]) -> NewStep:
    spend = encode_spend(amounts)
    return step if spend is None else msgspec.structs.replace(step, spend=spend)
