"""Jobs that suspend, and are signalled and woken at any point. Each ends once all that it waits for has arrived, so a
lost wake-up is a job that never ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from simulation.queue_limits import QUEUE
from simulation.random_streams import RandomStream
from simulation.simulated_worker import SimulatedWorker
from tenure.lifecycle.operations import Complete, Operation, Signal, Suspend, Wake
from tenure.lifecycle.records import Actor, Job, Origin, Policy, Role, WaitingFor
from tenure.lifecycle.steps import NewStep, StepKind, StepsDigest
from tenure.stores.contract import Busy, EnqueueRequest, Request, SaveStep

JOBS = 2
POLICY = Policy(lease_seconds=6.0, max_attempts=1000)
CLIENT = Actor(Role.CLIENT, "waits")
WAKERS = (CLIENT, Actor(Role.RUNNER, "child"), Actor(Role.GATEWAY, "child"), Actor(Role.RECOVERY, "scan"))


class Awaited(msgspec.Struct, frozen=True):
    """How many signals and how many children a job waits for."""

    signals: int
    children: int


class SimulatedWaits(SimulatedWorker):
    """The waiting jobs of one run."""

    kind, name = "waits", "waiter"

    def __init__(self, chance: RandomStream, sleep: Callable[[float], Awaitable[None]], *, dies: bool) -> None:
        super().__init__(chance, sleep, dies=dies)
        self._awaited: dict[UUID, Awaited] = {}
        self._ended: Counter[UUID] = Counter()
        """The children that have ended, by their parent."""

    async def enqueue(self, store: Any) -> None:
        """The client: enqueues the jobs, and sends each all that it waits for."""
        for _ in range(JOBS):
            origin = Origin(id=self._chance.job_id(), kind=self.kind, queue=QUEUE, payload="{}", policy=POLICY)
            awaited = Awaited(self._chance.whole(0, 3), self._chance.whole(1, 2))
            self._awaited[origin.id] = awaited
            await self._until_replied(partial(store.enqueue, [EnqueueRequest(origin, CLIENT)]))
            arrivals: list[object] = [*["signal"] * awaited.signals, *["child"] * awaited.children]
            self._chance.shuffle(arrivals)
            for arrival in arrivals:
                await self._sleep(self._chance.between(0.0, 5.0))
                await self._send(store, origin.id, child=arrival == "child")

    async def _send(self, store: Any, job_id: UUID, *, child: bool) -> None:
        actor = WAKERS[self._chance.whole(0, len(WAKERS) - 1)] if child else CLIENT
        self._ended[job_id] += child
        operation: Operation = Wake() if child else Signal("go")
        request = Request(job=job_id, operations=(operation,), actor=actor, request_id=self._chance.name())
        while True:
            [outcome] = await self._until_replied(partial(store.apply, [request]))
            # A refusal is no failure: a job that has seen its last child end may itself end before the wake arrives.
            if not isinstance(outcome, Busy):
                return
            await self._sleep(0.5)

    async def _attempt(self, store: Any, job: Job) -> None:
        # The revision is read first: what arrives between the two reads is then seen twice rather than never.
        seen_rev = (await store.read([job.id]))[job.id].rev
        arrived = Awaited(len(await store.signals(job.id)), self._ended[job.id])
        actor = Actor(Role.RUNNER, self.name, job.token)
        steps = await self._save_steps(store, job, actor)
        await self._sleep(self._chance.between(0.0, 3.0))
        if self._chance.happens(0.1) and self._dies:
            return  # The process dies here.
        request = Request(
            job=job,
            operations=(self._outcome(job.id, arrived, seen_rev),),
            actor=actor,
            request_id=self._chance.name(),
            fresh=True,
            steps=steps,
        )
        await self._apply(store, request)

    async def _save_steps(self, store: Any, job: Job, actor: Actor) -> str | None:
        """Save two steps, one of which an earlier attempt may have saved; what the end of this attempt records. The
        last look at the store compares it with the rows, also where recovery has ended the attempt."""
        keys = (f"attempt {job.attempt}", f"step {self._chance.whole(0, 3)}")
        new = [NewStep(key=key, kind=StepKind.STEP, name="wait", result="1") for key in keys]
        await store.save_steps([SaveStep(job, step, actor) for step in new])
        await self._sleep(self._chance.between(0.0, 1.0))
        return StepsDigest.of(step.digest for step in await store.steps(job.id)).recorded

    def _outcome(self, job_id: UUID, arrived: Awaited, seen_rev: int) -> Operation:
        awaited = self._awaited[job_id]
        if arrived == awaited:
            return Complete("null")
        delay_seconds = 100_000.0 if self._chance.happens(0.3) else None
        waiting_for: WaitingFor = "signal" if arrived.signals < awaited.signals else "children"
        return Suspend(delay_seconds, seen_rev=seen_rev, waiting_for=waiting_for)
