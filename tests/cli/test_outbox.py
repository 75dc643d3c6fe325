"""`tenure outbox` and what `doctor` reports of the outbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from tenure import App, Context
from tenure.inbox import verify
from tenure.stores.contract.outbox import SubscriptionRecord
from tenure.testing.contract.outbox import claim, endpoint, post, settlement
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.webhook_receiver import running_receiver

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.requirement("EH-06", "WC-07")
async def test_an_operator_lists_shows_redrives_discards_and_replays(database: Database) -> None:
    async with database.opened() as store:
        await endpoint(store)
        first, second = await post(Driver(store), ("paid", "ada"), ("paid", "ada"))
        [stream] = await claim(store)
        assert await store.outbox.settle([settlement(stream, "dead")]) == [True]
        sequence = stream.messages[-1].sequence
    there = ("--database", database.url, "--json")
    shown = tenure("outbox", "show", str(first), *there).json
    assert [one["outcome"] for one in shown["deliveries"]] == ["dead"]
    assert "body" not in shown["message"]
    assert tenure("outbox", "show", str(first), "--body", *there).json["message"]["body"] == "{}"
    listed = tenure("outbox", "ls", "--state", "dead", *there).json["messages"]
    assert [one["id"] for one in listed] == [str(first), str(second)]
    assert tenure("outbox", "discard", "crm", str(sequence), *there).json["discarded"] == 1
    assert tenure("outbox", "redrive", "crm", *there).json["redriven"] == 1
    assert tenure("outbox", "redrive", "crm", *there).code == 1
    assert tenure("outbox", "replay", "crm", "--since", "2020-01-01", *there).json["replayed"] == 2
    assert tenure("outbox", "replay", "crm", "--since", "1d", *there).json["replayed"] == 2
    [one] = tenure("outbox", "endpoints", *there).json["depth"]["endpoints"]
    assert one["dead"] == 0
    assert tenure("outbox", "disable", "crm", *there).code == 0
    assert tenure("outbox", "disable", "crm", *there).code == 1
    assert tenure("outbox", "enable", "crm", *there).code == 0
    assert tenure("outbox", "enable", "nobody", *there).code == 1
    text = tenure("outbox", "endpoints", "--database", database.url)
    assert "crm" in text.out
    assert tenure("outbox", "subscriptions", *there).json["subscriptions"][0]["topic"] == "*"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("replay", "nobody", "--since", "1h"), "endpoint 'nobody' is unknown; see: tenure outbox endpoints"),
        (("replay", "crm", "--since", "1h"), "endpoint 'crm' subscribes to no message that was written since then"),
        (("replay", "crm", "--since", "soon"), "'soon' is neither a time like 2030-01-31T09:00 nor an age"),
        (("redrive", "nobody"), "no open dead letter of an endpoint 'nobody' matches"),
        (("discard", "crm", "7"), "no open dead letter of an endpoint 'crm' matches"),
        (("add", "x", "https://a.example", "--topic", "*", "--secret", "env:K", "--timeout-seconds", "0"), "timeout"),
    ],
)
async def test_a_command_that_finds_nothing_to_do_names_what_is_missing(
    tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        await endpoint(store)
    done = tenure("outbox", *command, "--database", database.url)
    assert done.code != 0
    assert message in done.err


APP = """
import tenure

app = tenure.App({url!r})

@app.endpoint("crm", topics=["*"])
async def receive(delivery):
    if delivery.topic == "bad":
        raise ValueError("no such account")
"""


async def test_messages_are_delivered_without_a_worker_and_counted(database: Database, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(url=database.url), encoding="utf-8")
    async with database.opened() as store:
        await endpoint(store)
        _, bad = await post(Driver(store), ("good", "ada"), ("bad", "bob"))
    done = tenure("outbox", "run", "shop:app", "--once", cwd=tmp_path)
    assert (done.code, done.out) == (0, "1 delivered, 1 to be attempted again, 0 dead letters\n")
    assert "delivers to crm" in done.err
    assert f"message {bad} (bad) not delivered to endpoint crm, attempt 1: ValueError: no such account" in done.err


@pytest.mark.requirement("WC-07")
async def test_doctor_reports_messages_that_nothing_delivers(database: Database) -> None:
    async with database.opened() as store:
        subscription = SubscriptionRecord(endpoint="crm", topic="mail.*")
        await store.outbox.put_endpoint("crm", kind="callable", subscriptions=[subscription], actor=OPERATOR)
        await post(Driver(store), ("paid", "ada"), ("mail.sent", "ada"))
        found = [one.message for one in await store.doctor() if one.about == "outbox"]
        assert found == [
            "1 message that no endpoint subscribes to",
            "endpoint 'crm' has 1 pending message and no processor that serves it",
        ]
        await store.outbox.mark_seen(["crm"])
        await store.outbox.disable("crm", because="gone", actor=OPERATOR)
        assert "endpoint 'crm' is disabled and has 1 pending message" in [one.message for one in await store.doctor()]


@pytest.mark.requirement("WC-07")
async def test_stats_reports_messages_that_nothing_delivers(database: Database) -> None:
    async with database.opened() as store:
        await endpoint(store, "crm", "mail.*")
        await post(Driver(store), ("paid", "ada"), ("mail.sent", "ada"))
    shown = tenure("stats", "--database", database.url).out
    assert "1 message that no endpoint subscribes to\n" in shown
    assert "endpoint 'crm' has 1 pending message and no processor that serves it\n" in shown
    stats = tenure("stats", "--database", database.url, "--json").json
    assert (stats["outbox"]["unserved"], stats["outbox"]["endpoints"][0]["messages"]) == (1, 1)
    assert len(stats["undelivered"]) == 2


async def test_secret_fields_of_a_message_are_shown_on_request_only(database: Database) -> None:
    app = App(database.url, environment={})
    async with database.opened(), app:
        body = {"to": "ada", "login": [{"password": "hunter2"}], "account": "secret number"}
        headers = {"Authorization": "Bearer hunter2", "x-shop": "eu"}
        id_ = str(await app.outbox("paid", body, headers=headers))

    def shown(*options: str) -> str:
        return tenure("outbox", "show", id_, "--database", database.url, *options).out

    for options in ((), ("--body",), ("--body", "--json")):
        text = shown(*options)
        assert "hunter2" not in text
        assert "eu" in text
        assert ("secret number" in text) is ("--body" in options)
    assert "secret number" not in shown("--body", "--secret", "account")
    assert (shown("--body", "--reveal")).count("hunter2") == 2


@pytest.mark.requirement("WC-07")
async def test_a_webhook_is_created_tried_and_served_by_a_worker(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.opened():
        pass
    monkeypatch.setenv("BILLING_KEY", KEY)
    monkeypatch.setenv("TENURE_WEBHOOK_NETWORKS", "127.0.0.0/8")
    there = ("--database", database.url, "--json")
    app = App(database.url)

    @app.job
    async def pay(ctx: Context) -> str:
        async with ctx.commit(result="paid") as tx:
            tx.outbox("payment.booked", {"cents": 1200}, aggregate="ada")
        return "paid"

    async with running_receiver() as receiver, app:
        add = ("outbox", "add", "billing", receiver.url, "--topic", "payment.*", "--secret", "env:BILLING_KEY", *there)
        assert (await asyncio.to_thread(tenure, *add)).code == 0
        allowed = {"TENURE_WEBHOOK_NETWORKS": "127.0.0.0/8"}
        tried = await asyncio.to_thread(tenure, "outbox", "test", "billing", *there, env=allowed)
        assert tried.json == {"endpoint": "billing", "delivered": True, "status": 204, "reason": None}
        receiver.respond = lambda _: web.Response(status=500)
        refused = await asyncio.to_thread(tenure, "outbox", "test", "billing", *there, env=allowed)
        assert (refused.code, refused.json["reason"]) == (1, "HTTP 500 Internal Server Error")
        receiver.respond = lambda _: web.Response(status=204)
        receiver.received.clear()
        await pay.enqueue()
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while not receiver.received:  # noqa: ASYNC110 - the receiver has no event to wait for
                await asyncio.sleep(0.02)
        worker.stop()
        await working
    [received] = receiver.received
    assert verify(received.headers, received.body, [KEY]).data == {"cents": 1200}
    assert tenure("outbox", "remove", "billing", *there).code == 0
    assert tenure("outbox", "remove", "billing", *there).code == 1
    assert tenure("outbox", "test", "billing", *there).code == 1


@pytest.mark.parametrize(
    ("url", "secret", "field"),
    [
        ("ftp://example.org", "env:KEY", "url"),
        ("https://ada:s3cret@example.org", "env:KEY", "url"),
        ("https://example.org", "whsec_plain", "secret"),
    ],
)
async def test_a_webhook_with_a_bad_address_or_a_plain_key_is_refused(
    database: Database, url: str, secret: str, field: str
) -> None:
    async with database.opened() as store:
        refused = tenure(
            "outbox", "add", "billing", url, "--topic", "*", "--secret", secret, "--database", database.url
        )
        assert refused.code == 2
        assert field in refused.err
        assert "s3cret" not in refused.err
        assert "whsec_plain" not in refused.err
        assert await store.outbox.endpoints() == []
