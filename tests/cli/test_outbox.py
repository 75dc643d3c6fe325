"""`tenure outbox` and what `doctor` reports of the outbox."""

from __future__ import annotations

import pytest

from tenure.stores.contract.outbox import SubscriptionRecord
from tenure.testing.contract.outbox import claim, endpoint, post, settlement
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import tenure
from tests.support.databases import Database


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
    [one] = tenure("outbox", "endpoints", *there).json["depth"]["endpoints"]
    assert one["dead"] == 0
    assert tenure("outbox", "disable", "crm", *there).code == 0
    assert tenure("outbox", "disable", "crm", *there).code == 1
    assert tenure("outbox", "enable", "crm", *there).code == 0
    assert tenure("outbox", "enable", "nobody", *there).code == 1
    text = tenure("outbox", "endpoints", "--database", database.url)
    assert "crm" in text.out
    assert tenure("outbox", "subscriptions", *there).json["subscriptions"][0]["topic"] == "*"


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
