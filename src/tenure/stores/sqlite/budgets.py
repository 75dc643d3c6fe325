"""Reserves and settles the budgets of runs."""

from __future__ import annotations

from uuid import UUID

from tenure.errors import RowPoisoned
from tenure.lifecycle.budgets import BudgetLine, Reservation
from tenure.stores.contract import (
    BudgetRecord,
    Failure,
    Reserve,
    Reserved,
    ReserveOutcome,
    SaveStep,
    budget_lines,
    decide_reserve,
)
from tenure.stores.sqlite.apply import read_row
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import id_of, text


def reserve(session: Session, request: Reserve) -> ReserveOutcome:
    """Check the budget, which is written with the first call, and reserve for this one."""
    row = session.select_jobs([text(request.job.id)]).fetchone()
    job = None if row is None else read_row(session, row)
    if isinstance(job, RowPoisoned):
        return Failure(job)
    records = _records(session, request.root_id) or _opened(session, request)
    outcome = decide_reserve(job, request, records, _reservations(session, request.root_id), now=session.now)
    if isinstance(outcome, Reserved):
        call: dict[str, object] = {"root_id": text(request.root_id), "job_id": text(request.job.id)}
        call |= {"attempt": request.job.attempt, "key": request.key}
        for unit, amount in request.limited_amounts.items():
            session.execute("reservations/insert", call | {"unit": unit, "amount": amount})
    return outcome


def settle(session: Session, request: SaveStep) -> None:
    """Charge what a step has spent, and end its reservation. The step is written in this transaction."""
    charge = request.charge
    if charge is None:
        return
    root_id = text(charge.root_id)
    call = {"root_id": root_id, "job_id": text(request.job.id), "attempt": request.job.attempt, "key": charge.key}
    session.execute("reservations/settle", call)
    for unit, amount in charge.amounts.items():
        session.execute("budgets/settle", {"root_id": root_id, "unit": unit, "amount": amount})


def read_budget(session: Session, root_id: UUID) -> list[BudgetLine]:
    """The state of a run's budget."""
    return budget_lines(_records(session, root_id), _reservations(session, root_id))


def _opened(session: Session, request: Reserve) -> list[BudgetRecord]:
    facts = {"root_id": text(request.root_id), "on_lost_spend": request.budget.on_lost_spend}
    for unit, limit in request.budget.limits.items():
        session.execute("budgets/insert", facts | {"unit": unit, "limit_amount": limit})
    return _records(session, request.root_id)


def _records(session: Session, root_id: UUID) -> list[BudgetRecord]:
    return [
        BudgetRecord(root_id=root_id, unit=unit, limit_amount=limit, spent=spent, on_lost_spend=on_lost_spend)
        for unit, limit, spent, on_lost_spend in session.execute("budgets/select", {"root_id": text(root_id)})
    ]


def _reservations(session: Session, root_id: UUID) -> list[Reservation]:
    return [
        Reservation(
            root_id=root_id,
            unit=unit,
            job_id=id_of(job_id),
            attempt=attempt,
            key=key,
            amount=amount,
            is_live=is_live == 1,
        )
        for unit, job_id, attempt, key, amount, is_live in session.execute(
            "reservations/select", {"root_id": text(root_id)}
        )
    ]
