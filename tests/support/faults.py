"""A store whose calls fail: before anything was written, or after it was written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from tenure.errors import StoreUnavailable
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import ClaimRequest, JobPage, Outcome, Request, Store, Subscription
from tenure.stores.contract.steps import STEPS_PER_READ


class Fault(Enum):
    """What happens to the next call."""

    REQUEST_LOST = "nothing was done, and the caller cannot know"
    REPLY_LOST = "it was done, and the caller cannot know"


class FaultyStore:
    """The parts of a store that workers use, in front of a real store. Each call has the next planned fault."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.faults: deque[Fault | None] = deque()
        self.calls: list[str] = []

    async def _call(self, name: str, call: Any) -> Any:
        self.calls.append(name)
        fault = self.faults.popleft() if self.faults else None
        if fault is Fault.REQUEST_LOST:
            raise StoreUnavailable(fault.value)
        answer = await call()
        if fault is Fault.REPLY_LOST:
            raise StoreUnavailable(fault.value)
        return answer

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes: list[Outcome] = await self._call("apply", lambda: self.store.apply(requests))
        return outcomes

    async def claim(self, request: ClaimRequest) -> list[Job]:
        jobs: list[Job] = await self._call("claim", lambda: self.store.claim(request))
        return jobs

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        jobs: list[Job] = await self._call("recoverable", lambda: self.store.recoverable(limit=limit, after=after))
        return jobs

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        steps: list[StepRecord] = await self._call("steps", lambda: self.store.steps(job_id, after=after, limit=limit))
        return steps

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        return await self.store.children(parent_id, live_only=live_only, after=after, limit=limit)

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self.store.read(job_ids)

    async def now(self) -> datetime:
        return await self.store.now()

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        return self.store.wakeups(queues)
