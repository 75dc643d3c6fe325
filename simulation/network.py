"""The way from a process to the database, on which requests and answers get lost, late or doubled.

The database itself is one real store. It serves whatever has reached it, also when the process that asked is dead by
then; what is lost on the way is lost for the asker alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from simulation.faults import OF_REQUESTS, Fault
from simulation.random_streams import Chance
from simulation.virtual_loop import Node
from tenure.errors import StoreUnavailable
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.schedules import Firing
from tenure.stores.contract import (
    Artifact,
    ClaimRequest,
    EnqueueRequest,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    Soonest,
    Subscription,
    Transaction,
    WorkerRecord,
    wakeups_of,
)

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")

LATENCY_SECONDS = (0.0005, 0.01)
DELAY_SECONDS = (0.2, 8.0)
LATE_SECONDS = (0.05, 6.0)
ONCE_OR_TWICE = ("enqueue", "claim", "fire", "apply")


class Wire:
    """One process's way to the database."""

    def __init__(self, world: World, node: Node, chance: Chance) -> None:
        self._world, self._node, self._chance = world, node, chance

    async def ask(self, what: str, serve: Callable[[], Awaitable[T]]) -> T:
        """Have the database do this. StoreUnavailable says that nobody knows whether it did."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        there, back = self._chance.between(*LATENCY_SECONDS), self._chance.between(*LATENCY_SECONDS)
        fault, extra = self._fault(what.partition(" ")[0]), self._chance.fraction()
        self._world.note(self._node, what, fault)
        if fault is Fault.REQUEST_LOST or self._world.outage:
            loop.call_later(there, _fail, answer, fault or Fault.OUTAGE)
            return await answer
        if fault is Fault.DELAY:
            there += _between(DELAY_SECONDS, extra)
        if fault is Fault.DONE_LATE:
            loop.call_later(there, _fail, answer, fault)
            there += _between(LATE_SECONDS, extra)
        done = self._serving(serve, answer, back=back, fault=fault, what=what)
        loop.call_later(there, self._world.serve, done, context=Context())
        return await answer

    async def _serving(
        self,
        serve: Callable[[], Awaitable[T]],
        answer: asyncio.Future[T],
        *,
        back: float,
        fault: Fault | None,
        what: str,
    ) -> None:
        """At the database: do it, and send the answer on its way."""
        loop = asyncio.get_running_loop()
        try:
            result = await serve()
            if fault is Fault.DUPLICATE:
                result = await serve()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            loop.call_later(back, _raise, answer, error)
        else:
            await self._world.served(what)
            if fault is Fault.REPLY_LOST:
                loop.call_later(back, _fail, answer, fault)
            elif fault is not Fault.DONE_LATE:
                loop.call_later(back, _succeed, answer, result)

    def _fault(self, what: str) -> Fault | None:
        """Drawn for every request, whether faults happen now or not, so that each draw stays where it is."""
        share = self._world.options.request_faults
        drawn = self._chance.fraction()
        if not self._world.faulty or drawn >= share:
            return None
        fault = OF_REQUESTS[int(drawn / share * len(OF_REQUESTS))]
        if fault is Fault.DUPLICATE and what not in ONCE_OR_TWICE:
            # Within a transaction each message follows the last on one connection, where nothing comes twice.
            return None
        return None if fault in self._world.options.without else fault


class WiredStore:
    """What a simulated process holds of the store. Nothing of it is kept there: only the wire is its own."""

    def __init__(self, world: World, node: Node, chance: Chance) -> None:
        self._world, self._node = world, node
        self._wire = Wire(world, node, chance)
        self._store = world.store
        self.schedules = WiredSchedules(world, self._wire)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if after is not None:
            await after
        added = await self._wire.ask("enqueue", lambda: self._store.enqueue(requests))
        self._world.ring({one.job.queue for one in added})
        return added

    async def prepare(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> list[Job]:
        return await self._wire.ask("claim", lambda: self._store.claim(request))

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        what = "apply " + ",".join(operation.type for request in requests for operation in request.operations)
        outcomes = await self._wire.ask(what, lambda: self._store.apply(requests))
        self._world.ring(wakeups_of(outcomes))
        self._world.answered(outcomes)
        return outcomes

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        return await self._wire.ask("recoverable", lambda: self._store.recoverable(limit=limit, after=after))

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._wire.ask("read", lambda: self._store.read(job_ids))

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._wire.ask("history", lambda: self._store.history(job_ids))

    async def now(self) -> datetime:
        return await self._wire.ask("now", self._store.now)

    async def register(self, worker: WorkerRecord) -> None:
        await self._wire.ask("register", lambda: self._store.register(worker))

    async def unregister(self, worker_id: str) -> None:
        await self._wire.ask("unregister", lambda: self._store.unregister(worker_id))

    @asynccontextmanager
    async def wakeups(self, queues: Sequence[str]) -> AsyncIterator[Subscription]:
        bell = SimulatedNotifier()
        self._world.bells[bell] = frozenset(queues)
        try:
            yield bell
        finally:
            self._world.bells.pop(bell, None)

    @asynccontextmanager
    async def transaction(self, *, deadline_seconds: float) -> AsyncIterator[Transaction]:
        block = WiredBlock(self._world, self._node, self._wire, deadline_seconds)
        await block.begin()
        try:
            yield block
        except BaseException:
            block.abandon()
            raise
        await block.commit()


class WiredSchedules:
    """What a simulated scheduler holds of the store's schedules."""

    def __init__(self, world: World, wire: Wire) -> None:
        self._world, self._wire = world, wire
        self._schedules = world.store.schedules

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        return await self._wire.ask("soonest", lambda: self._schedules.soonest(limit=limit, after=after))

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult] | None:
        added = await self._wire.ask("fire", lambda: self._schedules.fire(firing, requests))
        self._world.fired(added)
        return added


class WiredBlock:
    """A transaction at the other end of the wire. When the line is gone, the database rolls it back."""

    def __init__(self, world: World, node: Node, wire: Wire, deadline_seconds: float) -> None:
        self._world, self._node, self._wire = world, node, wire
        self._context = world.store.transaction(deadline_seconds=deadline_seconds)
        self._open = False
        self._tx: Transaction | None = None

    async def begin(self) -> None:
        async def enter() -> None:
            if not self._open:
                self._tx = await self._context.__aenter__()
                self._open = True
                self._world.blocks[self] = self._node

        await self._wire.ask("begin", enter)

    async def commit(self) -> None:
        async def leave() -> None:
            if self._open:
                self._open = False
                self._world.blocks.pop(self, None)
                await self._context.__aexit__(None, None, None)

        await self._wire.ask("commit", leave)

    def abandon(self) -> None:
        """The other end is gone: the database notices, and undoes it."""
        self._world.spawn_outside(self._roll_back())

    async def _roll_back(self) -> None:
        if self._open:
            self._open = False
            self._world.blocks.pop(self, None)
            error = StoreUnavailable("the line is gone")
            await self._context.__aexit__(type(error), error, None)

    @property
    def _inside(self) -> Transaction:
        if self._tx is None or not self._open:
            raise StoreUnavailable("this transaction is gone")
        return self._tx

    async def execute(self, sql: str, *values: Any) -> int:
        return await self._wire.ask("execute", lambda: self._inside.execute(sql, *values))

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return await self._wire.ask("fetch", lambda: self._inside.fetch(sql, *values))

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._wire.ask("tx enqueue", lambda: self._inside.enqueue(requests))

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        await self._wire.ask("tx post", lambda: self._inside.post(messages, job=job))

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        await self._wire.ask("tx attach", lambda: self._inside.attach(job, artifacts))

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._wire.ask("tx apply", lambda: self._inside.apply(request))
        self._world.answered([outcome], inside=True)
        return outcome


class SimulatedNotifier:
    """Hints for one who waits."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True


def _between(span: tuple[float, float], fraction: float) -> float:
    return span[0] + (span[1] - span[0]) * fraction


def _fail(answer: asyncio.Future[Any], fault: Fault) -> None:
    _raise(answer, StoreUnavailable(f"the database did not answer ({fault})"))


def _raise(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
