"""The network between a process and the database: requests and replies are lost, delayed or duplicated.

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
from simulation.random_streams import RandomStream
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
    from simulation.cluster import SimulatedCluster

T = TypeVar("T")

LATENCY_SECONDS = (0.0005, 0.01)
DELAY_SECONDS = (0.2, 8.0)
LATE_SECONDS = (0.05, 6.0)
ONCE_OR_TWICE = ("enqueue", "claim", "fire", "apply")


class Connection:
    """One process's connection to the database."""

    def __init__(self, cluster: SimulatedCluster, node: Node, chance: RandomStream) -> None:
        self._cluster, self._node, self._chance = cluster, node, chance

    async def ask(self, what: str, serve: Callable[[], Awaitable[T]]) -> T:
        """Send a request to the database. After StoreUnavailable it is unknown whether the request took effect."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        there, back = self._chance.between(*LATENCY_SECONDS), self._chance.between(*LATENCY_SECONDS)
        fault, extra = self._fault(what.partition(" ")[0]), self._chance.fraction()
        self._cluster.note(self._node, what, fault)
        if fault is Fault.REQUEST_LOST or self._cluster.outage:
            loop.call_later(there, _fail, answer, fault or Fault.OUTAGE)
            return await answer
        if fault is Fault.DELAY:
            there += _between(DELAY_SECONDS, extra)
        if fault is Fault.DONE_LATE:
            loop.call_later(there, _fail, answer, fault)
            there += _between(LATE_SECONDS, extra)
        done = self._serving(serve, answer, back=back, fault=fault, what=what)
        loop.call_later(there, self._cluster.serve, done, context=Context())
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
        except Exception as error:  # noqa: BLE001 - it is returned to the sender
            loop.call_later(back, _raise, answer, error)
        else:
            await self._cluster.served(what)
            if fault is Fault.REPLY_LOST:
                loop.call_later(back, _fail, answer, fault)
            elif fault is not Fault.DONE_LATE:
                loop.call_later(back, _succeed, answer, result)

    def _fault(self, what: str) -> Fault | None:
        """Drawn for every request, whether faults happen now or not, so that each draw stays where it is."""
        share = self._cluster.options.request_faults
        drawn = self._chance.fraction()
        if not self._cluster.faulty or drawn >= share:
            return None
        fault = OF_REQUESTS[int(drawn / share * len(OF_REQUESTS))]
        if fault is Fault.DUPLICATE and what not in ONCE_OR_TWICE:
            # Within a transaction each message follows the last on one connection, where nothing comes twice.
            return None
        return None if fault in self._cluster.options.without else fault


class RemoteStore:
    """The store as a simulated process sees it. It has no state but its connection."""

    def __init__(self, cluster: SimulatedCluster, node: Node, chance: RandomStream) -> None:
        self._cluster, self._node = cluster, node
        self._connection = Connection(cluster, node, chance)
        self._store = cluster.store
        self.schedules = RemoteSchedules(cluster, self._connection)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if after is not None:
            await after
        added = await self._connection.ask("enqueue", lambda: self._store.enqueue(requests))
        self._cluster.ring({one.job.queue for one in added})
        return added

    async def prepare(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> list[Job]:
        return await self._connection.ask("claim", lambda: self._store.claim(request))

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        what = "apply " + ",".join(operation.type for request in requests for operation in request.operations)
        outcomes = await self._connection.ask(what, lambda: self._store.apply(requests))
        self._cluster.ring(wakeups_of(outcomes))
        self._cluster.answered(outcomes)
        return outcomes

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        return await self._connection.ask("recoverable", lambda: self._store.recoverable(limit=limit, after=after))

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._connection.ask("read", lambda: self._store.read(job_ids))

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._connection.ask("history", lambda: self._store.history(job_ids))

    async def now(self) -> datetime:
        return await self._connection.ask("now", self._store.now)

    async def register(self, worker: WorkerRecord) -> None:
        await self._connection.ask("register", lambda: self._store.register(worker))

    async def unregister(self, worker_id: str) -> None:
        await self._connection.ask("unregister", lambda: self._store.unregister(worker_id))

    @asynccontextmanager
    async def wakeups(self, queues: Sequence[str]) -> AsyncIterator[Subscription]:
        bell = SimulatedNotifier()
        self._cluster.bells[bell] = frozenset(queues)
        try:
            yield bell
        finally:
            self._cluster.bells.pop(bell, None)

    @asynccontextmanager
    async def transaction(self, *, deadline_seconds: float) -> AsyncIterator[Transaction]:
        block = RemoteCommitBlock(self._cluster, self._node, self._connection, deadline_seconds)
        await block.begin()
        try:
            yield block
        except BaseException:
            block.abandon()
            raise
        await block.commit()


class RemoteSchedules:
    """The store's schedules as a simulated scheduler sees them."""

    def __init__(self, cluster: SimulatedCluster, connection: Connection) -> None:
        self._cluster, self._connection = cluster, connection
        self._schedules = cluster.store.schedules

    async def soonest(self, *, limit: int, after: tuple[datetime, str] | None = None) -> Soonest:
        return await self._connection.ask("soonest", lambda: self._schedules.soonest(limit=limit, after=after))

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult] | None:
        added = await self._connection.ask("fire", lambda: self._schedules.fire(firing, requests))
        self._cluster.fired(added)
        return added


class RemoteCommitBlock:
    """A transaction over the connection. When the connection is lost, the database rolls it back."""

    def __init__(self, cluster: SimulatedCluster, node: Node, connection: Connection, deadline_seconds: float) -> None:
        self._cluster, self._node, self._connection = cluster, node, connection
        self._context = cluster.store.transaction(deadline_seconds=deadline_seconds)
        self._open = False
        self._tx: Transaction | None = None

    async def begin(self) -> None:
        async def enter() -> None:
            if not self._open:
                self._tx = await self._context.__aenter__()
                self._open = True
                self._cluster.blocks[self] = self._node

        await self._connection.ask("begin", enter)

    async def commit(self) -> None:
        async def leave() -> None:
            if self._open:
                self._open = False
                self._cluster.blocks.pop(self, None)
                await self._context.__aexit__(None, None, None)

        await self._connection.ask("commit", leave)

    def abandon(self) -> None:
        """The other end is gone: the database notices, and undoes it."""
        self._cluster.spawn_outside(self._roll_back())

    async def _roll_back(self) -> None:
        if self._open:
            self._open = False
            self._cluster.blocks.pop(self, None)
            error = StoreUnavailable("the line is gone")
            await self._context.__aexit__(type(error), error, None)

    @property
    def _inside(self) -> Transaction:
        if self._tx is None or not self._open:
            raise StoreUnavailable("this transaction is gone")
        return self._tx

    async def execute(self, sql: str, *values: Any) -> int:
        return await self._connection.ask("execute", lambda: self._inside.execute(sql, *values))

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return await self._connection.ask("fetch", lambda: self._inside.fetch(sql, *values))

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._connection.ask("tx enqueue", lambda: self._inside.enqueue(requests))

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        await self._connection.ask("tx post", lambda: self._inside.post(messages, job=job))

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        await self._connection.ask("tx attach", lambda: self._inside.attach(job, artifacts))

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._connection.ask("tx apply", lambda: self._inside.apply(request))
        self._cluster.answered([outcome], inside=True)
        return outcome


class SimulatedNotifier:
    """Wake-ups for waiting workers, some of which are lost."""

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
