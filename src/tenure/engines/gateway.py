"""A gateway: serves the connections of engines, and runs recovery beside them.

Engines need no access to the database. Any number of gateways serve one database; an engine may connect to any.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket as network
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tenure.engines.connection import EngineConnection
from tenure.engines.outcomes import Definitions, EngineOutcomes
from tenure.engines.protocol import ErrorCode, ErrorMessage, Hello, decode_engine_message, encode_message
from tenure.engines.services import ConnectionServices, Socket, SocketClosed
from tenure.engines.session import SessionKeys
from tenure.engines.settings import GatewaySettings
from tenure.errors import InvalidInput, TenureError
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.schedules import Schedule
from tenure.observe.counting_store import count_changes
from tenure.observe.log_format import counted
from tenure.observe.meter import Meter
from tenure.observe.snapshot import MetricsSnapshot
from tenure.seams import Seams
from tenure.stores.contract import Store, WorkerRecord
from tenure.workers.completer import Completer
from tenure.workers.leases import LeaseRegistry
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.maintenance.service import Maintenance, OpenStore
from tenure.workers.reconnect import DatabaseAvailability

CLOSE_SECONDS_MAX = 5.0
REGISTRATION_SECONDS = 10.0
STOPPING = "this gateway stops; connect to another one"

log = logging.getLogger("tenure.engines")


class Gateway:
    """Serves engines between `open` and its end. `definitions` are the remote kinds of the app."""

    def __init__(
        self,
        *,
        definitions: Definitions,
        open_store: OpenStore,
        seams: Seams,
        settings: GatewaySettings,
        version: str | None = None,
        schedules: Sequence[Schedule] = (),
        middleware: Sequence[Middleware] = (),
    ) -> None:
        if not definitions:
            raise InvalidInput("jobs", "the app declares no remote jobs; declare one with `@app.remote_job`")
        self.name = f"{network.gethostname()[:60]}-{os.getpid()}-{seams.random.name()}"
        self.definitions, self.settings = definitions, settings
        self._open_store, self._seams, self._version, self._schedules = open_store, seams, version, schedules
        self._middleware = middleware
        # A meter is written by one thread, and maintenance has its own thread.
        self._meter, self._maintenance_meter = Meter(definitions), Meter(definitions)
        self._availability = DatabaseAvailability(seams)
        self._connections: dict[str, EngineConnection] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._services: ConnectionServices | None = None
        self.stopping = False
        self.failure: BaseException | None = None

    @property
    def services(self) -> ConnectionServices:
        """What connections and requests over HTTP use. InvalidInput: the gateway is not open."""
        if self._services is None:
            raise InvalidInput("gateway", "is not open; use it inside `async with gateway.open()`")
        return self._services

    @property
    def connections(self) -> list[EngineConnection]:
        return list(self._connections.values())

    @property
    def unfinished(self) -> int:
        """How many jobs the connected engines hold."""
        return sum(one.unfinished for one in self.connections)

    def metrics(self) -> MetricsSnapshot:
        """All that this gateway has counted so far, of remote jobs. Safe to call from any thread."""
        return self._meter.snapshot() + self._maintenance_meter.snapshot()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Gateway]:
        """Open the store and start maintenance. At the end, connections are drained and closed."""
        async with AsyncExitStack() as stack:
            store = await self._open_store()
            stack.push_async_callback(store.close)
            maintenance = self._maintenance()
            stack.push_async_callback(maintenance.stop)
            await maintenance.start(in_thread=self.settings.in_thread)
            completer = Completer(store, self._seams, self._availability)
            stack.push_async_callback(completer.close)
            outcomes = EngineOutcomes(
                completer, self.definitions, self._seams, meter=self._meter, middleware=self._middleware
            )
            stack.callback(outcomes.close)
            self._services = ConnectionServices(
                store,
                self._seams,
                settings=self.settings,
                outcomes=outcomes,
                # Under another name than that of maintenance: with the same request ids, both would count one change.
                recovery=RecoveryWorker(
                    count_changes(store, self._meter), self._seams, name=f"{self.name}-connections"
                ),
                meter=self._meter,
                availability=self._availability,
                name=self.name,
                code_version=self._version,
            )
            stack.push_async_callback(self.stop)
            yield self

    async def serve(self, socket: Socket, *, token_id: str) -> None:
        """Serve one accepted socket until it closes. `token_id` is that of the access token it came with."""
        try:
            async with asyncio.timeout(self.settings.hello_seconds):
                hello = decode_engine_message(await socket.receive())
        except SocketClosed:
            return
        except TimeoutError:
            await _refuse(socket, "hello_expected", f"no hello within {self.settings.hello_seconds} s")
            return
        except InvalidInput as problem:
            await _refuse(socket, "invalid_message", str(problem))
            return
        if not isinstance(hello, Hello):
            await _refuse(socket, "hello_expected", "the first message must be a hello")
            return
        await self._serve_engine(socket, hello, SessionKeys(hello.engine_id, hello.session, token_id))

    async def _serve_engine(self, socket: Socket, hello: Hello, keys: SessionKeys) -> None:
        kinds = tuple(sorted(kind for kind in set(hello.kinds) if kind in self.definitions))
        earlier = self._connections.get(keys.public_id)
        if self.stopping:
            await _refuse(socket, "stopping", STOPPING, hello.engine_id)
        elif len(kinds) < len(set(hello.kinds)):
            unknown = ", ".join(sorted(set(hello.kinds) - set(kinds)))
            problem = f"not declared as remote jobs of this app: {unknown}"
            await _refuse(socket, "unknown_kinds", problem, hello.engine_id)
        elif earlier is not None and hello.epoch <= earlier.epoch:
            problem = f"epoch {earlier.epoch} of this session is connected; use a later one"
            await _refuse(socket, "stale_epoch", problem, hello.engine_id)
        else:
            await self._connect(socket, hello, keys, kinds)

    async def _connect(self, socket: Socket, hello: Hello, keys: SessionKeys, kinds: tuple[str, ...]) -> None:
        if (earlier := self._connections.get(keys.public_id)) is not None:
            earlier.retire("stale_epoch", f"epoch {hello.epoch} of this session has connected")
        connection = EngineConnection(self.services, socket, hello, keys=keys, kinds=kinds)
        self._connections[keys.public_id] = connection
        serving = self._seams.spawn.task(self._run(connection, hello, kinds), name="tenure-engine")
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        await asyncio.shield(serving)

    async def _run(self, connection: EngineConnection, hello: Hello, kinds: tuple[str, ...]) -> None:
        register = self._seams.spawn.task(self._register(hello, kinds), name="tenure-engine-registration")
        try:
            await connection.run()
        except TenureError as error:
            log.warning("engine %s not served: %s", hello.engine_id, error)
        finally:
            register.cancel()
            if self._connections.get(connection.keys.public_id) is connection:
                del self._connections[connection.keys.public_id]

    async def _register(self, hello: Hello, kinds: tuple[str, ...]) -> None:
        """Register the engine as a worker, so that `tenure stats` lists it and its kinds count as served."""
        part = object()
        try:
            while True:
                record = self._record(hello.engine_id, kinds, hello.capacity, hello.version)
                try:
                    await self.services.store.register(record)
                    self._availability.replied(part)
                except TenureError as error:
                    self._availability.failed(part, f"registration of engine {hello.engine_id} failed, retrying", error)
                await self._seams.clock.sleep(REGISTRATION_SECONDS)
        finally:
            self._availability.ended(part)

    async def stop(self) -> None:
        """Close the sockets of idle engines at once and of the others within the grace time: they resume at another
        gateway."""
        self.stopping = True
        for connection in self.connections:
            connection.drain("the gateway stops")
        deadline = self._seams.clock.monotonic_seconds() + self.settings.grace_seconds
        while self._connections and self._seams.clock.monotonic_seconds() < deadline:
            for connection in self.connections:
                if connection.is_idle:
                    connection.retire("stopping", STOPPING)
            await self._seams.clock.sleep(0.05)
        left = self.unfinished
        if left:
            log.warning(
                "gateway %s stopped with %s; engines resume elsewhere", self.name, counted(left, "unfinished job")
            )
        for connection in self.connections:
            connection.retire("stopping", STOPPING)
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_SECONDS_MAX)

    def _maintenance(self) -> Maintenance:
        queues = len(self.definitions)

        async def open_store() -> Store:
            return count_changes(await self._open_store(), self._maintenance_meter)

        return Maintenance(
            open_store,
            LeaseRegistry(),
            self._seams,
            record=self._record(self.name, tuple(sorted(self.definitions)), queues, self._version),
            scan_seconds=self.settings.scan_seconds,
            availability=self._availability,
            on_failure=self._failed,
            schedules=self._schedules,
        )

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        log.error("maintenance of gateway %s failed", self.name, exc_info=error)

    def _record(self, name: str, kinds: tuple[str, ...], concurrency: int, version: str | None) -> WorkerRecord:
        now = self._seams.clock.now()
        return WorkerRecord(
            id=name,
            host=network.gethostname(),
            pid=os.getpid(),
            version=version or "unknown",
            queues=self.settings.queues,
            kinds=kinds,
            concurrency=concurrency,
            prunes=False,
            started_at=now,
            seen_at=now,
        )


async def _refuse(socket: Socket, code: ErrorCode, message: str, engine_id: str = "without a hello") -> None:
    log.warning("engine %s refused (%s): %s", engine_id, code, message)
    try:
        await socket.send(encode_message(ErrorMessage(code=code, message=message)))
        await socket.close(4000, code)
    except SocketClosed:
        return
