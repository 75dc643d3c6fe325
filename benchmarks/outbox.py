"""Delivery of the outbox beside the same work without it: `python -m benchmarks.outbox --help`.

Messages are written to a new database and delivered by one processor: to a Python function that does nothing, and as
webhooks to a receiver on the loopback interface, in a process of its own. Beside the webhooks, the same HTTP client
posts the same bytes to the same receiver with the same number of requests at once, and does nothing else. Messages are
spread over many aggregates, or belong to one. The last variant has a second endpoint that refuses every message.
Rounds of all variants are interleaved; medians are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import aiohttp
import msgspec

from tenure.lifecycle.records import Actor, Role
from tenure.outbox.addresses import AddressGuard
from tenure.outbox.circuit_breaker import CircuitBreaker
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import CallableSink, Delivered, Delivery, Sink, Undelivered
from tenure.outbox.webhook import WebhookSink
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.stores.contract import OutboxMessage, Store
from tenure.stores.contract.outbox import SubscriptionRecord
from tests.support.postgres import PostgresServer

LOOPBACK = ["127.0.0.0/8"]
OPERATOR = Actor(Role.CLIENT, "benchmark")
KEY = {"KEY": base64.b64encode(b"benchmark key of thirty-two bytes").decode()}
BODY = '{"order": "o-4711", "customer": "ada", "cents": 1200, "lines": ["book", "pen", "ink"]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
LIMIT_SECONDS = 600.0
NEVER = RetrySchedule(delays_seconds=(3600.0,) * 9)
FAILING = "failing"


class Respond(asyncio.Protocol):
    """Responds 200 to each request. It reads no more of a request than where it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._read = transport, b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._read) < end + 4 + length:
                return
            self._read = self._read[end + 4 + length :]
            self._transport.write(OK)


def receive(ready: Connection) -> None:
    """The receiver's process. It ends when the benchmark closes its end of the pipe."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Respond, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(ready.poll, None)
        server.close()

    asyncio.run(serve())


class Refusing:
    """A sink of an endpoint that is down."""

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        return Undelivered(reason="down")

    async def close(self) -> None: ...


class Counting:
    """Counts what a sink has delivered, and keeps the last body that was sent."""

    def __init__(self, sink: Sink, wanted: int) -> None:
        self._sink, self._wanted, self.done = sink, wanted, asyncio.Event()

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        answer = await self._sink.deliver(delivery)
        if isinstance(answer, Delivered):
            self._wanted -= 1
            if not self._wanted:
                self.done.set()
        return answer

    async def close(self) -> None:
        await self._sink.close()


@asynccontextmanager
async def filled(url: str, endpoints: Sequence[str], *, messages: int, aggregates: int) -> AsyncIterator[Store]:
    """A new database with messages that are pending for these endpoints."""
    store = store_for(url)
    await store.migrate()
    await store.open()
    try:
        for name in endpoints:
            topics = (SubscriptionRecord(endpoint=name, topic="*"),)
            await store.outbox.put_endpoint(name, kind="benchmark", subscriptions=topics, actor=OPERATOR)
        for first in range(0, messages, 1000):
            made = [
                OutboxMessage(
                    id=SYSTEM.random.job_id(), topic="order.paid", body=BODY, aggregate=f"a{number % aggregates}"
                )
                for number in range(first, min(messages, first + 1000))
            ]
            async with store.transaction(deadline_seconds=60) as tx:
                await tx.post(made)
        yield store
    finally:
        await store.close()


async def deliver(
    url: str, sink: Sink, options: argparse.Namespace, *, aggregates: int, failing: bool = False
) -> float:
    """Messages per second to this sink, until the last one is delivered."""
    counted = Counting(sink, options.messages)
    sinks: dict[str, Sink] = {"healthy": counted} | ({FAILING: CircuitBreaker(Refusing())} if failing else {})
    settings = ProcessorOptions(retry=NEVER, concurrency=options.concurrency)
    async with filled(url, list(sinks), messages=options.messages, aggregates=aggregates) as store:
        processor = OutboxProcessor(
            store.outbox, lambda one: sinks.get(one.name), SYSTEM, name="benchmark", options=settings
        )
        began = time.perf_counter()
        running = asyncio.ensure_future(processor.run())
        async with asyncio.timeout(LIMIT_SECONDS):
            await counted.done.wait()
        seconds = time.perf_counter() - began
        processor.stop()
        await running
    return float(options.messages) / seconds


async def post_bare(target: str, options: argparse.Namespace, *, at_once: int) -> float:
    """Requests per second of the HTTP client alone, with a body and headers of the same size."""
    headers = {"Content-Type": "application/cloudevents+json; charset=utf-8", "User-Agent": "tenure"}
    headers |= {"webhook-id": "0" * 36, "webhook-timestamp": "0" * 10, "webhook-signature": "v1," + "0" * 44}
    event = {"specversion": "1.0", "id": "0" * 36, "source": "/tenure", "type": "order.paid", "time": "0" * 27}
    event |= {"datacontenttype": "application/json", "correlationid": "0" * 36, "subject": "a1234", "sequence": "1234"}
    body = msgspec.json.encode(event | {"data": msgspec.Raw(BODY.encode())})
    left = iter(range(options.messages))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=at_once), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:

        async def work() -> None:
            for _ in left:
                async with session.post(target, data=body, headers=headers, allow_redirects=False) as response:
                    await response.read()

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        return float(options.messages) / (time.perf_counter() - began)


async def nothing(_: Delivery) -> None:
    """The function of a Python endpoint."""


def webhook(target: str) -> Sink:
    guard = AddressGuard(LOOPBACK)
    return CircuitBreaker(WebhookSink(target, ["env:KEY"], guard=guard, environment=KEY))


async def one_round(
    new_url: Callable[[], AbstractContextManager[str]], target: str, options: argparse.Namespace
) -> dict[str, float]:
    """One figure for each variant, each on a new database."""
    many = options.aggregates

    async def measured(sink: Sink, **facts: Any) -> float:
        with new_url() as url:
            return await deliver(url, sink, options, **facts)

    return {
        "bare": await post_bare(target, options, at_once=options.concurrency),
        "webhook, many aggregates": await measured(webhook(target), aggregates=many),
        "bare, one at a time": await post_bare(target, options, at_once=1),
        "webhook, one aggregate": await measured(webhook(target), aggregates=1),
        "function, many aggregates": await measured(CallableSink(nothing), aggregates=many),
        "function, many aggregates, beside a dead endpoint": await measured(
            CallableSink(nothing), aggregates=many, failing=True
        ),
        "function, one aggregate": await measured(CallableSink(nothing), aggregates=1),
    }


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """The ratios that have targets: 0.6 of the bare client, 0.95 beside a dead endpoint."""
    return {
        "webhook / bare, many aggregates": figures["webhook, many aggregates"] / figures["bare"],
        "webhook / bare, one aggregate": figures["webhook, one aggregate"] / figures["bare, one at a time"],
        "beside a dead endpoint / without": figures["function, many aggregates, beside a dead endpoint"]
        / figures["function, many aggregates"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--aggregates", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
    options = parser.parse_args()
    mine, theirs = get_context("spawn").Pipe()
    receiver = get_context("spawn").Process(target=receive, args=(theirs,), daemon=True)
    receiver.start()
    theirs.close()
    with ExitStack() as stack:
        stack.callback(mine.close)
        server = stack.enter_context(PostgresServer()) if "postgres" in options.stores else None
        target = f"http://127.0.0.1:{mine.recv()}/hook"
        for store in options.stores:
            rounds = [
                asyncio.run(one_round(new_database(store, server), target, options)) for _ in range(options.rounds)
            ]
            middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
            per_round = [ratios(one) for one in rounds]
            shares = {name: round(median(one[name] for one in per_round), 2) for name in per_round[0]}
            rates = {name: round(rate) for name, rate in middle.items()}
            load = os.getloadavg()[0]
            print(json.dumps({"store": store, "per second": rates, "ratios": shares, "load": load}, indent=2))


def new_database(store: str, server: PostgresServer | None) -> Callable[[], AbstractContextManager[str]]:
    """Makes a database for each measurement, and removes it afterwards."""

    @contextmanager
    def on_sqlite() -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/jobs.db"

    @contextmanager
    def on_postgres() -> Iterator[str]:
        assert server is not None, "the stores that are measured include PostgreSQL"
        url = server.create_database()
        try:
            yield url
        finally:
            server.drop_database(url)

    return on_sqlite if store == "sqlite" else on_postgres


if __name__ == "__main__":
    main()
