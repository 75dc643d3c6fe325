"""Reserves and settles the budgets of runs.

The budget is locked first, and then read by statements that see what others have committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

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
from tenure.stores.postgres.connections import Connections, Fetches, Session, fetch
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.rows import job_from


class InTransaction:
    """Sends statements by name inside one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        return await fetch(self._session, name, values)


class PostgresBudgets:
    """The budgets of one database."""

    def __init__(self, connections: Connections, policies: PostgresPolicies) -> None:
        self._connections, self._policies = connections, policies

    async def reserve(self, request: Reserve) -> ReserveOutcome:
        """Check the budget, which is written with the first call, and reserve for this one."""

        async def work(session: Session) -> ReserveOutcome:
            return await self._reserve(InTransaction(session), request)

        return await self._connections.write("store", work)

    async def _reserve(self, fetches: Fetches, request: Reserve) -> ReserveOutcome:
        root_id = request.root_id
        if not (locked := await fetches.fetch("budgets/lock", {"root_ids": [root_id]})):
            limits = request.budget.limits
            facts = {"units": list(limits), "limits": list(limits.values())}
            on_lost_spend = request.budget.on_lost_spend
            await fetches.fetch("budgets/insert", facts | {"root_id": root_id, "on_lost_spend": on_lost_spend})
            locked = await fetches.fetch("budgets/lock", {"root_ids": [root_id]})
        [*found] = await fetches.fetch("jobs/select_with_clock", {"ids": [request.job.id]})
        try:
            policies = await self._policies.of(found)
            job = job_from(found[0], policies, with_token=True) if found else None
        except RowPoisoned as problem:
            return Failure(problem)
        now = found[0]["now"] if found else request.job.updated_at
        reservations = await _reservations(fetches, root_id)
        outcome = decide_reserve(job, request, map(_record, locked), reservations, now=now)
        if isinstance(outcome, Reserved) and (amounts := request.limited_amounts):
            call = {"root_id": root_id, "job_id": request.job.id, "attempt": request.job.attempt, "key": request.key}
            rows = {"units": list(amounts), "amounts": list(amounts.values())}
            await fetches.fetch("reservations/insert", call | rows)
        return outcome

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        """The state of a run's budget."""
        rows = await self._connections.fetch("budgets/select", {"root_id": root_id})
        return budget_lines(map(_record, rows), await _reservations(self._connections, root_id))


async def lock_budgets(fetches: Fetches, requests: Sequence[SaveStep]) -> None:
    """Lock the budgets that these steps charge. Budgets come before jobs."""
    roots = {request.charge.root_id for request in requests if request.charge is not None}
    if roots:
        await fetches.fetch("budgets/lock", {"root_ids": sorted(roots)})


async def settle(fetches: Fetches, request: SaveStep) -> None:
    """Charge what a step has spent, and end its reservation. The step is written in this transaction."""
    charge = request.charge
    if charge is None:
        return
    call = {"root_id": charge.root_id, "job_id": request.job.id, "attempt": request.job.attempt, "key": charge.key}
    amounts = {unit: amount for unit, amount in charge.amounts.items() if amount}
    await fetches.fetch("budgets/settle", call | {"units": list(amounts), "amounts": list(amounts.values())})


async def _reservations(fetches: Fetches, root_id: UUID) -> list[Reservation]:
    rows = await fetches.fetch("reservations/select", {"root_id": root_id})
    return [Reservation(**dict(row)) for row in rows]


def _record(row: asyncpg.Record) -> BudgetRecord:
    return BudgetRecord(**dict(row))
