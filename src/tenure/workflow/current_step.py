"""The step that runs: its key for other systems, whether it is cancelled, and what it spends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

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
        """Whether this call is cancelled: its run was, or its time is over. A step in a thread cannot be interrupted;
        if it takes long it should look here now and then, and return. What it returns is ignored."""
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


@contextmanager
def as_current_step(step: CurrentStep, spend: dict[str, int]) -> Iterator[None]:
    """Code in this block is called by the step. What it reports is added to `spend`."""
    tokens = running_step.set(step), step_spend.set(spend)
    try:
        yield
    finally:
        running_step.reset(tokens[0])
        step_spend.reset(tokens[1])
