"""Sends a signal to a suspended run in one round trip, without reading the run first. The same statement notifies the
workers.

Everything else about signals, refusals among them, is decided on the row that is there, as for other operations.
"""

from __future__ import annotations

from typing import Any

from tenure.errors import RowPoisoned
from tenure.lifecycle.decide import decide_chain
from tenure.lifecycle.operations import Signal
from tenure.lifecycle.records import CONTRACT_VERSION, Role
from tenure.lifecycle.size_limits import SIGNALS_MAX
from tenure.stores.contract import Applied, Outcome, Request, redacted
from tenure.stores.postgres.apply_batch import POISON
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.rows import job_from
from tenure.stores.postgres.wakeups import CHANNEL, PostgresNotifier


async def signal_waiting(
    fetches: Fetches, policies: PostgresPolicies, request: Request, *, notifier: PostgresNotifier | None
) -> Outcome | None:
    """The outcome of a signal to a job that waits. None: nothing was written, or the row cannot be read."""
    values = _parameters(request)
    if values is None:
        return None
    notified = notifier is not None and notifier.may_notify_inline()
    values["notify"] = CHANNEL if notified else None
    try:
        [row] = await fetches.fetch("jobs/signal", values)
        if row["id"] is None:
            return None
        before = job_from(row, await policies.of([row]), with_token=True)
    except (*POISON, OverflowError, RowPoisoned):
        return None
    change = decide_chain(before, request.operations, request.actor, request_id=request.request_id)
    return Applied(redacted(change), row["at"], notified=notified)


def _parameters(request: Request) -> dict[str, Any] | None:
    """The parameters of `jobs/signal.sql`. None for a request that is not a client's signal to whatever revision, or
    that has the job's id for its request id, which is that of the enqueue."""
    operation = request.operations[0]
    is_plain = request.rev is None and request.actor.role is Role.CLIENT and request.request_id != str(request.job_id)
    if not (is_plain and request.is_signal and isinstance(operation, Signal)):
        return None
    fields = operation.event_fields()
    return {
        "id": request.job_id,
        "request_id": request.request_id,
        "actor": str(request.actor),
        "version": CONTRACT_VERSION,
        "name": operation.name,
        "payload": operation.payload,
        "digest": fields.digest,
        "detail": fields.detail,
        "signals_max": SIGNALS_MAX,
    }
