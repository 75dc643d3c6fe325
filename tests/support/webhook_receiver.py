"""A receiver of webhooks on the loopback interface, whose responses a test decides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

LOOPBACK = ("127.0.0.0/8", "::1")
Respond = Callable[["Received"], Awaitable[web.StreamResponse] | web.StreamResponse]


class Received:
    """One request, as it arrived."""

    def __init__(self, request: web.BaseRequest, body: bytes) -> None:
        self.request, self.body = request, body
        self.headers = {name.lower(): value for name, value in request.headers.items()}


class Receiver:
    """Records each request, and responds by `respond`, at first with status 204."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.respond: Respond = lambda _: web.Response(status=204)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?tenant=x"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        received = Received(request, await request.read())
        self.received.append(received)
        response = self.respond(received)
        return response if isinstance(response, web.StreamResponse) else await response


@asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    runner = web.ServerRunner(web.Server(receiver.handle), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        await runner.cleanup()
