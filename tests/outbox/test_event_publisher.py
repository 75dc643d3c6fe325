"""The event publisher on both stores: which events become messages, for which endpoints, in which vocabularies, and
once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from tenure.app import App
from tenure.errors import StoreUnavailable
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operations import Complete, Fail
from tenure.lifecycle.records import Job
from tenure.outbox.event_messages import named_vocabularies
from tenure.outbox.event_publisher import EventPublisher, PublisherStore
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered
from tenure.outbox.subscriptions import matches_any
from tenure.seams import SYSTEM
from tenure.stores.contract import EventFilter, Store
from tenure.stores.contract.log_cursors import EventMessage, LogCursor, OperatorEvent
from tenure.stores.contract.outbox import EndpointRecord, MessageFilter, StoredMessage, SubscriptionRecord
from tenure.testing.contract.outbox import post
from tenure.testing.driver import ERROR, OPERATOR, Driver
from tests.support.databases import Database
from tests.support.waiting import eventually


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    async with database.opened() as opened:
        yield opened


async def subscribe(store: Store, *topics: str, endpoint: str = "audit") -> None:
    subscriptions = [SubscriptionRecord(endpoint=endpoint, topic=topic) for topic in topics]
    await store.outbox.put_endpoint(endpoint, kind="callable", subscriptions=subscriptions, actor=OPERATOR)


async def succeeded(store: Store, **facts: Any) -> Job:
    drive = Driver(store)
    job = await drive.running(**facts)
    return await drive.apply(job, Complete('"secret result"'))


async def publish_all(store: Store, publisher: EventPublisher) -> None:
    """Publish once the log has no event that a transaction elsewhere in the cluster holds back."""

    async def is_whole() -> bool:
        written = await store.events(EventFilter(), limit=1000)
        return len((await store.tail(limit=1000)).events) == len(written.events)

    await eventually(is_whole)
    while await publisher.publish_page():
        pass


async def published(store: Store, publisher: EventPublisher | None = None) -> list[StoredMessage]:
    if publisher is None:
        publisher = EventPublisher(store, name="worker-1")
        await publish_all(store, publisher)
        await publisher.close()
    else:
        await publish_all(store, publisher)
    return await store.outbox.messages(MessageFilter(), limit=1000)


@pytest.mark.requirement("WC-07")
async def test_each_event_that_is_subscribed_to_becomes_one_message(store: Store) -> None:
    await subscribe(store, "tenure.job.*")
    job = await succeeded(store, tags={"tenant": "x"})
    messages = await published(store)
    assert [one.topic for one in messages] == [
        f"tenure.job.{event.type}" for event in await Driver(store).events_of(job.id)
    ]
    assert {one.aggregate for one in messages} == {f"job/{job.id}"}
    last = load(messages[-1].body)
    assert (last["job_id"], last["kind"], last["to"], last["attempt"]) == (str(job.id), "mail", "succeeded", 1)
    assert last["tags"] == {"tenant": "x"}
    assert not any("secret" in one.body for one in messages)


@pytest.mark.requirement("SM-16")
async def test_a_message_has_the_correlation_id_and_trace_of_the_job(store: Store) -> None:
    await subscribe(store, "tenure.job.succeeded")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await succeeded(store, correlation_id="order-7", trace=trace)
    [message] = await published(store)
    assert (message.correlation_id, message.trace) == ("order-7", trace)


@pytest.mark.requirement("EH-06")
async def test_a_failure_becomes_a_message_whatever_ended_the_job(store: Store) -> None:
    await subscribe(store, "tenure.job.failed", "tenure.job.dead_lettered")
    drive = Driver(store)
    failed = await drive.running()
    await drive.apply(failed, Fail(ERROR))
    await succeeded(store)
    assert [load(one.body)["job_id"] for one in await published(store)] == [str(failed.id)]


async def test_publishing_again_writes_nothing(store: Store) -> None:
    await subscribe(store, "tenure.job.*")
    await succeeded(store)
    publisher = EventPublisher(store, name="worker-1")
    first = await published(store, publisher)
    assert await published(store, publisher) == first
    await publisher.close()
    assert await published(store) == first


async def test_events_are_published_as_they_happen_and_in_the_order_of_each_job(store: Store) -> None:
    await subscribe(store, "tenure.job.*")
    publisher = EventPublisher(store, name="worker-1")
    seen: list[StoredMessage] = []
    for _ in range(3):
        await succeeded(store)
        messages = await published(store, publisher)
        assert messages[: len(seen)] == seen
        assert len(messages) > len(seen)
        seen = messages
    for aggregate in {one.aggregate for one in seen}:
        revisions = [load(one.body)["rev"] for one in seen if one.aggregate == aggregate]
        assert revisions == sorted(revisions)


async def test_an_endpoint_receives_no_events_from_before_it_was_created(store: Store) -> None:
    await succeeded(store)
    await subscribe(store, "tenure.job.succeeded")
    later = await succeeded(store)
    assert [load(one.body)["job_id"] for one in await published(store)] == [str(later.id)]


async def test_without_a_subscription_that_names_events_none_is_written(store: Store) -> None:
    await subscribe(store, "*", "mail.*")
    await succeeded(store)
    assert await published(store) == []
    cursor = await store.log_cursors.lease("events", owner="test", token=UUID(int=9), lease_seconds=1)
    assert cursor is not None
    assert cursor.position is None, "the log is not read"


async def test_events_are_translated_into_the_vocabulary_that_a_topic_names(store: Store) -> None:
    await subscribe(store, "tenure.engine.*")
    await succeeded(store)
    messages = await published(store)
    assert messages
    assert {one.topic.split(".")[1] for one in messages} == {"engine"}
    words = [load(one.body)["transition"]["to"] for one in messages if load(one.body)["transition"]]
    assert words[-1] == "completed"
    assert len({one.id for one in messages}) == len(messages)


async def test_a_message_is_pending_for_the_endpoints_that_subscribe_to_its_topic(store: Store) -> None:
    await subscribe(store, "tenure.job.failed", endpoint="failures")
    await subscribe(store, "tenure.job.succeeded", endpoint="successes")
    await succeeded(store)
    [message] = await published(store)
    assert [one.endpoint for one in await store.outbox.pending(message.sequence)] == ["successes"]


async def test_one_publisher_at_a_time_has_the_cursor(store: Store) -> None:
    await subscribe(store, "tenure.job.*")
    first, second = EventPublisher(store, name="worker-1"), EventPublisher(store, name="worker-2")
    await publish_all(store, first)
    await succeeded(store)
    assert await published(store, second) == [], "the first has the lease"
    await first.close()
    assert len(await published(store, second)) > 0


class LosesReplies:
    """Cursors whose replies are lost: the transaction is committed, and the caller does not learn of it."""

    def __init__(self, store: Store) -> None:
        self._cursors = store.log_cursors
        self.lost = 0

    async def lease(self, name: str, *, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
        return await self._cursors.lease(name, owner=owner, token=token, lease_seconds=lease_seconds)

    async def unpublished(self, *, limit: int) -> list[OperatorEvent]:
        return await self._cursors.unpublished(limit=limit)

    async def publish(
        self,
        cursor: LogCursor,
        *,
        token: UUID,
        position: str | None,
        messages: Sequence[EventMessage] = (),
        operator_events: Sequence[int] = (),
    ) -> bool:
        facts = {"position": position, "messages": messages, "operator_events": operator_events}
        await self._cursors.publish(cursor, token=token, **facts)  # type: ignore[arg-type]
        self.lost += 1
        raise StoreUnavailable("the connection was cut at the commit")

    async def release(self, name: str, *, token: UUID) -> None:
        await self._cursors.release(name, token=token)


@pytest.mark.requirement("WC-07")
async def test_a_reply_that_was_lost_leads_to_no_second_message(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscribe(store, "tenure.job.*")
    job = await succeeded(store)
    cutting = LosesReplies(store)
    publisher = EventPublisher(store, name="worker-1")
    with monkeypatch.context() as patched:
        patched.setattr(store, "log_cursors", cutting)
        with pytest.raises(StoreUnavailable):
            await publish_all(store, publisher)
    assert cutting.lost == 1
    messages = await published(store, publisher)
    assert len(messages) == len(await Driver(store).events_of(job.id))


async def test_a_cursor_set_back_publishes_nothing_twice(store: Store, database: Database) -> None:
    await subscribe(store, "tenure.job.*")
    await succeeded(store)
    first = await published(store)
    table = "tenure_log_cursors" if database.is_sqlite else "tenure.log_cursors"
    database.tamper(f"update {table} set position = null")
    assert await published(store) == first


@pytest.mark.requirement("EH-06")
async def test_a_disabled_endpoint_and_a_dead_letter_become_messages_for_another_endpoint(store: Store) -> None:
    await subscribe(store, "tenure.operator.*", endpoint="pager")
    await subscribe(store, "mail.*", endpoint="crm")
    drive, receiver = Driver(store), Refusing()
    await post(drive, ("mail.sent", "ada"))
    settings = ProcessorOptions(retry=RetrySchedule(delays_seconds=()))
    served = OutboxProcessor(store.outbox, receiver.serves("crm"), SYSTEM, name="p", options=settings)
    await served.drain()
    assert await store.outbox.disable("crm", because="down", actor=OPERATOR)
    messages = [one for one in await published(store) if one.topic != "mail.sent"]
    assert [one.topic for one in messages if one.aggregate == "endpoint/crm"] == [
        "tenure.operator.put_endpoint",
        "tenure.operator.dead_letter_message",
        "tenure.operator.disable_endpoint",
    ]
    by_topic = {one.topic: load(one.body) for one in messages}
    dead = by_topic["tenure.operator.dead_letter_message"]
    assert (dead["endpoint"], dead["topic"], dead["error"], dead["actor"]) == ("crm", "mail.sent", "no", "outbox:p")
    disabled = by_topic["tenure.operator.disable_endpoint"]
    assert (disabled["endpoint"], disabled["because"], disabled["actor"]) == ("crm", "down", str(OPERATOR))
    assert len(await published(store)) == len(messages) + 1, "each is published once"


@pytest.mark.requirement("EH-06")
async def test_a_message_about_a_dead_letter_that_is_a_dead_letter_itself_leads_to_no_further_one(store: Store) -> None:
    await subscribe(store, "*", "tenure.operator.dead_letter_message", endpoint="pager")
    await post(Driver(store), ("mail.sent", "ada"))
    settings = ProcessorOptions(retry=RetrySchedule(delays_seconds=()))
    topics: list[str] = []
    for _ in range(4):
        served = OutboxProcessor(store.outbox, Refusing().serves("pager"), SYSTEM, name="p", options=settings)
        await served.drain()
        topics = [one.topic for one in await published(store)]
    assert topics == ["mail.sent", "tenure.operator.dead_letter_message"]


class Refusing:
    """A receiver that accepts nothing."""

    def serves(self, *names: str) -> Callable[[EndpointRecord], Sink | None]:
        return lambda endpoint: self if endpoint.name in names else None

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        return Undelivered(reason="no")

    async def close(self) -> None: ...


def test_a_topic_matches_its_own_name_and_its_prefix() -> None:
    assert matches_any("tenure.job.failed", ["tenure.job.failed"])
    assert matches_any("tenure.job.failed", ["tenure.*"])
    assert not matches_any("tenure.job.failed", ["tenure.job.fail", "tenure.engine.*"])


def test_a_vocabulary_is_used_where_a_topic_names_it() -> None:
    assert [one.name for one in named_vocabularies(["tenure.engine.*", "tenure.ledger.x", "tenure.job.*"])] == [
        "ledger",
        "engine",
    ]
    assert named_vocabularies(["tenure.*", "tenure.nonsense.*"]) == ()


def test_the_publisher_can_neither_change_a_job_nor_deliver() -> None:
    """By type: its part of the store has no method for either."""
    methods = {name for part in PublisherStore.__mro__ for name in vars(part) if not name.startswith("_")}
    assert not methods & {"apply", "claim", "enqueue", "transaction", "save_step", "settle"}


async def test_a_worker_publishes_events_beside_its_jobs(database: Database) -> None:
    async with database.opened() as store:
        await subscribe(store, "tenure.job.succeeded")
    app = App(database.url)

    @app.job
    async def greet(name: str) -> str:
        return f"hello, {name}"

    async with app:
        worker = app.worker()
        working = asyncio.ensure_future(worker.run())
        job = await greet.enqueue("Ada")
        await job.result(timeout_seconds=30)
        store = await app.store()

        async def is_published() -> bool:
            return [load(one.body)["job_id"] for one in await store.outbox.messages(MessageFilter())] == [str(job.id)]

        await eventually(is_published, seconds=30)
        worker.stop()
        await working
        cursor = await store.log_cursors.lease("events", owner="test", token=UUID(int=9), lease_seconds=1)
        assert cursor is not None, "the worker released the cursor when it stopped"
