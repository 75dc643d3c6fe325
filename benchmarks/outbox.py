"""Delivery of the outbox beside the same work without it: `python -m benchmarks.outbox --help`.

Messages are written to a new database and delivered by one processor: to a Python function that does nothing, and as
webhooks to a receiver on the loopback interface, in a process of its own. Beside the webhooks, the same HTTP client
posts the same bytes to the same receiver with the same number of requests at once, and does nothing else. Messages are
spread over many aggregates, or belong to one. The last variant has a second endpoint that refuses every message.
Rounds of all variants are interleaved; medians are shown. No round begins that could end after `--seconds-max`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec

from benchmarks.peers.figures import table
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
LIMIT_SECONDS = 60.0
"""How long one measurement may take."""
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
    slow = argparse.Namespace(**{**vars(options), "messages": min(options.messages, options.messages_one_by_one)})

    async def measured(sink: Sink, of: argparse.Namespace = options, **facts: Any) -> float:
        with new_url() as url:
            return await deliver(url, sink, of, **facts)

    return {
        BARE: await post_bare(target, options, at_once=options.concurrency),
        WEBHOOK: await measured(webhook(target), aggregates=many),
        "bare, one at a time": await post_bare(target, slow, at_once=1),
        "webhook, one aggregate": await measured(webhook(target), slow, aggregates=1),
        FUNCTION: await measured(CallableSink(nothing), aggregates=many),
        BESIDE_DEAD: await measured(CallableSink(nothing), aggregates=many, failing=True),
        "function, one aggregate": await measured(CallableSink(nothing), aggregates=1),
    }


FUNCTION, WEBHOOK, BARE = "function, many aggregates", "webhook, many aggregates", "bare"
BESIDE_DEAD = "function, many aggregates, beside a dead endpoint"
RATIOS = (
    (WEBHOOK, BARE, 0.6),
    ("webhook, one aggregate", "bare, one at a time", None),
    (BESIDE_DEAD, FUNCTION, 0.95),
)
TARGETS_PER_SECOND = {("postgres", FUNCTION): 2000}
Rounds = dict[str, list[dict[str, float]]]


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """The ratios of one round."""
    return {f"{one} / {other}": figures[one] / figures[other] for one, other, _ in RATIOS}


def report(rounds: Rounds) -> str:
    """The medians of the rounds as tables in Markdown, with the targets."""
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    made = min(len(of_store) for of_store in rounds.values())
    rates = [
        (store, name, f"{median(one[name] for one in of_store):,.0f}", f"{TARGETS_PER_SECOND.get((store, name), '')}")
        for store, of_store in rounds.items()
        for name in of_store[0]
    ]
    shares = [
        (
            store,
            f"{one} / {other}",
            f"{median(ratios(each)[f'{one} / {other}'] for each in of_store):.2f}",
            f"{wanted or ''}",
        )
        for store, of_store in rounds.items()
        for one, other, wanted in RATIOS
    ]
    return "\n".join(
        (
            f"{made} rounds; load of the last 1, 5 and 15 minutes: {loads}",
            *("", table(("store", "variant", "messages/s", "at least"), rates)),
            *("", table(("store", "median of the ratios of each round", "ratio", "at least"), shares)),
        )
    )


def measure(options: argparse.Namespace, target: str, server: PostgresServer | None) -> Rounds:
    """The figures of each round, by store. A round that could end too late is not begun."""
    began = time.monotonic()
    rounds: Rounds = {store: [] for store in options.stores}
    for number in range(1, options.rounds + 1):
        for store in options.stores:
            rounds[store].append(asyncio.run(one_round(new_database(store, server), target, options)))
        seconds = time.monotonic() - began
        print(f"round {number} of {options.rounds} after {seconds:.0f} s", file=sys.stderr, flush=True)
        if seconds * (number + 1) / number > options.seconds_max:
            break
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--messages-one-by-one", type=int, default=2_000, help="in the variants with one at a time")
    parser.add_argument("--aggregates", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds-max", type=float, default=300.0)
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
    parser.add_argument("--out", type=Path, default=Path("build/outbox"), help="folder for the results")
    options = parser.parse_args()
    mine, theirs = get_context("spawn").Pipe()
    receiver = get_context("spawn").Process(target=receive, args=(theirs,), daemon=True)
    receiver.start()
    theirs.close()
    with ExitStack() as stack:
        stack.callback(mine.close)
        server = stack.enter_context(PostgresServer()) if "postgres" in options.stores else None
        rounds = measure(options, f"http://127.0.0.1:{mine.recv()}/hook", server)
    written = report(rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "outbox.json").write_text(json.dumps(rounds, indent=2) + "\n", encoding="utf-8")
    (options.out / "outbox.md").write_text(f"{written}\n", encoding="utf-8")
    print(written)


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
