"""A gateway behind a real HTTP server in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

import tenure
from tenure.engines.gateway import Gateway
from tenure.engines.protocol import MESSAGE_BYTES_MAX
from tenure.engines.server import listening_socket
from tenure.engines.tokens import EngineToken, EngineTokens, new_token
from tenure.engines.web import engine_app
from tenure.seams import SYSTEM
from tests.support.engine_socket import LIMIT_SECONDS, opened_gateway


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class ServedGateway:
    """Its address and an access token."""

    gateway: Gateway
    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/engine"


@asynccontextmanager
async def served(
    app: tenure.App, *, port: int = 0, token: str | None = None, **settings: Any
) -> AsyncIterator[ServedGateway]:
    """A gateway that serves engines meanwhile."""
    text, made = new_token("tests", SYSTEM)
    if token is not None:
        text, made = token, EngineToken("tests", hashlib.sha256(token.encode()).hexdigest())
    with contextlib.closing(listening_socket("127.0.0.1", port)) as listener:
        async with opened_gateway(app, **settings) as gateway:
            config = uvicorn.Config(
                engine_app(gateway, EngineTokens([made])),
                ws_max_size=MESSAGE_BYTES_MAX,
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=2,
            )
            server = _Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield ServedGateway(gateway, listener.getsockname()[1], text)
            finally:
                server.should_exit = True
                await asyncio.wait_for(serving, LIMIT_SECONDS)
