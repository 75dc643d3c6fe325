"""An engine that a test drives message by message, on a socket in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import msgspec

import tenure
from tenure.engines.gateway import Gateway
from tenure.engines.protocol import (
    AckMessage,
    ErrorMessage,
    FromGateway,
    GatewayMessage,
    JobDispatch,
    Welcome,
    decode_gateway_message,
)
from tenure.engines.services import SocketClosed
from tenure.lifecycle.records import Event
from tenure.lifecycle.statuses import Status
from tenure.vocabularies import vocabulary
from tenure.vocabularies.checker import transition_problems

SECRET = "s" * 32
LIMIT_SECONDS = 30.0
QUICK: dict[str, Any] = {"poll_seconds": 0.05, "scan_seconds": 0.1, "grace_seconds": 0.0}
M = TypeVar("M", bound=GatewayMessage)


class MemorySocket:
    """Both ends of a socket. `traffic` has every message with its sender."""

    def __init__(self) -> None:
        self._to_gateway: asyncio.Queue[str | None] = asyncio.Queue()
        self._to_engine: asyncio.Queue[str | None] = asyncio.Queue()
        self.traffic: list[tuple[str, str]] = []
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> str:
        text = await self._to_gateway.get()
        if text is None:
            raise SocketClosed("the engine closed the socket")
        self.traffic.append(("engine", text))
        return text

    async def send(self, text: str) -> None:
        if self.closed is not None:
            raise SocketClosed("closed")
        self.traffic.append(("gateway", text))
        self._to_engine.put_nowait(text)

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason
        self._to_engine.put_nowait(None)

    def engine_sends(self, text: str | None) -> None:
        self._to_gateway.put_nowait(text)

    async def engine_receives(self) -> str | None:
        return await asyncio.wait_for(self._to_engine.get(), LIMIT_SECONDS)


class ManualEngine:
    """The engine's side of one connection."""

    def __init__(self, socket: MemorySocket) -> None:
        self.socket = socket
        self._numbers = count(1)
        self._kept: list[FromGateway] = []

    def say(self, type_: str, **fields: Any) -> int:
        """Send a message with the next id."""
        number = next(self._numbers)
        body = {"type": type_, "id": number, **fields}
        self.socket.engine_sends(msgspec.json.encode(body).decode())
        return number

    def about(self, dispatch: JobDispatch, type_: str, **fields: Any) -> int:
        return self.say(type_, job_id=dispatch.job_id, claim=dispatch.claim, **fields)

    async def acked(self, number: int) -> AckMessage:
        """The ack of this message."""
        return await self.next(AckMessage, lambda ack: ack.id == number)

    async def next(self, wanted: type[M], fits: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of this type that fits. Others are kept."""
        for index, message in enumerate(self._kept):
            if isinstance(message, wanted) and fits(message):
                del self._kept[index]
                return message
        while True:
            text = await self.socket.engine_receives()
            assert text is not None, f"the gateway closed the socket: {self.socket.closed}"
            message = decode_gateway_message(text)
            if isinstance(message, wanted) and fits(message):
                return message
            self._kept.append(message)

    async def refused(self) -> ErrorMessage:
        """The error with which the gateway ends the connection."""
        return await self.next(ErrorMessage)

    def close(self) -> None:
        self.socket.engine_sends(None)


@asynccontextmanager
async def connected(
    gateway: Gateway, *kinds: str, token_id: str = "t1", wait: bool = True, **hello: Any
) -> AsyncIterator[ManualEngine]:
    """A connected engine; the socket is closed at the end."""
    socket = MemorySocket()
    serving = asyncio.create_task(gateway.serve(socket, token_id=token_id))
    engine = ManualEngine(socket)
    engine.say("hello", **{"engine_id": "e1", "session": SECRET, "kinds": kinds, "capacity": 4, **hello})
    try:
        if wait:
            await engine.next(Welcome)
        yield engine
    finally:
        engine.close()
        await asyncio.wait_for(serving, LIMIT_SECONDS)


@asynccontextmanager
async def opened_gateway(app: tenure.App, **settings: Any) -> AsyncIterator[Gateway]:
    async with app.gateway(**{**QUICK, **settings}).open() as gateway:
        yield gateway


def declare(app: tenure.App, **options: Any) -> Any:
    @app.remote_job(**options)
    def render(scene: str) -> str:
        raise NotImplementedError

    return render


async def log_of(app: tenure.App, handle: Any) -> list[Event]:
    store = await app.store()
    job = (await store.read([handle.id]))[handle.id]
    events = (await store.history([handle.id]))[handle.id]
    # EH-12: only valid transitions are ever reported.
    assert transition_problems([vocabulary("engine")], job, events) == []
    return events


async def until(app: tenure.App, handle: Any, *statuses: Status) -> Any:
    """The job once it has one of these statuses."""
    store = await app.store()
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            job = (await store.read([handle.id]))[handle.id]
            if job.status in statuses:
                return job
            await asyncio.sleep(0.02)
