"""The network between a process and the database: requests and replies are lost, delayed or duplicated.

The database is one real store. It serves whatever has reached it, also if the requesting process has died; what is lost
on the network is lost for that process alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from simulation.faults import OF_REQUESTS, Fault
from simulation.random_streams import RandomStream
from simulation.virtual_loop import Node
from tenure.errors import StoreUnavailable
from tenure.lifecycle.budgets import BudgetLine
from tenure.lifecycle.records import Event, Job, Role
from tenure.lifecycle.schedules import Firing
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import (
    Artifact,
    Busy,
    ClaimRequest,
    EnqueueRequest,
    EnqueueResult,
    FinishedJobs,
    FinishedKind,
    JobPage,
    OutboxMessage,
    Outcome,
    Prunable,
    PrunedBatch,
    Request,
    Reserve,
    ReserveOutcome,
    SaveStep,
    SignalRecord,
    Soonest,
    StepOutcome,
    Store,
    StoreTransaction,
    Subscription,
    Transaction,
    VerboseEvents,
    WorkerRecord,
    wakeups_of,
)
from tenure.stores.contract.steps import STEPS_PER_READ
from tenure.stores.group_commit import GroupCommit
from tenure.stores.wake_parents import wake_parents

if TYPE_CHECKING:
    from simulation.cluster import SimulatedCluster

T = TypeVar("T")

LATENCY_SECONDS = (0.0005, 0.01)
DELAY_SECONDS = (0.2, 8.0)
LATE_SECONDS = (0.05, 6.0)
_ONLY = {
    # Within a transaction messages follow each other on one connection, where nothing is duplicated.
    Fault.DUPLICATE: ("enqueue", "claim", "fire", "apply"),
    Fault.ROW_LOCKED: ("apply",),
    Fault.LOCK_WAIT: ("claim",),
}
"""Faults that only some requests can have."""


class DividedStore(Store, Protocol):
    """A store whose `apply` can be divided: a process may die between the write and the wakes of parents."""

    async def apply_only(self, requests: Sequence[Request]) -> list[Outcome]: ...

    async def wakeable(self, job_ids: Sequence[UUID]) -> list[Job]: ...


class Connection:
    """One process's connection to the database."""

    def __init__(self, cluster: SimulatedCluster, node: Node, chance: RandomStream) -> None:
        self._cluster, self._node, self._chance = cluster, node, chance

    async def call(
        self,
        what: str,
        serve: Callable[[], Awaitable[T]],
        serve_locked: Callable[[float], Awaitable[T]] | None = None,
    ) -> T:
        """Send a request to the database. After StoreUnavailable it is unknown whether the request took effect.

        Where another session has locked what the request needs, `serve_locked` gets the seconds that it had to wait.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        there, back = self._chance.between(*LATENCY_SECONDS), self._chance.between(*LATENCY_SECONDS)
        fault, extra = self._fault(what.partition(" ")[0]), self._chance.fraction()
        self._cluster.note(self._node, what, fault)
        if fault is Fault.REQUEST_LOST or self._cluster.outage:
            loop.call_later(there, _fail, answer, fault or Fault.OUTAGE)
            return await answer
        if fault in (Fault.DELAY, Fault.LOCK_WAIT):
            there += _between(DELAY_SECONDS, extra)
        if fault in (Fault.ROW_LOCKED, Fault.LOCK_WAIT) and serve_locked is not None:
            serve = partial(serve_locked, _between(DELAY_SECONDS, extra))
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
        """At the database: serve it, and send the reply."""
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
        """Drawn for every request, whether faults occur now or not, so that each draw stays the same."""
        share = self._cluster.options.request_faults
        drawn = self._chance.fraction()
        if not self._cluster.faulty or drawn >= share:
            return None
        fault = OF_REQUESTS[int(drawn / share * len(OF_REQUESTS))]
        if fault in _ONLY and what not in _ONLY[fault]:
            return None
        return None if fault in self._cluster.options.without else fault


class RemoteStore:
    """The store as a simulated process sees it. It has no state but its connection."""

    where = "the simulated database"

    def __init__(self, cluster: SimulatedCluster, node: Node, chance: RandomStream) -> None:
        self._cluster, self._node = cluster, node
        self._connection = Connection(cluster, node, chance)
        self._store = cluster.store
        self._single_enqueues = GroupCommit(self._enqueue, cluster.app.seams, name="simulated-enqueues")
        self._single_signals = GroupCommit(self._signal, cluster.app.seams, name="simulated-signals")
        self.schedules = RemoteSchedules(cluster, self._connection)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if after is not None:
            await after
        if len(requests) == 1 and not requests[0].has_key:
            return [await self._single_enqueues.submit(requests[0])]
        return await self._enqueue(requests)

    async def _enqueue(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        added = await self._connection.call("enqueue", lambda: self._store.enqueue(requests))
        self._cluster.seen["enqueues written together"] += len(requests) > 1
        self._cluster.wake({one.job.queue for one in added})
        return added

    async def prepare(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> list[Job]:
        async def waited(seconds: float) -> list[Job]:
            if seconds > request.wait_seconds_max:
                self._cluster.seen["claim waited too long"] += 1
                raise StoreUnavailable(f"the claim waited {seconds:.1f} s and took nothing")
            return await self._store.claim(request)

        return await self._connection.call("claim", lambda: self._store.claim(request), waited)

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        what = "apply " + ",".join(operation.type for request in requests for operation in request.operations)
        if len(requests) == 1 and requests[0].is_signal:
            outcomes = [await self._single_signals.submit(requests[0])]
        else:
            outcomes = await self._apply(what, requests)
        self._cluster.answered(outcomes)
        # The process may die, and each of the two requests may be lost, before the parents are woken.
        await wake_parents(requests, outcomes, wakeable=self._wakeable, apply=partial(self._apply, "apply wake"))
        return outcomes

    async def _signal(self, requests: Sequence[Request]) -> list[Outcome]:
        self._cluster.seen["signals written together"] += len(requests) > 1
        return await self._apply("apply signal", requests)

    async def _apply(self, what: str, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await self._connection.call(
            what, lambda: self._store.apply_only(requests), lambda _: self._apply_unlocked(requests)
        )
        self._cluster.wake(wakeups_of(outcomes))
        return outcomes

    async def _wakeable(self, job_ids: Sequence[UUID]) -> list[Job]:
        return await self._connection.call("wakeable", lambda: self._store.wakeable(job_ids))

    async def _apply_unlocked(self, requests: Sequence[Request]) -> list[Outcome]:
        """The first job's row is locked by another session. Workers get Busy; a client waits for the row."""
        first = requests[0]
        job = (await self._store.read([first.job_id])).get(first.job_id)
        if job is None or first.actor.role is Role.CLIENT:
            return await self._store.apply_only(requests)
        self._cluster.seen["row locked"] += 1
        others = [request for request in requests if request.job_id != first.job_id]
        outcomes = iter(await self._store.apply_only(others) if others else [])
        return [Busy(job) if request.job_id == first.job_id else next(outcomes) for request in requests]

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        return await self._connection.call("recoverable", lambda: self._store.recoverable(limit=limit, after=after))

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._connection.call("read", lambda: self._store.read(job_ids))

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        return await self._connection.call(
            "children", lambda: self._store.children(parent_id, live_only=live_only, after=after, limit=limit)
        )

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._connection.call("signals", lambda: self._store.signals(job_id))

    async def save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        return await self._connection.call("save steps", lambda: self._store.save_steps(requests))

    async def reserve(self, request: Reserve) -> ReserveOutcome:
        return await self._connection.call("reserve", lambda: self._store.reserve(request))

    async def run_state(self, job_id: UUID) -> str | None:
        return await self._connection.call("run state", lambda: self._store.run_state(job_id))

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        return await self._connection.call("budget", lambda: self._store.budget(root_id))

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        return await self._connection.call("steps", lambda: self._store.steps(job_id, after=after, limit=limit))

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._connection.call("history", lambda: self._store.history(job_ids))

    async def now(self) -> datetime:
        return await self._connection.call("now", self._store.now)

    async def finished_kinds(self) -> list[FinishedKind]:
        return await self._connection.call("finished kinds", self._store.finished_kinds)

    async def prune(self, prunable: Prunable, *, limit: int, actor: None = None) -> PrunedBatch:
        retention = self._cluster.retention
        batch = await self._connection.call("prune", lambda: retention.prune(self._store, prunable, limit=limit))
        self._cluster.seen["job pruned"] += isinstance(prunable, FinishedJobs) and batch.removed > 0
        self._cluster.seen["detail blanked"] += isinstance(prunable, VerboseEvents) and batch.removed > 0
        return batch

    async def register(self, worker: WorkerRecord) -> None:
        await self._connection.call("register", lambda: self._store.register(worker))

    async def unregister(self, worker_id: str) -> None:
        await self._connection.call("unregister", lambda: self._store.unregister(worker_id))

    @asynccontextmanager
    async def wakeups(self, queues: Sequence[str]) -> AsyncIterator[Subscription]:
        subscription = SimulatedNotifier()
        self._cluster.subscriptions[subscription] = frozenset(queues)
        try:
            yield subscription
        finally:
            self._cluster.subscriptions.pop(subscription, None)

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
        return await self._connection.call("soonest", lambda: self._schedules.soonest(limit=limit, after=after))

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult] | None:
        added = await self._connection.call("fire", lambda: self._schedules.fire(firing, requests))
        self._cluster.fired(added)
        return added


class RemoteCommitBlock:
    """A transaction over the connection. When the connection is lost, the database rolls it back."""

    def __init__(self, cluster: SimulatedCluster, node: Node, connection: Connection, deadline_seconds: float) -> None:
        self._cluster, self._node, self._connection = cluster, node, connection
        self._context = cluster.store.transaction(deadline_seconds=deadline_seconds)
        self._open = False
        self._tx: StoreTransaction | None = None

    async def begin(self) -> None:
        async def enter() -> None:
            if not self._open:
                self._tx = await self._context.__aenter__()
                self._open = True
                self._cluster.blocks[self] = self._node

        await self._connection.call("begin", enter)

    async def commit(self) -> None:
        async def leave() -> None:
            if self._open:
                self._open = False
                self._cluster.blocks.pop(self, None)
                await self._context.__aexit__(None, None, None)

        await self._connection.call("commit", leave)

    def abandon(self) -> None:
        """The connection is lost: the database notices, and rolls back."""
        self._cluster.spawn_outside(self._roll_back())

    async def _roll_back(self) -> None:
        if self._open:
            self._open = False
            self._cluster.blocks.pop(self, None)
            error = StoreUnavailable("the line is gone", where=RemoteStore.where)
            await self._context.__aexit__(type(error), error, None)

    @property
    def _inside(self) -> StoreTransaction:
        if self._tx is None or not self._open:
            raise StoreUnavailable("this transaction is gone", where=RemoteStore.where)
        return self._tx

    async def execute(self, sql: str, *values: Any) -> int:
        return await self._connection.call("execute", lambda: self._inside.execute(sql, *values))

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return await self._connection.call("fetch", lambda: self._inside.fetch(sql, *values))

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._connection.call("tx enqueue", lambda: self._inside.enqueue(requests))

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        await self._connection.call("tx post", lambda: self._inside.post(messages, job=job))

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        await self._connection.call("tx attach", lambda: self._inside.attach(job, artifacts))

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._connection.call("tx apply", lambda: self._inside.apply(request))
        self._cluster.answered([outcome], inside=True)
        return outcome

    async def save_step(self, request: SaveStep) -> StepOutcome:
        return await self._connection.call("tx save step", lambda: self._inside.save_step(request))

    async def write_steps(self, job: Job, steps: Sequence[StepRecord]) -> None:
        await self._connection.call("tx write steps", lambda: self._inside.write_steps(job, steps))


class SimulatedNotifier:
    """Wake-ups for waiting workers, some of which are lost."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def wake(self) -> None:
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
    _raise(answer, StoreUnavailable(f"the database did not answer ({fault})", where=RemoteStore.where))


def _raise(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
