"""Both ends together: a reply that is lost with its sender leads to one more request, and to no second effect."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from tenure.inbox import CREATE_TABLE, record_receipt, verify
from tenure.stores.contract.outbox import MessageFilter
from tenure.testing.contract.outbox import endpoint, post
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.outbox_process import KEY
from tests.support.outbox_processors import Processors
from tests.support.waiting import eventually
from tests.support.webhook_receiver import Received, running_receiver

LIMIT_SECONDS = 100.0


def apply(file: Path, received: Received) -> None:
    """The receiver's work: the effect and the receipt in one transaction."""
    message = verify(received.headers, received.body, [KEY])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("create table if not exists effects (message_id text)")
        connection.execute(CREATE_TABLE)
        if record_receipt(connection, message.id):
            connection.execute("insert into effects values (?)", (message.id,))


@pytest.mark.requirement("WC-07")
async def test_a_reply_that_is_lost_with_its_sender_leads_to_one_effect(database: Database, tmp_path: Path) -> None:
    file, accepted = tmp_path / "receiver.db", asyncio.Event()

    async def respond(received: Received) -> web.Response:
        apply(file, received)
        if not accepted.is_set():
            accepted.set()
            await asyncio.Event().wait()
        return web.Response(status=204)

    async with database.opened() as store, running_receiver() as receiver:
        receiver.respond = respond
        await endpoint(store)
        [id_] = await post(Driver(store), ("paid", "ada"))
        senders = Processors(database.url, [f"http://127.0.0.1:{receiver.port}/crm"], count=1)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await accepted.wait()
            senders.kill(0)
            [stored] = await store.outbox.messages(MessageFilter())

            async def is_delivered() -> bool:
                made = await store.outbox.deliveries(stored.sequence)
                return any(one.outcome == "delivered" for one in made)

            await eventually(is_delivered, seconds=LIMIT_SECONDS)
        finally:
            senders.close()
        first, *_, last = receiver.received
        assert first.headers["webhook-id"] == last.headers["webhook-id"] == str(id_)
        assert first.body == last.body
        assert len(await store.outbox.messages(MessageFilter())) == 1
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select message_id from effects").fetchall() == [(str(id_),)]
