"""A store that counts the changes made through it: for maintenance, whose changes are few and of many kinds.

Counts are derived from requests and outcomes, so that no maintenance role has to count by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tenure.lifecycle.operations import Operation, Stall
from tenure.lifecycle.records import Job
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.observe.meter import Meter
from tenure.stores.contract import Applied, Outcome, Repeated, Request, Store


def count_changes(store: Store, meter: Meter) -> Store:
    """The same store; what `apply` changes through it is counted."""
    return cast(Store, _CountingStore(store, meter))


class _CountingStore:
    def __init__(self, store: Store, meter: Meter) -> None:
        self._store, self._meter = store, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await self._store.apply(requests)
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Applied | Repeated) and isinstance(request.job, Job):
                self._count(request.job, request.operations, outcome)
        return outcomes

    def _count(self, job: Job, operations: tuple[Operation, ...], outcome: Applied | Repeated) -> None:
        """Repeated counts too: the response to the first try was lost, so that it has not been counted yet."""
        if isinstance(outcome, Applied) and outcome.renewed:
            self._meter.renewed(job)
        for operation in operations:
            if isinstance(operation, Stall):
                self._meter.expired(job, operation.cause)
            elif (target := TRANSITION_OF[operation.type].target) is not None:
                self._meter.moved(job, target)
