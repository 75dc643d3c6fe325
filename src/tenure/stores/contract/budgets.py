"""Budgets: reserving before a call, settling with its step, and the workflow engine's part of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, JobNotFound, NotAuthorised
from tenure.lifecycle.budgets import (
    AMOUNT_MAX,
    SCALE,
    Amounts,
    Budget,
    BudgetLine,
    Exceeded,
    OnLostSpend,
    Reservation,
    check_unit,
    exceeded,
    lines_of,
)
from tenure.lifecycle.decide import effective_at
from tenure.lifecycle.json_text import check_integer, check_text
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.steps import MAY_SAVE, save_refusal
from tenure.stores.contract.results import Failure, without_token

RESERVE = "reserve"
"""The name of the operation in refusals."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What a step charges to the budget of its run, in millionths, and the key under which its call has reserved."""

    root_id: UUID
    key: str
    amounts: Mapping[str, int]


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """Before a call: check the budget, and reserve what the call may spend at most. Without amounts, only check.

    `root_id` is the run whose budget this is: the job itself, or an ancestor. A repetition reserves nothing more.
    """

    job: Job
    actor: Actor
    root_id: UUID
    budget: Budget
    key: str
    amounts: Mapping[str, int]

    @property
    def limited_amounts(self) -> dict[str, int]:
        """The amounts of units that have a limit, without zeros."""
        limits = self.budget.limits
        return {unit: amount for unit, amount in sorted(self.amounts.items()) if amount and unit in limits}


class Reserved(msgspec.Struct, frozen=True):
    """The call may begin. The lines include what it has reserved."""

    lines: list[BudgetLine]


class NotReserved(msgspec.Struct, frozen=True):
    """A limit does not allow the call. Nothing was written but the budget itself."""

    exceeded: Exceeded
    lines: list[BudgetLine]


ReserveOutcome = Reserved | NotReserved | Failure
"""Failure: as for a step, without the lease or the authority to save one."""


class BudgetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored limit and spend of one unit of a run's budget, in millionths."""

    root_id: UUID
    unit: str
    limit_amount: int
    spent: int
    on_lost_spend: OnLostSpend


class ReservationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored reservation, in millionths."""

    root_id: UUID
    unit: str
    job_id: UUID
    attempt: int
    key: str
    amount: int


def budget_lines(records: Iterable[BudgetRecord], reservations: Iterable[Reservation]) -> list[BudgetLine]:
    """The state of a stored budget."""
    records = list(records)
    on_lost_spend: OnLostSpend = records[0].on_lost_spend if records else "charge"
    return lines_of(
        {record.unit: record.limit_amount for record in records},
        {record.unit: record.spent for record in records},
        reservations,
        on_lost_spend=on_lost_spend,
    )


def decide_reserve(
    current: Job | None,
    request: Reserve,
    records: Iterable[BudgetRecord],
    reservations: Iterable[Reservation],
    *,
    now: datetime,
) -> ReserveOutcome:
    """The outcome on the current record (with its token) and the locked budget. Reserved: it is to be written."""
    if current is None:
        return Failure(JobNotFound(request.job.id))
    refusal = save_refusal(current, request.actor, attempt=request.job.attempt, at=effective_at(current, now))
    if refusal is not None:
        refusal.current = without_token(current, request.actor)
        return Failure(refusal)
    records = list(records)
    own = request.job.id, request.job.attempt, request.key
    others = [one for one in reservations if (one.job_id, one.attempt, one.key) != own]
    problem = exceeded(budget_lines(records, others), request.limited_amounts)
    if problem is not None:
        return NotReserved(problem, budget_lines(records, others))
    mine = [
        Reservation(
            root_id=request.root_id,
            unit=unit,
            job_id=request.job.id,
            attempt=request.job.attempt,
            key=request.key,
            amount=amount,
        )
        for unit, amount in request.limited_amounts.items()
    ]
    return Reserved(budget_lines(records, [*others, *mine]))


def validate_amounts(amounts: Amounts) -> None:
    """Validate amounts in millionths."""
    for unit, amount in amounts.items():
        check_unit(unit)
        check_integer(amount, unit, least=0, most=AMOUNT_MAX * SCALE)


def validate_reserve(request: Reserve) -> None:
    """Validate a request to reserve. Whether the actor has the lease is decided when it is written."""
    if not isinstance(request.budget, Budget):
        raise InvalidInput("budget", f"must be a Budget, not {request.budget!r}")
    role = request.actor.role
    if all(by.role is not role for by in MAY_SAVE):
        raise NotAuthorised(request.job, RESERVE, role=role, allowed=[by.role for by in MAY_SAVE])
    check_text(request.key, "key")
    validate_amounts(request.amounts)


class BudgetStore(Protocol):
    """The workflow engine's part: it reserves before a call, and settles with the step (`SaveStep.charge`)."""

    async def reserve(self, request: Reserve) -> ReserveOutcome:
        """Check the budget and reserve, in one transaction, under the lease of the job."""
        ...

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        """The state of a run's budget, by unit. Empty before its first call."""
        ...
