"""Webhooks to a receiver on the loopback interface: what is sent, and what each response means."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from tenure.errors import InvalidInput
from tenure.inbox import verify
from tenure.outbox.addresses import AddressGuard
from tenure.outbox.signing_keys import check_references
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.outbox.webhook import RESPONSE_BYTES_MAX, WebhookSink
from tenure.testing.clock import ManualClock
from tests.support.webhook_receiver import LOOPBACK, Received, Receiver, running_receiver

OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "bmV3IGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzIGxvbmc="
ENVIRONMENT = {"OLD": OLD, "NEW": NEW}
DELIVERY = Delivery(
    id=UUID(int=7),
    topic="mail.sent",
    body='{"to":"ada","n":1.50,"ä":[]}',
    at=datetime(2030, 1, 1, 12, 30, tzinfo=UTC),
    correlation_id="order-1",
    attempt=1,
    aggregate="ada",
    sequence=3,
    previous=2,
    job_id=UUID(int=8),
    trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as running:
        yield running


def sink_for(url: str, **options: Any) -> WebhookSink:
    secrets = options.pop("secrets", ("env:OLD",))
    settings: dict[str, Any] = {"guard": AddressGuard(LOOPBACK), "environment": ENVIRONMENT, "timeout_seconds": 20.0}
    return WebhookSink(url, secrets, **settings | options)


async def post(url: str, delivery: Delivery = DELIVERY, **options: Any) -> Delivered | Undelivered:
    sink = sink_for(url, **options)
    try:
        return await asyncio.wait_for(sink.deliver(delivery), 60)
    finally:
        await sink.close()


async def test_a_message_is_posted_as_a_cloud_event(receiver: Receiver) -> None:
    assert await post(receiver.url) == Delivered(status=204)
    (received,) = receiver.received
    assert (received.request.method, received.request.path_qs) == ("POST", "/hook?tenant=x")
    assert received.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert json.loads(received.body) == {
        "specversion": "1.0",
        "id": str(DELIVERY.id),
        "source": "/tenure",
        "type": "mail.sent",
        "time": "2030-01-01T12:30:00Z",
        "datacontenttype": "application/json",
        "subject": "ada",
        "sequence": "3",
        "jobid": str(DELIVERY.job_id),
        "traceparent": DELIVERY.trace,
        "correlationid": "order-1",
        "data": {"to": "ada", "n": 1.5, "ä": []},
    }
    assert received.body.endswith(b'"data":' + DELIVERY.body.encode() + b"}")


async def test_the_facts_of_the_delivery_are_headers(receiver: Receiver) -> None:
    await post(receiver.url)
    (received,) = receiver.received
    assert received.headers["tenure-sequence"] == "3"
    assert received.headers["tenure-previous"] == "2"
    assert received.headers["tenure-attempt"] == "1"
    assert received.headers["traceparent"] == DELIVERY.trace


@pytest.mark.requirement("WC-07")
async def test_attempts_have_the_same_id_and_bytes_and_a_timestamp_of_their_own(receiver: Receiver) -> None:
    clock = ManualClock()
    sink = sink_for(receiver.url, clock=clock)
    await sink.deliver(DELIVERY)
    clock.advance(300)
    again = msgspec.structs.replace(DELIVERY, attempt=2, previous=1, at=DELIVERY.at.astimezone())
    await sink.deliver(again)
    await sink.close()
    first, second = receiver.received
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == str(DELIVERY.id)
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 300
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


async def test_the_official_library_accepts_every_key_during_a_rotation(receiver: Receiver) -> None:
    await post(receiver.url, secrets=("env:NEW", "env:OLD"))
    (received,) = receiver.received
    assert len(received.headers["webhook-signature"].split()) == 2
    for secret in (OLD, NEW):
        event = Webhook(secret).verify(received.body, received.headers)
        assert event["id"] == str(DELIVERY.id)


async def test_the_inbox_accepts_what_the_webhook_sends(receiver: Receiver) -> None:
    await post(receiver.url)
    (received,) = receiver.received
    message = verify(received.headers, received.body, [OLD])
    assert (message.id, message.topic, message.aggregate) == (str(DELIVERY.id), "mail.sent", "ada")
    assert (message.sequence, message.previous, message.correlation_id) == (3, 2, "order-1")
    assert message.data == {"to": "ada", "n": 1.5, "ä": []}


async def test_headers_of_the_message_are_sent_but_cannot_replace_those_of_the_request(receiver: Receiver) -> None:
    headers = {
        "x-tenant": "x",
        "Webhook-Id": "other",
        "content-length": "0",
        "Host": "elsewhere",
        "tenure-previous": "9",
    }
    assert await post(receiver.url, msgspec.structs.replace(DELIVERY, headers=headers)) == Delivered(status=204)
    (received,) = receiver.received
    assert received.headers["x-tenant"] == "x"
    assert received.headers["webhook-id"] == str(DELIVERY.id)
    assert received.headers["host"].startswith("127.0.0.1")
    assert received.headers["tenure-previous"] == "2"


async def test_a_header_with_a_line_break_is_not_sent(receiver: Receiver) -> None:
    undelivered = await post(receiver.url, msgspec.structs.replace(DELIVERY, headers={"x": "1\r\nwebhook-id: 2"}))
    assert isinstance(undelivered, Undelivered)
    assert receiver.received == []


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_status_means_delivered(receiver: Receiver, status: int) -> None:
    receiver.respond = lambda _: web.Response(status=status)
    assert await post(receiver.url) == Delivered(status=status)


@pytest.mark.parametrize("status", [400, 401, 404, 418, 500, 503, 599])
async def test_other_statuses_mean_undelivered(receiver: Receiver, status: int) -> None:
    receiver.respond = lambda _: web.Response(status=status, text="inner details")
    undelivered = await post(receiver.url)
    assert isinstance(undelivered, Undelivered)
    assert (undelivered.status, undelivered.throttle, undelivered.gone) == (status, False, False)
    assert undelivered.reason.startswith(f"HTTP {status}")
    assert "inner" not in undelivered.reason


async def test_410_means_that_the_endpoint_is_gone(receiver: Receiver) -> None:
    receiver.respond = lambda _: web.Response(status=410)
    assert await post(receiver.url) == Undelivered(reason="HTTP 410 Gone", status=410, gone=True)


@pytest.mark.parametrize("status", [429, 502, 504])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *((None, None), ("120", 120.0), ("0", 0.0), ("9" * 400, 86_400.0), ("soon", None), ("-5", None), ("1.5", None)),
        *(("Tue, 01 Jan 2030 00:01:00 GMT", 60.0), ("Mon, 31 Dec 2029 00:00:00 GMT", 0.0)),
        ("Tue, 01 Jan 2099 00:00:00 GMT", 86_400.0),
    ],
)
async def test_an_overloaded_receiver_throttles_the_endpoint(
    receiver: Receiver, status: int, header: str | None, seconds: float | None
) -> None:
    headers = {} if header is None else {"Retry-After": header}
    receiver.respond = lambda _: web.Response(status=status, headers=headers)
    undelivered = await post(receiver.url, clock=ManualClock())
    assert isinstance(undelivered, Undelivered)
    assert (undelivered.throttle, undelivered.retry_after_seconds) == (True, seconds)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(receiver: Receiver, status: int) -> None:
    receiver.respond = lambda _: web.Response(status=status, headers={"Location": "http://169.254.169.254/"})
    undelivered = await post(receiver.url)
    assert isinstance(undelivered, Undelivered)
    assert undelivered.status == status
    assert "redirects are not followed" in undelivered.reason
    assert len(receiver.received) == 1


async def test_an_endless_response_is_read_only_so_far(receiver: Receiver) -> None:
    written = 0
    ended = asyncio.Event()

    async def respond(received: Received) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"Content-Length": str(10 * 1024**3)})
        await response.prepare(received.request)
        try:
            while True:
                await response.write(b"x" * 65_536)
                written += 65_536
        finally:
            ended.set()

    receiver.respond = respond
    assert await post(receiver.url) == Delivered(status=200)
    await asyncio.wait_for(ended.wait(), 30)
    assert written < 64 * 1024**2
    assert RESPONSE_BYTES_MAX < 1024**2


async def test_a_body_that_drips_does_not_hold_the_delivery(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.outbox.webhook.RESPONSE_SECONDS_MAX", 0.1)
    ended = asyncio.Event()

    async def respond(received: Received) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(received.request)
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    receiver.respond = respond
    assert await post(receiver.url) == Delivered(status=200)
    await asyncio.wait_for(ended.wait(), 30)


async def serve_raw(chunks: Sequence[bytes], *, pause_seconds: float = 0.0) -> asyncio.Server:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(pause_seconds)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(respond, "127.0.0.1", 0)


async def test_headers_that_drip_end_at_the_total_timeout() -> None:
    drip = [b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n"] * 1000]
    async with await serve_raw(drip, pause_seconds=0.05) as server:
        port = server.sockets[0].getsockname()[1]
        undelivered = await post(f"http://127.0.0.1:{port}/", timeout_seconds=0.5)
    assert undelivered == Undelivered(reason="no response within 0.5 s")


@pytest.mark.parametrize("chunks", [[], [b"nonsense\r\n\r\n"], [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000]])
async def test_a_response_that_is_no_http_means_undelivered_and_repeats_no_url(chunks: Sequence[bytes]) -> None:
    async with await serve_raw(chunks) as server:
        port = server.sockets[0].getsockname()[1]
        undelivered = await post(f"http://127.0.0.1:{port}/token-in-path")
    assert isinstance(undelivered, Undelivered)
    assert undelivered.status is None
    assert "token-in-path" not in undelivered.reason


async def test_a_body_that_breaks_off_after_a_2xx_status_means_delivered() -> None:
    async with await serve_raw([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"]) as server:
        port = server.sockets[0].getsockname()[1]
        assert await post(f"http://127.0.0.1:{port}/") == Delivered(status=200)


async def test_a_receiver_that_is_not_there_means_undelivered() -> None:
    async with await serve_raw([]) as server:
        port = server.sockets[0].getsockname()[1]
    undelivered = await post(f"http://127.0.0.1:{port}/")
    assert isinstance(undelivered, Undelivered)
    assert "connect" in undelivered.reason.lower()


async def test_a_loopback_address_is_refused_unless_its_network_is_allowed(receiver: Receiver) -> None:
    undelivered = await post(receiver.url, guard=AddressGuard())
    assert isinstance(undelivered, Undelivered)
    assert "not public" in undelivered.reason
    assert receiver.received == []


async def test_the_connection_goes_to_the_address_that_was_checked_and_not_to_a_later_answer(
    receiver: Receiver,
) -> None:
    """The name exists in no DNS, so a second resolution, by the HTTP client, would fail."""
    asked = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    guard = AddressGuard(["127.0.0.1"], resolve=resolve)
    sink = sink_for(f"http://rebinding.invalid:{receiver.port}/", guard=guard)
    assert await sink.deliver(DELIVERY) == Delivered(status=204)
    assert asked == ["rebinding.invalid"]
    undelivered = await sink.deliver(DELIVERY)
    assert isinstance(undelivered, Undelivered), "the second attempt resolves again, and is refused"
    assert "127.0.0.2" in undelivered.reason
    await sink.close()
    assert [one.headers["host"] for one in receiver.received] == [f"rebinding.invalid:{receiver.port}"]


async def test_a_connection_is_reused(receiver: Receiver) -> None:
    peers: list[object] = []

    def respond(received: Received) -> web.Response:
        assert received.request.transport is not None
        peers.append(received.request.transport.get_extra_info("peername"))
        return web.Response(text="fine")

    sink = sink_for(receiver.url)
    receiver.respond = respond
    for _ in range(3):
        assert await sink.deliver(DELIVERY) == Delivered(status=200)
    await sink.close()
    assert len(peers) == 3
    assert len(set(peers)) == 1


async def test_a_missing_variable_is_named_and_nothing_is_sent(receiver: Receiver) -> None:
    undelivered = await post(receiver.url, environment={})
    assert undelivered == Undelivered(reason="secrets: the environment variable OLD is not set in this process")
    assert receiver.received == []


@pytest.mark.parametrize("secret", ["whsec_short", "whsec_" + "A" * 20, "whsec_" + "A" * 200, "not base64!"])
async def test_an_invalid_secret_is_named_by_its_variable_and_never_shown(
    receiver: Receiver, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    undelivered = await post(receiver.url, environment={"OLD": secret})
    assert isinstance(undelivered, Undelivered)
    assert "environment variable OLD" in undelivered.reason
    assert secret.removeprefix("whsec_") not in undelivered.reason + caplog.text


async def test_the_secret_is_in_no_log_and_no_representation(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = sink_for(receiver.url)
    await sink.deliver(DELIVERY)
    await sink.close()
    assert OLD.removeprefix("whsec_") not in caplog.text + repr(sink) + repr(vars(sink).keys())


@pytest.mark.parametrize(
    "references",
    [[], ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], ["env:"], ["env:A B"], ["file:/x"], [""], ["env:A"] * 9],
)
def test_a_stored_secret_must_be_a_reference_and_is_not_repeated(references: list[str]) -> None:
    with pytest.raises(InvalidInput, match="secrets") as refused:
        check_references(references)
    assert "MfKQ" not in str(refused.value)


def test_a_single_text_is_no_list_of_references() -> None:
    with pytest.raises(InvalidInput, match="list"):
        check_references("env:A")


async def test_a_receiver_without_tls_gets_nothing_from_an_https_url(receiver: Receiver) -> None:
    undelivered = await post(receiver.url.replace("http", "https"), ssl_context=ssl.create_default_context())
    assert isinstance(undelivered, Undelivered)
    assert receiver.received == []
