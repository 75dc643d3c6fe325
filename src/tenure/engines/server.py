"""Runs a gateway behind an HTTP server, and stops it by signals: first the engines are drained, then sockets close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from tenure.engines.gateway import Gateway
from tenure.engines.protocol import MESSAGE_BYTES_MAX
from tenure.engines.tokens import EngineTokens
from tenure.engines.web import engine_app
from tenure.errors import InvalidInput

UNREAD_MESSAGES_MAX = 64
CLOSE_SECONDS_MAX = 5

log = logging.getLogger("tenure.engines")


class _GatewayServer(uvicorn.Server):
    """Drains the gateway before the server closes its sockets. The caller handles signals."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gateway.stop()
        await super().shutdown(sockets)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there. InvalidInput: the address cannot be used."""
    try:
        listener = socket.create_server((host, port), backlog=512)
    except OSError as problem:
        raise InvalidInput("address", f"cannot listen on {host}:{port}: {problem}") from None
    # Accepted sockets inherit it. asyncio sets it only for sockets that name their protocol, and these do not: a
    # message after one that the engine's system has not acknowledged yet would wait for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_gateway(gateway: Gateway, tokens: EngineTokens, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. InvalidInput: the address cannot be used."""
    listener = listening_socket(host, port)
    config = uvicorn.Config(
        engine_app(gateway, tokens),
        ws_max_size=MESSAGE_BYTES_MAX,
        ws_max_queue=UNREAD_MESSAGES_MAX,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS_MAX,
        lifespan="off",
    )
    server = _GatewayServer(config, gateway)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        log.info("gateway %s stops", gateway.name)
        server.should_exit = True

    with contextlib.closing(listener):
        async with gateway.open():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            address = f"http://{host}:{listener.getsockname()[1]}/engine"
            log.info("gateway %s serves %s at %s", gateway.name, ", ".join(sorted(gateway.definitions)), address)
            await server.serve(sockets=[listener])
