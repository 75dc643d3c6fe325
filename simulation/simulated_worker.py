"""A process that claims jobs of one kind, one at a time, and runs them without a worker's machinery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec

from simulation.queue_limits import QUEUE
from simulation.random_streams import RandomStream
from tenure.errors import RevisionConflict, StoreUnavailable
from tenure.lifecycle.records import Job
from tenure.stores.contract import ClaimRequest, Failure, Request


class SimulatedWorker(ABC):
    """`dies`: whether an attempt may end without a request to the store."""

    kind: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, chance: RandomStream, sleep: Callable[[float], Awaitable[None]], *, dies: bool) -> None:
        self._chance, self._sleep, self._dies = chance, sleep, dies

    async def run(self, store: Any) -> None:
        """Claim and run jobs until cancelled. A lease that is lost is recovered."""
        while True:
            await self._sleep(self._chance.between(0.1, 1.0))
            try:
                for job in await store.claim(self._claim()):
                    await self._attempt(store, job)
            except StoreUnavailable:
                continue

    @abstractmethod
    async def _attempt(self, store: Any, job: Job) -> None: ...

    def _claim(self) -> ClaimRequest:
        return ClaimRequest(
            queues=(QUEUE,),
            kinds=(self.kind,),
            limit=1,
            worker=self.name,
            token=self._chance.token(),
            request_id=self._chance.name(),
        )

    async def _apply(self, store: Any, request: Request) -> None:
        """Apply the request; after a signal or wake has changed the job meanwhile, to its current revision."""
        [outcome] = await store.apply([request])
        if isinstance(outcome, Failure) and isinstance(outcome.error, RevisionConflict):
            await store.apply([msgspec.structs.replace(request, job=request.job_id, fresh=False)])

    async def _until_replied(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """The result of the request, which is repeated while the store is unavailable."""
        while True:
            try:
                return await send()
            except StoreUnavailable:
                await self._sleep(0.5)
