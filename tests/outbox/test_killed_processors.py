"""Processors in processes of their own that are killed at random, and receivers that fail a fifth of the requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
from aiohttp import web

from tenure.stores import Store
from tenure.testing.contract.outbox import endpoint, post
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.outbox_processors import Processors
from tests.support.waiting import eventually

ENDPOINTS = ("crm", "audit")
PROCESSES = 4
FAILING_SHARE = 0.2
LIMIT_SECONDS = 540.0


class Receivers:
    """One HTTP server for all endpoints. It keeps the first delivery of each message, in their order."""

    def __init__(self) -> None:
        self.accepted: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        self.requests = self.repeated = self.bodies = 0
        self._random = Random(11)
        self._body_of: dict[str, bytes] = {}

    async def receive(self, request: web.Request) -> web.Response:
        body, id_ = await request.read(), request.headers["webhook-id"]
        self.requests += 1
        # Byte by byte the same in every attempt, to every endpoint.
        self.bodies += self._body_of.setdefault(id_, body) != body
        fate = self._random.random()
        if fate < FAILING_SHARE / 2:
            return web.Response(status=500)
        aggregate = (await request.json())["subject"]
        known = self.accepted[request.match_info["endpoint"], aggregate]
        self.repeated += id_ in known
        known.setdefault(id_)
        # In the other half of the failures the receiver has accepted the message.
        return web.Response(status=500 if fate < FAILING_SHARE else 200)

    async def have_got(self, requests: int) -> bool:
        return self.requests >= requests

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_post("/{endpoint}", self.receive)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def written(store: Store, *, aggregates: int, messages: int) -> dict[str, list[str]]:
    """Messages in transactions of several aggregates, by aggregate in their order."""
    names, drive = [f"a{number}" for number in range(aggregates)], Driver(store)
    sent: dict[str, list[str]] = {name: [] for name in names}
    for _ in range(messages):
        for name, id_ in zip(names, await post(drive, *(("paid", name) for name in names)), strict=True):
            sent[name].append(str(id_))
    return sent


async def nothing_is_pending(store: Store) -> bool:
    return not any(one.messages for one in (await store.outbox.depth()).endpoints)


@pytest.mark.timeout(600)
@pytest.mark.requirement("WC-07")
@pytest.mark.parametrize(
    ("aggregates", "messages", "kills"),
    [pytest.param(10, 10, 3, id="short"), pytest.param(100, 100, 40, id="long", marks=pytest.mark.deep)],
)
async def test_order_holds_at_each_receiver_while_processes_are_killed(
    database: Database, aggregates: int, messages: int, kills: int
) -> None:
    receivers, random = Receivers(), Random(3)
    async with database.opened() as store, receivers.serving() as base:
        for name in ENDPOINTS:
            await endpoint(store, name)
        sent = await written(store, aggregates=aggregates, messages=messages)
        total = len(ENDPOINTS) * aggregates * messages
        processors = Processors(database.url, [f"{base}/{name}" for name in ENDPOINTS], count=PROCESSES)
        try:
            for number in range(kills):
                await eventually(
                    partial(receivers.have_got, (number + 1) * total // (kills + 1)), seconds=LIMIT_SECONDS
                )
                processors.kill(random.randrange(PROCESSES))
            await eventually(partial(nothing_is_pending, store), seconds=LIMIT_SECONDS)
        finally:
            processors.close()
        for name in ENDPOINTS:
            for aggregate, ids in sent.items():
                assert list(receivers.accepted[name, aggregate]) == ids
        assert receivers.repeated > 0, "a receiver that fails after it has accepted gets the message again"
        assert receivers.bodies == 0, "a message has the same bytes in every attempt"
        assert all(one.dead == 0 for one in (await store.outbox.depth()).endpoints)
