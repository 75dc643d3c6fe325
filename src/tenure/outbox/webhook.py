"""Delivers messages by HTTP POST, signed as Standard Webhooks describe. Imported only where webhooks are used."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from socket import AddressFamily

from tenure.errors import TenureError
from tenure.inbox.received import PREVIOUS_HEADER
from tenure.inbox.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from tenure.observe.optional_packages import missing
from tenure.outbox.addresses import AddressGuard, Target, parse_url
from tenure.outbox.circuit_breaker import CircuitBreaker
from tenure.outbox.cloud_events import CONTENT_TYPE, SOURCE, cloud_event
from tenure.outbox.retry_after import retry_after_seconds
from tenure.outbox.signing_keys import SigningKeys
from tenure.outbox.sinks import TIMEOUT_SECONDS, Delivered, Delivery, Undelivered, error_reason
from tenure.outbox.time_limit import TimeLimit
from tenure.outbox.webhook_config import allowed_networks, parse_config
from tenure.seams import SYSTEM, Clock

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from multidict import CIMultiDict, istr
    from yarl import URL
except ImportError as absent:
    raise missing("webhooks", "aiohttp", "webhooks") from absent

CONNECTIONS_MAX = 20
RESPONSE_BYTES_MAX = 16 * 1024
RESPONSE_SECONDS_MAX = 2.0
_THROTTLED = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
_ID, _TIMESTAMP, _SIGNATURE, _ATTEMPT = map(istr, (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER, "tenure-attempt"))
_SEQUENCE, _PREVIOUS, _TRACE = map(istr, ("tenure-sequence", PREVIOUS_HEADER, "traceparent"))
_OWN_HEADERS = ("webhook-", "tenure-", "content-", "transfer-")
_HOP_HEADERS = {"host", "connection", "keep-alive", "te", "trailer", "upgrade", "expect", "user-agent"}


class WebhookSink:
    """Delivers to one URL. Only a 2xx status means delivered: a redirect is a failure, and 410 means gone.

    The body of a response is read only to reuse the connection, and only so far. `secrets` are references like
    `env:NAME`; each signs every request, so that a receiver accepts an old and a new key while one replaces the other.
    """

    def __init__(
        self,
        url: str,
        secrets: Iterable[str],
        *,
        guard: AddressGuard | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        source: str = SOURCE,
        environment: Mapping[str, str] = os.environ,
        clock: Clock = SYSTEM.clock,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._target, self._keys = parse_url(url), SigningKeys(secrets, environment)
        self._url = _request_url(self._target)
        self._guard, self._timeout_seconds = guard or AddressGuard(), timeout_seconds
        self._limit = TimeLimit(timeout_seconds)
        self._source, self._clock = source, clock
        self._ssl = ssl_context
        self._resolver = _CheckedAddresses()
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        try:
            body = cloud_event(delivery, source=self._source)
            headers = self._headers(delivery, body)
            with self._limit.call():
                self._resolver.addresses = await self._guard.addresses(self._target)
                return await self._post(body, headers)
        except (TenureError, aiohttp.ClientError, OSError, ValueError) as error:
            return Undelivered(reason=_reason(error, self._timeout_seconds))

    async def close(self) -> None:
        self._limit.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, body: bytes, headers: CIMultiDict[str]) -> Delivered | Undelivered:
        session = self._session or self._open_session()
        response = await session.post(self._url, data=body, headers=headers, allow_redirects=False)
        if not response.content.is_eof():
            await _drain(response)
        if 200 <= response.status < 300:
            return Delivered(status=response.status)
        return self._refused(response.status, response.headers)

    def _refused(self, status: int, headers: Mapping[str, str]) -> Undelivered:
        return Undelivered(
            reason=_status_reason(status),
            status=status,
            retry_after_seconds=retry_after_seconds(headers.get("Retry-After"), now=self._clock.now()),
            throttle=status in _THROTTLED,
            gone=status == HTTPStatus.GONE,
        )

    def _headers(self, delivery: Delivery, body: bytes) -> CIMultiDict[str]:
        """Read the keys for each attempt: a process can be given a new one without a restart of the sink."""
        timestamp, message_id = int(self._clock.now().timestamp()), str(delivery.id)
        headers = CIMultiDict[str]()
        headers[_ID] = message_id
        headers[_TIMESTAMP] = str(timestamp)
        headers[_SIGNATURE] = sign(self._keys.read(), id=message_id, timestamp=timestamp, body=body)
        headers[_ATTEMPT] = str(delivery.attempt)
        for name, value in delivery.headers.items():
            if not _is_own(name):
                headers[name] = value
        if delivery.sequence is not None:
            headers[_SEQUENCE] = str(delivery.sequence)
        if delivery.previous is not None:
            headers[_PREVIOUS] = str(delivery.previous)
        if delivery.trace:
            headers[_TRACE] = delivery.trace
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        """Opened in the first delivery, since it belongs to an event loop."""
        connector = aiohttp.TCPConnector(
            resolver=self._resolver, use_dns_cache=False, limit=CONNECTIONS_MAX, ssl=self._ssl or True
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"Content-Type": CONTENT_TYPE, "User-Agent": "tenure"},
            # `deliver` limits the time of each attempt.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self._session


def open_webhook(config: str | bytes, *, environment: Mapping[str, str] = os.environ) -> CircuitBreaker:
    """The sink of a stored webhook endpoint, with its circuit breaker. Networks that are not public need a setting."""
    parsed = parse_config(config)
    sink = WebhookSink(
        parsed.url,
        parsed.secrets,
        guard=AddressGuard(allowed_networks(environment)),
        timeout_seconds=parsed.timeout_seconds,
        environment=environment,
    )
    return CircuitBreaker(sink)


class _CheckedAddresses(AbstractResolver):
    """Gives the connector the addresses that the guard has checked, so that the host is not resolved again."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=AddressFamily.AF_INET6 if ":" in address else AddressFamily.AF_INET,
                proto=0,
                flags=0,
            )
            for address in self.addresses
        ]

    async def close(self) -> None:
        return None


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a short body, so that the connection can be reused. A long, slow or broken one closes the connection: the
    status has already decided the outcome."""
    is_read = False
    try:
        async with asyncio.timeout(RESPONSE_SECONDS_MAX):
            remaining_bytes = RESPONSE_BYTES_MAX
            while remaining_bytes > 0 and (chunk := await response.content.read(remaining_bytes)):
                remaining_bytes -= len(chunk)
        is_read = remaining_bytes > 0
    except (aiohttp.ClientError, OSError):
        pass
    finally:
        if not is_read:
            response.close()


def _request_url(target: Target) -> URL:
    path, _, query = target.path_and_query.partition("?")
    return URL.build(
        scheme=target.scheme, host=target.host, port=target.port, path=path, query_string=query, encoded=True
    )


def _is_own(name: str) -> bool:
    """Whether a message's header is one that the request itself decides."""
    return name.lower().startswith(_OWN_HEADERS) or name.lower() in _HOP_HEADERS


def _status_reason(status: int) -> str:
    try:
        reason = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        reason = f"HTTP {status}"
    return f"{reason}; redirects are not followed" if 300 <= status < 400 else reason


def _reason(error: BaseException, timeout_seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {timeout_seconds:g} s"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        # Their messages repeat the URL, which may contain a secret, and text of the receiver.
        return f"{type(error).__name__}: no valid HTTP response"
    return str(error) if isinstance(error, TenureError) else error_reason(error)
