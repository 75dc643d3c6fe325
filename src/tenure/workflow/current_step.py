"""The step that runs: its key for other systems, whether it is cancelled, and what it spends."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token

import msgspec

from tenure.lifecycle.budgets import Amount, amounts_of


class CancelFlag:
    """Set by the event loop, and read by the thread of the step."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class CurrentStep(msgspec.Struct, frozen=True):
    """The step that this code is part of. `key` is the same in every attempt of it, and of no other step: pass it to
    other systems, so that they recognise a repetition."""

    key: str
    attempt: int
    cancel_flag: CancelFlag = msgspec.field(default_factory=CancelFlag)

    @property
    def cancelled(self) -> bool:
        """Whether this call is cancelled: its run was, or its time is over. A step in a thread cannot be interrupted; a
        long one should check this regularly, and return once it is set. What it returns is ignored."""
        return self.cancel_flag.is_set

    def spend(self, **amounts: Amount) -> None:
        """Report what this attempt of the step spends: `current_step().spend(cost=0.12, tokens=830)`. It is part of the
        record of the step; attempts that fail pay, too."""
        report_spend(amounts_of(amounts))


step_spend: ContextVar[dict[str, int] | None] = ContextVar("tenure_step_spend", default=None)


def report_spend(amounts: Mapping[str, int]) -> bool:
    """Add to the spend of the step that calls this. False outside of a step."""
    spend = step_spend.get()
    if spend is None:
        return False
    for unit, amount in amounts.items():
        spend[unit] = spend.get(unit, 0) + amount
    return True


running_step: ContextVar[CurrentStep | None] = ContextVar("tenure_step", default=None)


def current_step() -> CurrentStep:
    """The step that calls this function. RuntimeError outside of a step.

    async def charge(order: str) -> str:
        return await bank.charge(order, idempotency_key=tenure.current_step().key)
    """
    step = running_step.get()
    if step is None:
        raise RuntimeError("this code is not called by a step of a workflow, so that there is no current step")
    return step


class as_current_step:  # noqa: N801 - used as a function, and a class costs less than a generator
    """Code in this block is called by the step. What it reports is added to `spend`."""

    __slots__ = ("_spend", "_spend_token", "_step", "_step_token")

    _step_token: Token[CurrentStep | None]
    _spend_token: Token[dict[str, int] | None]

    def __init__(self, step: CurrentStep, spend: dict[str, int]) -> None:
        self._step, self._spend = step, spend

    def __enter__(self) -> None:
        self._step_token, self._spend_token = running_step.set(self._step), step_spend.set(self._spend)

    def __exit__(self, *_: object) -> None:
        running_step.reset(self._step_token)
        step_spend.reset(self._spend_token)
