"""The ASGI app of a gateway: `/engine` over WebSocket, and the same messages over HTTP below it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tenure.engines.gateway import Gateway
from tenure.engines.long_poll import GatewayStopping, LongPoll, PollClaim, PollRenew, PollRequest
from tenure.engines.protocol import MESSAGE_BYTES_MAX, SUBPROTOCOL, JobMessage, decode_engine_message
from tenure.engines.services import SocketClosed
from tenure.engines.session import SessionKeys
from tenure.engines.tokens import EngineTokens
from tenure.errors import InvalidInput, RequestIdReused, StoreUnavailable
from tenure.lifecycle.json_text import parse

UNAUTHORISED_CLOSE = 4401
WRONG_TOKEN = "the access token is missing or wrong"
SECONDARY_TOKEN = "bearer."
"""A browser cannot set headers: there the token is a second subprotocol, `bearer.TOKEN`."""

log = logging.getLogger("tenure.engines")
T = TypeVar("T", bound=msgspec.Struct)


def engine_app(gateway: Gateway, tokens: EngineTokens) -> Starlette:
    """The ASGI app. The gateway must be open while the app serves."""
    endpoints = _Endpoints(gateway, tokens)
    return Starlette(
        routes=[
            WebSocketRoute("/engine", endpoints.socket),
            Route("/engine/claim", endpoints.claim, methods=["POST"]),
            Route("/engine/renew", endpoints.renew, methods=["POST"]),
            Route("/engine/report", endpoints.report, methods=["POST"]),
            Route("/health", endpoints.health),
        ],
    )


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Endpoints:
    def __init__(self, gateway: Gateway, tokens: EngineTokens) -> None:
        self._gateway, self._tokens = gateway, tokens

    async def socket(self, websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])
        token_id = self._tokens.name_of(_socket_token(websocket, offered))
        if token_id is None or SUBPROTOCOL not in offered:
            problem = f"it does not offer the subprotocol {SUBPROTOCOL}" if token_id else WRONG_TOKEN
            log.warning("engine at %s refused: %s", _address(websocket), problem)
            await websocket.close(UNAUTHORISED_CLOSE)
            return
        await websocket.accept(SUBPROTOCOL)
        await self._gateway.serve(_WebSocketTransport(websocket), token_id=token_id)

    async def health(self, _: Request) -> Response:
        """Whether a load balancer should send engines here."""
        stopping = self._gateway.stopping
        return Response("stopping\n" if stopping else "ok\n", 503 if stopping else 200, media_type="text/plain")

    async def claim(self, request: Request) -> Response:
        async def claimed(body: str, token_id: str) -> msgspec.Struct:
            wanted = _decoded(body, PollClaim)
            return await self._poll.claim(wanted, token_id=token_id, disconnected=request.is_disconnected)

        return await self._answer(request, claimed)

    async def renew(self, request: Request) -> Response:
        return await self._answer(request, self._renew)

    async def report(self, request: Request) -> Response:
        return await self._answer(request, self._report)

    async def _renew(self, body: str, token_id: str) -> msgspec.Struct:
        return await self._poll.renew(_decoded(body, PollRenew), token_id=token_id)

    async def _report(self, body: str, token_id: str) -> msgspec.Struct:
        engine, message = _decoded(body, PollRequest), decode_engine_message(body)
        if not isinstance(message, JobMessage):
            raise InvalidInput("type", "must be that of a message about a job")
        return await self._poll.report(message, keys=SessionKeys(engine.engine_id, engine.session, token_id))

    @property
    def _poll(self) -> LongPoll:
        return LongPoll(self._gateway)

    async def _answer(self, request: Request, answer: Callable[[str, str], Awaitable[msgspec.Struct]]) -> Response:
        try:
            token_id = self._tokens.name_of(_bearer(request.headers.get("authorization")))
            if token_id is None:
                log.warning("engine at %s refused: %s", _address(request), WRONG_TOKEN)
                raise _Refused(401, WRONG_TOKEN)
            found = await answer(await _body(request), token_id)
        except _Refused as refusal:
            return _problem(refusal.status, str(refusal))
        except RequestIdReused as refusal:
            return _problem(409, f"this claim number was used with other values: {refusal}")
        except InvalidInput as refusal:
            return _problem(422, str(refusal))
        except (StoreUnavailable, GatewayStopping) as refusal:
            return _problem(503, str(refusal))
        return Response(msgspec.json.encode(found), media_type="application/json")


class _WebSocketTransport:
    """A WebSocket as the socket of a connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise SocketClosed(f"socket closed with code {message.get('code')}")
        text = message.get("text")
        if not isinstance(text, str):
            raise InvalidInput("message", "must be a text frame")
        return text

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as closed:
            raise SocketClosed(str(closed) or "socket closed") from None

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError):
            return


def _socket_token(websocket: WebSocket, offered: list[str]) -> str | None:
    second = next((one.removeprefix(SECONDARY_TOKEN) for one in offered if one.startswith(SECONDARY_TOKEN)), None)
    return _bearer(websocket.headers.get("authorization")) or second


def _address(connection: HTTPConnection) -> str:
    client = connection.client
    return "an unknown address" if client is None else f"{client.host}:{client.port}"


def _bearer(header: str | None) -> str | None:
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _body(request: Request) -> str:
    """The body as text. Larger ones are refused before they are read to the end."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MESSAGE_BYTES_MAX:
            raise _Refused(413, f"the body has more than {MESSAGE_BYTES_MAX} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise _Refused(422, "the body is not UTF-8") from None


def _decoded(body: str, type_: type[T]) -> T:
    parse(body, where="body", bytes_max=MESSAGE_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as problem:
        raise InvalidInput("body", str(problem)) from None


def _problem(status: int, message: str) -> Response:
    return Response(msgspec.json.encode({"error": message}), status_code=status, media_type="application/json")
