"""Remote engines and their gateways. Sockets are cut or fall silent, gateways and engines are killed at any await.

An engine is the reference client on a simulated socket; it connects to any gateway that runs. A result names its
attempt, so that an end recorded under another attempt's lease is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

from simulation.faults import Fault
from simulation.invariants import InvariantViolated
from simulation.queue_limits import QUEUE
from simulation.random_streams import RandomStream
from simulation.virtual_loop import Node, in_node
from tenure.app import App
from tenure.engines.client import Engine, EngineJob, EngineSocket
from tenure.engines.gateway import Gateway
from tenure.engines.services import SocketClosed
from tenure.engines.settings import GatewaySettings
from tenure.errors import StoreUnavailable
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts

if TYPE_CHECKING:
    from simulation.cluster import SimulatedCluster

SHARE = 0.3
"""The share of runs of the simulator that have engines."""
JOBS, GATEWAYS, ENGINES, CAPACITY = 6, 2, 2, 2
KIND = "rendered"
LATENCY_SECONDS = (0.001, 0.05)
KEEPALIVE_SECONDS = 20.0
"""After so long both sides of a silent socket know that it is dead."""
CUT_SHARE, SILENT_SHARE, CRASH_SHARE = 0.5, 0.2, 0.6
SETTINGS = GatewaySettings(
    queues=(QUEUE,),
    heartbeat_seconds=1.0,
    silence_seconds=3.0,
    poll_seconds=2.0,
    scan_seconds=4.0,
    grace_seconds=2.0,
    in_thread=False,
)


class SocketEnd:
    """One end of a socket, for the gateway and for the engine."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.other: SocketEnd
        self.received: asyncio.Queue[str | None] = asyncio.Queue()

    async def send(self, text: str) -> None:
        if self._link.closed:
            raise ConnectionResetError("the simulated socket is closed")
        self._link.deliver(self.other, text)

    async def recv(self) -> str:
        text = await self.received.get()
        if text is None:
            raise ConnectionResetError("the simulated socket is closed")
        return text

    async def __aiter__(self) -> AsyncIterator[str]:
        while (text := await self.received.get()) is not None:
            yield text


class GatewaySocket:
    """The end of the gateway."""

    def __init__(self, end: SocketEnd, link: Link) -> None:
        self._end, self._link = end, link

    async def receive(self) -> str:
        try:
            return await self._end.recv()
        except ConnectionResetError as closed:
            raise SocketClosed(str(closed)) from None

    async def send(self, text: str) -> None:
        try:
            await self._end.send(text)
        except ConnectionResetError as closed:
            raise SocketClosed(str(closed)) from None

    async def close(self, code: int, reason: str) -> None:
        self._link.close()


class Link:
    """A socket: messages arrive late and in their order, until it is cut. A silent one loses all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: RandomStream) -> None:
        self._loop, self._chance = loop, chance
        self.closed = self.silent = False
        self._last_at = 0.0
        self.ends = SocketEnd(self), SocketEnd(self)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]

    def deliver(self, end: SocketEnd, text: str | None) -> None:
        self._last_at = max(self._last_at, self._loop.time() + self._chance.between(*LATENCY_SECONDS))
        self._loop.call_at(self._last_at, self._arrive, end, text, context=Context())

    def _arrive(self, end: SocketEnd, text: str | None) -> None:
        if text is None or not self.silent:
            end.received.put_nowait(text)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for end in self.ends:
                self.deliver(end, None)

    def fall_silent(self) -> None:
        self.silent = True
        self._loop.call_later(KEEPALIVE_SECONDS, self.close, context=Context())


class SimulatedEngine(Engine):
    """The reference client, on a simulated socket to one of the gateways."""

    def __init__(self, engines: SimulatedEngines, name: str, chance: RandomStream, **options: Any) -> None:
        super().__init__("ws://simulated", token="t", engine_id=name, capacity=CAPACITY, **options)
        self._engines, self._chance = engines, chance
        self.handles(KIND)(self._render)

    def _open_socket(self) -> AbstractAsyncContextManager[EngineSocket]:
        return self._engines.connected(self._chance)

    async def _render(self, job: EngineJob) -> str:
        await self._seams.clock.sleep(self._chance.between(0.0, 3.0))
        await job.progress(50)
        if self._chance.happens(0.1):
            raise RuntimeError("the asset server does not reply")
        return result_of(job.id, job.dispatch.attempt)


def result_of(job_id: object, attempt: int) -> str:
    return f"{job_id}/{attempt}"


class SimulatedEngines:
    """The engines, the gateways and the jobs of one run."""

    def __init__(self, cluster: SimulatedCluster, chance: RandomStream) -> None:
        self._cluster, self._chance = cluster, chance
        self.happens = chance.happens(SHARE)
        self._gateways: dict[Node, Gateway] = {}
        self._links: dict[Node, list[Link]] = {}
        self._born = 0
        self._app = App("sqlite:///:memory:", seams=cluster.app.seams, environment={})

        @self._app.remote_job(
            kind=KIND,
            queue=QUEUE,
            lease_seconds=6.0,
            heartbeat_seconds=2.0,
            max_attempts=1000,
            timeouts=Timeouts(claimed_seconds=4.0, running_seconds=20.0),
        )
        def rendered(number: int) -> str:
            raise NotImplementedError

        self._rendered = rendered

    def start(self) -> None:
        for _ in range(GATEWAYS):
            self._start_gateway()
        for _ in range(ENGINES):
            self._start_engine()

    async def enqueue(self, store: Any) -> None:
        """The client: enqueues the jobs."""
        for number in range(JOBS):
            await self._cluster.clock.sleep(self._chance.between(0.0, 4.0))
            request = self._rendered.request(number).enqueue
            while True:
                try:
                    await store.enqueue([request])
                    break
                except StoreUnavailable:
                    await self._cluster.clock.sleep(0.5)

    def check(self, jobs: Iterable[Job]) -> None:
        """Each result is that of the attempt under whose lease it was recorded."""
        for job in jobs:
            if job.kind != KIND or job.erased_at is not None:
                continue
            if job.status is not SUCCEEDED or job.result != encode(result_of(job.id, job.attempt)):
                raise InvariantViolated(f"{job!r} of an engine ended with {job.result}")
            self._cluster.seen["job of an engine succeeded"] += 1

    @asynccontextmanager
    async def connected(self, chance: RandomStream) -> AsyncIterator[EngineSocket]:
        """A socket to any gateway that runs."""
        nodes = list(self._gateways)
        if not nodes:
            raise ConnectionRefusedError("no gateway runs")
        node = nodes[int(chance.fraction() * len(nodes))]
        link = Link(self._cluster.loop, chance.of(f"link {self._cluster.operations}"))
        self._links[node].append(link)
        self._draw_end(link, chance)
        gateway, end = self._gateways[node], GatewaySocket(link.ends[0], link)
        in_node(node, lambda: self._cluster.loop.create_task(gateway.serve(end, token_id="t")))
        try:
            yield link.ends[1]
        finally:
            link.close()

    def _draw_end(self, link: Link, chance: RandomStream) -> None:
        """Draw how this socket ends while there are faults."""
        which, seconds = chance.fraction(), chance.between(0.2, 8.0)
        if not self._cluster.faulty or which >= CUT_SHARE + SILENT_SHARE:
            return
        silent = which >= CUT_SHARE
        self._cluster.seen["socket of an engine fell silent" if silent else "socket of an engine was cut"] += 1
        fails = link.fall_silent if silent else link.close
        self._cluster.loop.call_later(seconds, fails, context=Context())

    # Processes.

    def _new_node(self, role: str) -> tuple[Node, RandomStream]:
        self._born += 1
        node = Node(f"{role}-{self._born}", self._cluster.loop)
        chance = self._chance.of(node.name)
        if chance.happens(CRASH_SHARE) and self._cluster.faulty and Fault.CRASH not in self._cluster.options.without:
            node.dies_at_step = chance.whole(50, 600)
        return node, chance

    def _start_gateway(self) -> None:
        node, chance = self._new_node("gateway")

        async def open_store() -> Any:
            return self._cluster.wired(node, chance.of("wire"))

        gateway = Gateway(
            definitions=self._app.remote_kinds,
            open_store=open_store,
            seams=self._cluster.seams(chance),
            settings=SETTINGS,
        )
        self._links[node] = []

        async def live() -> None:
            async with gateway.open():
                self._gateways[node] = gateway
                await asyncio.Event().wait()

        def died() -> None:
            self._cluster.seen["gateway crashed"] += 1
            self._gateways.pop(node, None)
            for link in self._links.pop(node):
                link.close()
            self._cluster.loop.call_later(1.0, self._start_gateway, context=Context())

        node.when_dead = died
        in_node(node, lambda: self._cluster.loop.create_task(live()))

    def _start_engine(self) -> None:
        node, chance = self._new_node("engine")
        engine = SimulatedEngine(self, node.name, chance, seams=self._cluster.seams(chance))

        def died() -> None:
            self._cluster.seen["engine crashed"] += 1
            self._cluster.loop.call_later(1.0, self._start_engine, context=Context())

        node.when_dead = died
        in_node(node, lambda: self._cluster.loop.create_task(engine.run()))
