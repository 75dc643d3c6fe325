"""A store on whose way the changes are counted that the heart and recovery make.

They change jobs seldom and in many ways, so that what they did is read off their requests and the answers: nobody has
to remember to count, also not a role that is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tenure.lifecycle.operations import Operation, Stall
from tenure.lifecycle.records import Job
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.observe.meter import Meter
from tenure.stores.contract import Applied, Outcome, Repeated, Request, Store


def counted(store: Store, meter: Meter) -> Store:
    """The same store. What is asked of it through `apply` and was done is counted."""
    return cast(Store, _Counted(store, meter))


class _Counted:
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
        """A request that was answered is counted once, also where the first try's answer was lost."""
        if isinstance(outcome, Applied) and outcome.renewed:
            self._meter.renewed(job)
        for operation in operations:
            if isinstance(operation, Stall):
                self._meter.expired(job, operation.cause)
            elif (target := TRANSITION_OF[operation.type].target) is not None:
                self._meter.moved(job, target)
