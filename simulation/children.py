"""Jobs that wait for children. The children are sample jobs, so they end in every way.

Each parent suspends until few enough of its children are live, again until none is, and then ends. The log shows when
that is so: no wake comes too early, and none is missing for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from simulation import sample_jobs
from simulation.invariants import InvariantViolated
from simulation.queue_limits import QUEUE
from simulation.random_streams import RandomStream
from simulation.simulated_worker import SimulatedWorker
from tenure.app import App
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operations import Complete, Operation, Suspend
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin, Policy, Role
from tenure.lifecycle.statuses import TERMINAL, WAITING
from tenure.stores.contract import EnqueueRequest, Request

PARENTS = 2
POLICY = Policy(lease_seconds=6.0, max_attempts=1000)
CLIENT = Actor(Role.CLIENT, "parents")
WAKE_SECONDS_MAX = 90.0
"""How long a parent may wait that needs no further child: some scans of recovery, and the faults between them."""
PAGE = 100


class Waiting(msgspec.Struct):
    """A suspended parent: the number of live children that wakes it, and since when that is reached."""

    children_max: int
    enough_since_seconds: float | None = None


class SimulatedChildren(SimulatedWorker):
    """The parents and children of one run, and what the log shows of them."""

    kind, name = "parent", "parent"

    def __init__(
        self,
        app: App,
        chance: RandomStream,
        sleep: Callable[[float], Awaitable[None]],
        seconds: Callable[[], float],
        *,
        dies: bool,
    ) -> None:
        super().__init__(chance, sleep, dies=dies)
        self._app, self._seconds = app, seconds
        self._children: dict[UUID, list[EnqueueRequest]] = {}
        """The children of each parent. They are enqueued by its first attempt."""
        self._parent_of: dict[UUID, UUID] = {}
        self._spawned: set[UUID] = set()
        self._live: Counter[UUID] = Counter()
        self._waiting: dict[UUID, Waiting] = {}

    async def enqueue(self, store: Any) -> None:
        """The client: enqueues the parents."""
        for _ in range(PARENTS):
            await self._sleep(self._chance.between(0.0, 10.0))
            parent = Origin(id=self._chance.job_id(), kind=self.kind, queue=QUEUE, payload="{}", policy=POLICY)
            self._children[parent.id] = [self._child(parent.id) for _ in range(self._chance.whole(1, 4))]
            await self._until_replied(partial(store.enqueue, [EnqueueRequest(parent, CLIENT)]))

    def _child(self, parent_id: UUID) -> EnqueueRequest:
        call = sample_jobs.a_call(self._app, self._chance).enqueue
        origin = msgspec.structs.replace(call.origin, id=self._chance.job_id(), parent_id=parent_id, awaited=True)
        self._parent_of[origin.id] = parent_id
        return msgspec.structs.replace(call, origin=origin)

    async def _attempt(self, store: Any, job: Job) -> None:
        if job.id not in self._spawned:
            await self._until_replied(partial(store.enqueue, self._children[job.id]))
            self._spawned.add(job.id)
        seen_rev = (await store.read([job.id]))[job.id].rev
        live = len((await store.children(job.id, live_only=True, limit=PAGE)).jobs)
        await self._sleep(self._chance.between(0.0, 3.0))
        if self._chance.happens(0.1) and self._dies:
            return  # The process dies here.
        request = Request(
            job=job,
            operations=(self._outcome(live, seen_rev),),
            actor=Actor(Role.RUNNER, self.name, job.token),
            request_id=self._chance.name(),
            fresh=True,
        )
        await self._apply(store, request)

    def _outcome(self, live: int, seen_rev: int) -> Operation:
        if not live:
            return Complete("null")
        delay_seconds = 100_000.0 if self._chance.happens(0.3) else None
        children_max = self._chance.whole(0, live - 1)
        return Suspend(delay_seconds, seen_rev=seen_rev, waiting_for="children", children_max=children_max)

    # The log.

    def check_event(self, event: Event) -> str | None:
        """Check the next event. Returns a name under which the run counts it, if it has one."""
        shown = None
        if event.job_id in self._parent_of:
            self._live[self._parent_of[event.job_id]] += event.type is EventType.ENQUEUED
            self._live[self._parent_of[event.job_id]] -= event.to_status in TERMINAL
        elif event.job_id in self._children:
            shown = self._see_parent(event)
        self._check_waits()
        return shown

    def _see_parent(self, event: Event) -> str | None:
        shown = None
        if event.type is EventType.SUSPENDED:
            self._waiting[event.job_id] = Waiting(load(event.detail or "{}")["children_max"])
        elif event.type is EventType.WOKEN and (waiting := self._waiting.pop(event.job_id, None)) is not None:
            if self._live[event.job_id] > waiting.children_max:
                raise InvariantViolated(
                    f"job {event.job_id} is woken while {self._live[event.job_id]} of its children are live, "
                    f"and waits for {waiting.children_max}"
                )
            lost = not event.request_id.startswith("children.")
            shown = "lost wake recovered" if lost else "parent woken"
        elif event.to_status is not WAITING:
            self._waiting.pop(event.job_id, None)
        return shown

    def _check_waits(self) -> None:
        """No parent waits for long that needs no further child."""
        now_seconds = self._seconds()
        for parent_id, waiting in self._waiting.items():
            if self._live[parent_id] > waiting.children_max:
                waiting.enough_since_seconds = None
            elif waiting.enough_since_seconds is None:
                waiting.enough_since_seconds = now_seconds
            elif now_seconds - waiting.enough_since_seconds > WAKE_SECONDS_MAX:
                raise InvariantViolated(
                    f"job {parent_id} waits for {waiting.children_max} live children, has "
                    f"{self._live[parent_id]}, and was not woken for {WAKE_SECONDS_MAX:.0f} s"
                )
