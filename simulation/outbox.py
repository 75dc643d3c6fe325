"""The outbox in some of the runs: two writers, two endpoints, and processors that crash and pause.

Receivers refuse some messages, and lose some replies after they have accepted. Each receiver has every message, and
accepts those of an aggregate for the first time in the order of their sequences.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from simulation.faults import Fault
from simulation.invariants import InvariantViolated
from simulation.network import Connection, RemoteStore
from simulation.random_streams import RandomStream
from simulation.virtual_loop import Node, in_node
from tenure.errors import StoreUnavailable, TenureError
from tenure.lifecycle.records import Actor, Role
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.seams import Seams
from tenure.stores.contract import OutboxMessage, Store
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    EndpointRecord,
    LeasedStream,
    MessageFilter,
    OutboxStore,
    Settlement,
    SubscriptionRecord,
)

if TYPE_CHECKING:
    from simulation.cluster import SimulatedCluster

SHARE = 0.3
"""The share of runs of the simulator with an outbox."""
ENDPOINTS = ("crm", "audit")
AGGREGATES = ("ada", "bob", "eve")
TRANSACTIONS, PROCESSORS, FAULTS = 12, 2, 4
QUIET_SECONDS_MAX = 600.0
RETRY = RetrySchedule(delays_seconds=(0.5,) * 10_000)
OPTIONS = ProcessorOptions(
    concurrency=2, lease_seconds=6.0, delivery_seconds_max=3.0, messages_max=5, poll_seconds=1.0, retry=RETRY
)
OPERATOR = Actor(Role.CLIENT, "outbox")


class RemoteOutbox:
    """The processor's part of the store, over the network."""

    def __init__(self, cluster: SimulatedCluster, connection: Connection) -> None:
        self._cluster, self._connection = cluster, connection
        self._outbox: OutboxStore = cluster.store.outbox

    async def endpoints(self) -> list[EndpointRecord]:
        return await self._connection.call("outbox endpoints", self._outbox.endpoints)

    async def claim(self, request: ClaimDeliveries) -> list[LeasedStream]:
        return await self._connection.call("outbox claim", lambda: self._outbox.claim(request))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        written = await self._connection.call("outbox settle", lambda: self._outbox.settle(settlements))
        self._cluster.seen["lease of a stream lost"] += not all(written)
        return written

    async def mark_seen(self, endpoints: Sequence[str]) -> None:
        await self._connection.call("outbox seen", lambda: self._outbox.mark_seen(endpoints))

    async def mark_failing(self, endpoint: str, *, failing: bool) -> None:
        await self._connection.call("outbox failing", lambda: self._outbox.mark_failing(endpoint, failing=failing))

    async def throttle(self, endpoint: str, *, seconds: float) -> None:
        await self._connection.call("outbox throttle", lambda: self._outbox.throttle(endpoint, seconds=seconds))

    async def warn(
        self, endpoint: str, *, failing_since: datetime, every_seconds: float, because: str, actor: Actor
    ) -> bool:
        raise NotImplementedError("no endpoint of the simulator fails for days")

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool:
        raise NotImplementedError("no endpoint of the simulator is disabled")


class SimulatedReceiver:
    """An endpoint's receiver. It outlives every processor."""

    def __init__(self, name: str, chance: RandomStream, cluster: SimulatedCluster) -> None:
        self.name, self._chance, self._cluster = name, chance, cluster
        self.accepted: defaultdict[str | None, dict[UUID, int]] = defaultdict(dict)
        self.problem: InvariantViolated | None = None

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        await self._cluster.clock.sleep(self._chance.between(0.0, 0.3))
        fate = self._chance.fraction() if self._cluster.faulty else 1.0
        if fate < 0.15:
            return Undelivered(reason="refused", throttle=fate < 0.02, retry_after_seconds=1.0)
        self._accept(delivery)
        if fate < 0.25:
            self._cluster.seen["reply of a receiver lost"] += 1
            raise TimeoutError
        return Delivered()

    async def close(self) -> None: ...

    def _accept(self, delivery: Delivery) -> None:
        assert delivery.sequence is not None, "stored messages have sequences"
        known = self.accepted[delivery.aggregate]
        if delivery.id in known:
            self._cluster.seen["message delivered again"] += 1
            return
        last = max(known.values(), default=None)
        if delivery.aggregate is not None and delivery.previous != last:
            self.problem = self.problem or InvariantViolated(
                f"{self.name} got message {delivery.sequence} of {delivery.aggregate} as the one after "
                f"{delivery.previous}, and had accepted {last} before"
            )
        known[delivery.id] = delivery.sequence


class SimulatedOutbox:
    """The writers, processors and receivers of one run."""

    def __init__(self, cluster: SimulatedCluster, chance: RandomStream, seams: Callable[[RandomStream], Seams]) -> None:
        self._cluster, self._chance, self._seams = cluster, chance, seams
        self._receivers = {name: SimulatedReceiver(name, chance.of(name), cluster) for name in ENDPOINTS}
        self._processors: dict[Node, OutboxProcessor] = {}
        self._born = 0
        self._happens = chance.happens(SHARE)

    async def begin(self, store: Any, client: Node) -> list[asyncio.Task[None]]:
        """Create the endpoints, start the processors and what happens to them, and the writers. Returns the writers."""
        if not self._happens:
            return []
        for name in ENDPOINTS:
            topics = (SubscriptionRecord(endpoint=name, topic="*"),)
            await store.outbox.put_endpoint(name, kind="simulated", subscriptions=topics, actor=OPERATOR)
        for _ in range(PROCESSORS):
            self._start()
        for number in range(FAULTS):
            self._cluster.spawn_outside(self._befall(self._chance.of(f"fault {number}")))
        create = self._cluster.loop.create_task
        return [in_node(client, partial(create, self._write(client, f"writer {number}"))) for number in (1, 2)]

    async def _write(self, node: Node, name: str) -> None:
        """A writer: transactions of its own, each with messages of several aggregates, and one of none."""
        chance = self._chance.of(name)
        store = RemoteStore(self._cluster, node, chance.of("wire"))
        pause_seconds = 2 * self._cluster.options.faulty_seconds / TRANSACTIONS
        for _ in range(TRANSACTIONS):
            await self._cluster.clock.sleep(chance.between(0.0, pause_seconds))
            aggregates = [None, *(one for one in AGGREGATES if chance.happens(0.5))]
            messages = [
                OutboxMessage(id=chance.token(), topic="paid", body="{}", aggregate=aggregate)
                for aggregate in aggregates
            ]
            try:
                async with store.transaction(deadline_seconds=5.0) as tx:
                    await tx.post(messages)
            except TenureError:
                # Whether it was committed is unknown, and either is right.
                self._cluster.seen["transaction with messages lost"] += 1

    def _start(self) -> None:
        self._born += 1
        node = Node(f"processor {self._born}", self._cluster.loop)
        chance = self._chance.of(node.name)
        outbox = RemoteOutbox(self._cluster, Connection(self._cluster, node, chance.of("wire")))
        sinks: dict[str, Any] = self._receivers
        processor = OutboxProcessor(
            outbox, lambda one: sinks[one.name], self._seams(chance), name=node.name, options=OPTIONS
        )
        self._processors[node] = processor
        node.when_dead = lambda: self._node_ended(node)
        in_node(node, lambda: self._cluster.loop.create_task(self._live(processor)))

    async def _live(self, processor: OutboxProcessor) -> None:
        try:
            await processor.run()
        except StoreUnavailable:
            raise InvariantViolated("a processor ended because the database could not be reached") from None

    def _node_ended(self, node: Node) -> None:
        processor = self._processors.pop(node)
        self._cluster.seen["crashed while delivering"] += bool(processor.delivering)
        self._cluster.spawn_outside(self._replace())

    async def _replace(self) -> None:
        await self._cluster.clock.sleep(self._chance.of(f"replace {self._born}").between(0.1, 3.0))
        self._start()

    async def _befall(self, chance: RandomStream) -> None:
        fault = Fault(chance.pick([Fault.CRASH, Fault.PAUSE]))
        await self._cluster.clock.sleep(chance.between(0.5, self._cluster.options.faulty_seconds))
        which, steps, seconds = chance.fraction(), chance.whole(1, 60), chance.between(0.5, 14.0)
        nodes = [node for node in self._processors if not node.paused]
        if fault in self._cluster.options.without or not self._cluster.faulty or not nodes:
            return
        node = nodes[int(which * len(nodes))]
        self._cluster.faults[fault] += 1
        if fault is Fault.CRASH:
            node.dies_at_step = node.steps + steps
            return
        node.pause()
        await self._cluster.clock.sleep(seconds)
        node.resume()

    async def _is_pending(self, store: Store) -> bool:
        return any(one.messages for one in (await store.outbox.depth()).endpoints)

    async def check(self, store: Store) -> None:
        """Once faults have ended: every message arrives at every endpoint, in order."""
        limit_seconds = self._cluster.loop.time() + QUIET_SECONDS_MAX
        while self._cluster.broken is None and await self._is_pending(store):
            await self._cluster.clock.sleep(1.0)
            if self._cluster.loop.time() > limit_seconds:
                raise InvariantViolated(f"messages stayed pending: {(await store.outbox.depth()).endpoints}")
        written = await store.outbox.messages(MessageFilter(), limit=1000)
        for receiver in self._receivers.values():
            if receiver.problem is not None:
                raise receiver.problem
            for aggregate in (None, *AGGREGATES):
                sent = {one.id: one.sequence for one in written if one.aggregate == aggregate}
                if (got := receiver.accepted[aggregate]) != sent:
                    raise InvariantViolated(f"{receiver.name} has {got} of {aggregate}, and {sent} were written")
