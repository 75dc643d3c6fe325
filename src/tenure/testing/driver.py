"""Short calls for driving a store in tests: add, claim, apply, refuse. The only state is a counter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.errors import TenureError
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Actor, Event, Job, Origin, Policy, Role
from tenure.seams import SYSTEM, Random
from tenure.stores.contract import (
    Applied,
    Busy,
    ClaimRequest,
    EnqueueRequest,
    Failure,
    FinishedJobs,
    Outcome,
    PruneStore,
    Repeated,
    Request,
    Store,
    VerboseEvents,
)

CLIENT = Actor(Role.CLIENT, "ada")
RECOVERY = Actor(Role.RECOVERY, "mender")
OPERATOR = Actor(Role.CLIENT, "operator")
ERROR = '{"type":"ValueError","message":"no"}'


class Driver:
    """Drives one store. Ids come from `random`, so that two stores can be driven with the same ids."""

    def __init__(self, store: Store, *, random: Random = SYSTEM.random) -> None:
        self.store = store
        self.random = random
        self._asked = 0

    def request_id(self) -> str:
        """A new request id."""
        self._asked += 1
        return f"request-{self._asked}-{self.random.name()}"

    def enqueue(
        self,
        kind: str = "mail",
        *,
        policy: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        due_at: datetime | None = None,
        **origin: Any,
    ) -> EnqueueRequest:
        """A request for a new job; `origin` sets any field of its Origin."""
        facts = {"id": self.random.job_id(), "payload": "{}", **origin}
        return EnqueueRequest(Origin(kind=kind, policy=Policy(**(policy or {})), **facts), CLIENT, delay_ms, due_at)

    async def add(self, kind: str = "mail", **facts: Any) -> Job:
        """Enqueue with these facts; the resulting job."""
        return (await self.store.enqueue([self.enqueue(kind, **facts)]))[0].job

    def claim_request(self, **facts: Any) -> ClaimRequest:
        defaults = {
            "queues": ("default",),
            "kinds": ("mail",),
            "limit": 1,
            "worker": "worker-1",
            "token": self.random.token(),
            "request_id": self.request_id(),
        }
        return ClaimRequest(**{**defaults, **facts})

    async def claim(self, **facts: Any) -> list[Job]:
        return await self.store.claim(self.claim_request(**facts))

    async def running(self, **facts: Any) -> Job:
        """A new job, claimed and started, with its token."""
        return await self._claimed(start=True, **facts)

    async def claimed(self, **facts: Any) -> Job:
        """A new, claimed job, with its token."""
        return await self._claimed(start=False, **facts)

    async def _claimed(self, *, start: bool, **facts: Any) -> Job:
        added = await self.add(priority=30_000, **facts)
        [job] = await self.claim(start=start, kinds=(added.kind,), queues=(added.queue,))
        assert job.id == added.id, "another job was ahead in the queue"
        return job

    def request(self, job: Job | UUID, *operations: Operation, actor: Actor | None = None, **facts: Any) -> Request:
        """By default by the runner with the job's token, under a new request id."""
        facts.setdefault("request_id", self.request_id())
        return Request(job=job, operations=operations, actor=actor or runner(job), **facts)

    async def try_apply(self, request: Request) -> Outcome:
        [outcome] = await self.store.apply([request])
        return outcome

    async def apply_when_free(self, request: Request) -> Outcome:
        """The outcome once no other transaction has the row locked; a worker repeats its request likewise."""
        while isinstance(outcome := await self.try_apply(request), Busy):  # noqa: ASYNC110 - another process has it
            await asyncio.sleep(0.001)  # noqa: TID251
        return outcome

    async def apply(self, job: Job | UUID, *operations: Operation, actor: Actor | None = None, **facts: Any) -> Job:
        """The job after the change, which must be accepted."""
        outcome = await self.try_apply(self.request(job, *operations, actor=actor, **facts))
        assert isinstance(outcome, Applied), f"not applied: {outcome!r}"
        return outcome.job

    async def refuse(
        self, job: Job | UUID, *operations: Operation, actor: Actor | None = None, **facts: Any
    ) -> TenureError:
        """The error of a change that must be refused and must write nothing."""
        job_id = job.id if isinstance(job, Job) else job
        before = await self.seen(job_id)
        outcome = await self.try_apply(self.request(job, *operations, actor=actor, **facts))
        assert isinstance(outcome, Failure), f"not refused: {outcome!r}"
        assert await self.seen(job_id) == before, "a refused change left something behind"
        return outcome.error

    async def repeat(self, request: Request) -> Job:
        """The job of a request that must be recognised as repeated and must write nothing."""
        before = await self.seen(request.job_id)
        outcome = await self.try_apply(request)
        assert isinstance(outcome, Repeated), f"not recognised as repeated: {outcome!r}"
        assert await self.seen(request.job_id) == before, "a repeated request left something behind"
        return outcome.job

    async def seen(self, job_id: UUID) -> tuple[Job | None, list[Event]]:
        """The row and the history of a job."""
        rows, histories = await self.store.read([job_id]), await self.store.history([job_id])
        return rows.get(job_id), histories.get(job_id, [])

    async def job(self, job_id: UUID) -> Job:
        return (await self.store.read([job_id]))[job_id]

    async def events_of(self, job_id: UUID) -> list[Event]:
        return (await self.store.history([job_id]))[job_id]

    async def types_of(self, job_id: UUID) -> list[str]:
        return [event.type.value for event in await self.events_of(job_id)]


def runner(job: Job | UUID, *, role: Role = Role.RUNNER) -> Actor:
    """The actor with the token of this record."""
    return Actor(role, "worker-1", job.token if isinstance(job, Job) else None)


def errors_of(outcomes: Sequence[Outcome]) -> list[type[TenureError] | None]:
    """For each outcome the type of its error, or None."""
    return [type(outcome.error) if isinstance(outcome, Failure) else None for outcome in outcomes]


async def prune_finished(
    store: PruneStore, *, older_than_seconds: float = 0, limit: int = 1000, actor: Actor = OPERATOR
) -> int:
    """Remove up to `limit` finished jobs of this age, whatever their status and kind. Returns how many."""
    removed = 0
    for found in await store.finished_kinds():
        if removed < limit:
            jobs = FinishedJobs(status=found.status, kind=found.kind, older_than_seconds=older_than_seconds)
            removed += (await store.prune(jobs, limit=limit - removed, actor=actor)).removed
    return removed


async def blank_verbose(store: PruneStore, *, older_than_seconds: float = 0, actor: Actor = OPERATOR) -> int:
    """Empty verbose details of this age. Returns how many."""
    return (await store.prune(VerboseEvents(older_than_seconds=older_than_seconds), limit=1000, actor=actor)).removed
