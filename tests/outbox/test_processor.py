"""The outbox processor: order per aggregate and endpoint, across crashes, errors, and endpoints that are disabled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

import tenure
from simulation.model.store import ModelStore
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.outbox.circuit_breaker import CircuitBreaker
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import DELAYS_SECONDS, RetrySchedule
from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered
from tenure.outbox.subscriptions import matching_subscriptions
from tenure.seams import SYSTEM
from tenure.stores import Store
from tenure.stores.contract import OutboxMessage
from tenure.stores.contract.outbox import MessageFilter, OutboxStore, SubscriptionRecord
from tenure.testing.clock import ManualClock
from tenure.testing.contract.outbox import endpoint, post
from tenure.testing.driver import OPERATOR, Driver
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

SOON = RetrySchedule(delays_seconds=(0.0,) * 200)
LIMIT_SECONDS = 60.0
DAY_SECONDS = 86_400.0


class Killed(BaseException):
    """The process has ended here."""


class Receiver:
    """A sink that keeps what it accepts, by aggregate. `answer` decides."""

    def __init__(self, answer: Callable[[Delivery], Delivered | Undelivered] | None = None) -> None:
        self.accepted: defaultdict[str | None, list[Delivery]] = defaultdict(list)
        self.attempts: list[Delivery] = []
        self._answer = answer or (lambda _: Delivered())

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        self.attempts.append(delivery)
        answer = self._answer(delivery)
        if isinstance(answer, Delivered):
            self.accepted[delivery.aggregate].append(delivery)
        return answer

    async def close(self) -> None:
        pass

    def once(self, aggregate: str | None) -> list[Delivery]:
        """What a receiver applies that ignores ids that it has seen."""
        return list({delivery.id: delivery for delivery in reversed(self.accepted[aggregate])}.values())[::-1]


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    async with database.opened() as opened:
        yield opened


def processor(
    store: OutboxStore, sinks: dict[str, Sink], *, name: str = "p", retry: RetrySchedule = SOON, **options: Any
) -> OutboxProcessor:
    options.setdefault("delivery_seconds_max", min(45.0, options.get("lease_seconds", 120.0) / 2))
    settings = ProcessorOptions(retry=retry, poll_seconds=0.01, **options)
    return OutboxProcessor(store, lambda one: sinks.get(one.name), SYSTEM, name=name, options=settings)


@pytest.mark.requirement("WC-07", "EH-06")
async def test_of_two_writers_of_an_aggregate_the_one_that_commits_first_is_delivered_first(
    database: Database, store: Store
) -> None:
    drive, receiver = Driver(store), Receiver()
    await endpoint(store)

    def message(topic: str) -> OutboxMessage:
        return OutboxMessage(id=drive.random.job_id(), topic=topic, body="{}", aggregate="ada")

    if database.is_sqlite:
        # There is one writer: the second waits for the first.
        for topic in ("second", "first"):
            async with store.transaction(deadline_seconds=30) as tx:
                await tx.post([message(topic)])
    else:
        import psycopg

        async with await psycopg.AsyncConnection.connect(database.url) as early:
            app = tenure.App(database.url, environment={})
            await app.outbox("first", {}, aggregate="ada", within=early)
            await app.outbox("first", {}, aggregate="bob", within=early)
            async with store.transaction(deadline_seconds=30) as tx:
                await tx.post([message("second")])
            await processor(store.outbox, {"crm": receiver}).drain()
            assert [one.topic for one in receiver.accepted["ada"]] == ["second"]
            await early.commit()
    await processor(store.outbox, {"crm": receiver}).drain()
    assert [one.topic for one in receiver.accepted["ada"]] == ["second", "first"]
    assert receiver.accepted["ada"][1].previous == receiver.accepted["ada"][0].sequence


@pytest.mark.requirement("WC-07", "EH-06")
async def test_order_holds_at_each_receiver_with_many_processors_kills_and_errors(store: Store) -> None:
    drive, random = Driver(store), Random(7)
    aggregates, messages = [f"a{number}" for number in range(12)], 12
    for name in ("crm", "audit"):
        await endpoint(store, name)
    sent: defaultdict[str, list[Any]] = defaultdict(list)
    for _ in range(messages):
        for aggregate, id_ in zip(aggregates, await post(drive, *(("t", one) for one in aggregates)), strict=True):
            sent[aggregate].append(id_)

    def answer(_: Delivery) -> Delivered | Undelivered:
        draw = random.random()
        if draw < 0.03:
            raise Killed
        return Undelivered(reason="refused") if draw < 0.23 else Delivered()

    receivers = {name: Receiver(answer) for name in ("crm", "audit")}
    outbox = store.outbox

    async def serve(name: str) -> None:
        """A processor that is started again whenever it is killed. What it had not settled is lost with its lease."""
        while (await outbox.depth()).endpoints and any(one.messages for one in (await outbox.depth()).endpoints):
            served = processor(outbox, dict(receivers), name=name, lease_seconds=0.5, concurrency=3, messages_max=5)
            await served.step()
            await served.settled()

    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(serve(f"p{number}") for number in range(4)))
    for receiver in receivers.values():
        for aggregate in aggregates:
            assert [one.id for one in receiver.once(aggregate)] == sent[aggregate]
    assert all((one.messages, one.dead) == (0, 0) for one in (await outbox.depth()).endpoints)


@pytest.mark.requirement("WC-07")
async def test_a_message_that_was_accepted_and_not_recorded_is_sent_again_with_the_same_id_and_body(
    store: Store,
) -> None:
    class Crashing:
        """The outbox of a process that dies before it records a delivery."""

        def __init__(self, inner: OutboxStore) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def settle(self, settlements: Any) -> list[bool]:
            raise asyncio.CancelledError

    receiver = Receiver()
    await endpoint(store)
    await post(Driver(store), ("paid", "ada"))
    crashing: Any = Crashing(store.outbox)
    await processor(crashing, {"crm": receiver}, lease_seconds=0.2).drain()
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(receiver.attempts) < 2:
            await processor(store.outbox, {"crm": receiver}).drain()
    first, second = receiver.attempts
    assert (first.id, first.body, first.sequence) == (second.id, second.body, second.sequence)
    assert len(await store.outbox.messages(MessageFilter())) == 1
    [made] = await store.outbox.deliveries(first.sequence or 0)
    assert made.outcome == "delivered"


@pytest.mark.requirement("EH-06")
async def test_a_message_is_dead_after_the_last_attempt_and_the_receiver_sees_the_gap(store: Store) -> None:
    receiver = Receiver(lambda one: Undelivered(reason="no", status=500) if one.topic == "bad" else Delivered())
    await endpoint(store)
    await post(Driver(store), ("good", "ada"), ("bad", "ada"), ("good", "ada"))
    await processor(store.outbox, {"crm": receiver}, retry=RetrySchedule(delays_seconds=(0.0, 0.0))).drain()
    bad = [one for one in receiver.attempts if one.topic == "bad"]
    assert [one.attempt for one in bad] == [1, 2, 3]
    first, last = receiver.accepted["ada"]
    assert (last.previous, first.previous) == (bad[0].sequence, None)
    made = await store.outbox.deliveries(bad[0].sequence or 0)
    assert [(one.outcome, one.status, one.error) for one in made] == [
        ("failed", 500, "no"),
        ("failed", 500, "no"),
        ("dead", 500, "no"),
    ]


@pytest.mark.requirement("EH-06")
async def test_each_failed_attempt_is_in_the_log_with_what_follows(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tenure.outbox")
    answers: list[Delivered | Undelivered] = [Undelivered(reason="no", throttle=True, retry_after_seconds=0.01)] * 2
    receiver = Receiver(lambda _: answers.pop(0) if answers else Delivered())
    await endpoint(store)
    first, second = await post(Driver(store), ("bad", "ada"), ("good", "ada"))
    served = processor(store.outbox, {"crm": receiver}, retry=RetrySchedule(delays_seconds=(0.0,)))
    await served.drain()
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(receiver.accepted["ada"]) < 1:
            await served.drain()
    lines = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert lines == [
        ("INFO", "outbox processor p delivers to crm"),
        ("WARNING", "endpoint crm paused for 0.01 s: no"),
        ("WARNING", f"message {first} (bad) not delivered to endpoint crm, attempt 1: no; retrying in 0.0 s"),
        ("WARNING", "endpoint crm paused for 0.01 s: no"),
        ("ERROR", f"message {first} (bad) not delivered to endpoint crm, attempt 2: no; it is a dead letter"),
        ("INFO", "endpoint crm accepts messages again"),
    ]
    dead: Any = caplog.records[4]
    assert (dead.message_id, dead.topic, dead.endpoint, dead.attempt) == (str(first), "bad", "crm", 2)
    assert dead.correlation_id
    assert [one.id for one in receiver.accepted["ada"]] == [second]


@pytest.mark.requirement("EH-06")
async def test_a_message_that_blocks_its_aggregate_for_too_long_is_dead(store: Store) -> None:
    receiver = Receiver(lambda one: Undelivered(reason="no") if one.topic == "bad" else Delivered())
    await endpoint(store, "crm", "*", block_seconds=60.0)
    await post(Driver(store), ("bad", "ada"), ("good", "ada"))
    retry = RetrySchedule(delays_seconds=(3600.0,))
    await processor(store.outbox, {"crm": receiver}, retry=retry).drain()
    assert [one.topic for one in receiver.accepted["ada"]] == ["good"]


async def test_a_stuck_aggregate_and_a_dead_endpoint_hold_up_no_other(store: Store) -> None:
    def refuse(one: Delivery) -> Delivered | Undelivered:
        return Undelivered(reason="no") if one.aggregate == "stuck" else Delivered()

    receivers: dict[str, Any] = {"crm": Receiver(refuse), "down": Receiver(lambda _: Undelivered(reason="down"))}
    for name in receivers:
        await endpoint(store, name)
    await post(Driver(store), ("t", "stuck"), ("t", "ada"), ("t", None))
    await processor(store.outbox, receivers, retry=RetrySchedule(delays_seconds=(3600.0,))).drain()
    assert {aggregate for aggregate, got in receivers["crm"].accepted.items() if got} == {"ada", None}
    assert [one.messages for one in (await store.outbox.depth()).endpoints] == [1, 3]


class Hanging:
    """The sink of an endpoint that never responds."""

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        await asyncio.Event().wait()
        return Delivered()

    async def close(self) -> None: ...


class Healthy(Receiver):
    """A receiver that responds after a few turns of the event loop. `done` is set by the last message."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.done, self._wanted = asyncio.Event(), wanted

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        for _ in range(5):
            await asyncio.sleep(0)
        answer = await super().deliver(delivery)
        self._wanted -= 1
        if not self._wanted:
            self.done.set()
        return answer


async def turns_until_delivered(dead: Sink | None, *, messages: int = 400) -> int:
    """How many turns of the event loop one processor takes to deliver everything to a healthy endpoint."""
    store: Any = ModelStore(ManualClock())
    healthy = Healthy(messages)
    sinks: dict[str, Sink] = {"healthy": healthy} | ({} if dead is None else {"dead": dead})
    for name in sinks:
        await endpoint(store, name)
    drive: Any = Driver(store)
    await post(drive, *(("t", f"a{number}") for number in range(messages)))
    served = processor(store.outbox, sinks, retry=RetrySchedule(delays_seconds=(3600.0,)))
    running = asyncio.ensure_future(served.drain())
    turns = 0
    async with asyncio.timeout(LIMIT_SECONDS):
        while not healthy.done.is_set():
            await asyncio.sleep(0)
            turns += 1
    for task in [running, *served._tasks]:
        task.cancel()
    await asyncio.wait([running])
    return turns


@pytest.mark.parametrize("dead", [Hanging(), CircuitBreaker(Receiver(lambda _: Undelivered(reason="down")))])
async def test_a_dead_endpoint_leaves_the_others_their_throughput(dead: Sink) -> None:
    """Counted in turns of the event loop, so that it does not depend on the machine."""
    alone = await turns_until_delivered(None)
    beside = await turns_until_delivered(dead)
    assert alone / beside >= 0.95


async def test_a_stop_ends_the_delivery_under_way_and_releases_the_other_streams(store: Store) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(Receiver):
        async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
            began.set()
            await goes_on.wait()
            return await super().deliver(delivery)

    slow, other = Slow(), Receiver()
    await endpoint(store)
    await post(Driver(store), *(("t", f"a{number}") for number in range(5)), ("t", "a0"))
    first = processor(store.outbox, {"crm": slow}, concurrency=1)
    running = asyncio.ensure_future(first.run())
    async with asyncio.timeout(LIMIT_SECONDS):
        await began.wait()
        first.stop()
        goes_on.set()
        await running
    assert len(slow.accepted) == 1
    await processor(store.outbox, {"crm": other}).drain()
    assert len(slow.attempts) + len(other.attempts) == 6
    assert all(one.messages == 0 for one in (await store.outbox.depth()).endpoints)


async def test_a_receiver_that_is_gone_disables_its_endpoint_and_what_comes_in_is_kept(store: Store) -> None:
    answers: list[Delivered | Undelivered] = [Undelivered(reason="410 Gone", status=410, gone=True)]
    receiver = Receiver(lambda _: answers[0])
    await endpoint(store)
    drive = Driver(store)
    first = await post(drive, ("t", "ada"))
    await processor(store.outbox, {"crm": receiver}).drain()
    second = await post(drive, ("t", "ada"))
    await processor(store.outbox, {"crm": receiver}).drain()
    [known] = await store.outbox.endpoints()
    assert (known.disabled_because, len(receiver.attempts)) == ("410 Gone", 1)
    answers[0] = Delivered()
    assert await store.outbox.enable("crm", actor=OPERATOR)
    await processor(store.outbox, {"crm": receiver}).drain()
    assert [one.id for one in receiver.accepted["ada"]] == [*first, *second]


@pytest.mark.requirement("EH-06")
async def test_an_endpoint_that_fails_for_long_is_warned_of_then_disabled_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    store, answers = ModelStore(clock), [Undelivered(reason="down")]
    receiver = Receiver(lambda _: answers[-1])
    await endpoint(store)
    drive: Any = Driver(store)
    sent = [*await post(drive, ("t", "ada"))]
    days = RetrySchedule(delays_seconds=(DAY_SECONDS,) * 20)
    served = processor(store.outbox, {"crm": receiver}, retry=days)
    for day in range(8):
        await served.drain()
        sent += await post(drive, (f"day {day}", "ada"))
        clock.advance(1.1 * DAY_SECONDS)
    [known] = await store.outbox.endpoints()
    assert known.disabled_because is not None
    assert "down" in known.disabled_because
    noted = [one.action for one in await store.log_cursors.unpublished(limit=100)]
    assert noted == ["warn_endpoint"] * 4 + ["disable_endpoint"]
    assert sum("to be disabled in" in record.getMessage() for record in caplog.records) == 4
    attempts = len(receiver.attempts)
    answers.append(Delivered())  # type: ignore[arg-type]
    await served.drain()
    assert len(receiver.attempts) == attempts, "a disabled endpoint gets nothing"
    assert await store.outbox.enable("crm", actor=OPERATOR)
    clock.advance(2 * DAY_SECONDS)
    await served.drain()
    assert [one.id for one in receiver.accepted["ada"]] == sent


async def test_a_receiver_that_asks_for_a_pause_throttles_its_endpoint(store: Store) -> None:
    receiver = Receiver(lambda _: Undelivered(reason="429", throttle=True, retry_after_seconds=600.0))
    await endpoint(store)
    await post(Driver(store), ("t", "ada"), ("t", "bob"))
    await processor(store.outbox, {"crm": receiver}, concurrency=1).drain()
    assert len(receiver.attempts) == 1
    [known] = await store.outbox.endpoints()
    assert known.throttled_until_at is not None


async def test_attempts_that_failed_count_although_the_endpoint_is_paused_in_between() -> None:
    clock = ManualClock()
    store: Any = ModelStore(clock)
    answers = [Undelivered(reason="no"), Undelivered(reason="open", attempted=False, throttle=True)]
    receiver = Receiver(lambda _: answers.pop(0) if answers else Undelivered(reason="no"))
    await endpoint(store)
    drive: Any = Driver(store)
    await post(drive, ("t", "ada"))
    served = processor(store.outbox, {"crm": receiver}, retry=RetrySchedule(delays_seconds=(10.0, 10.0)))
    for _ in range(5):
        await served.drain()
        clock.advance(100.0)
    assert [one.attempt for one in receiver.attempts] == [1, 2, 2, 3]
    assert [one.outcome for one in await store.outbox.deliveries(1)] == ["failed", "failed", "dead"]


async def test_a_delivery_is_recorded_once_the_database_is_back(store: Store) -> None:
    class Unreachable:
        """An outbox that cannot be reached for a while."""

        refusals = 3

        def __getattr__(self, name: str) -> Any:
            return getattr(store.outbox, name)

        async def settle(self, settlements: Any) -> list[bool]:
            self.refusals -= 1
            if self.refusals >= 0:
                raise StoreUnavailable("restarting")
            return await store.outbox.settle(settlements)

    receiver, outbox = Receiver(), Unreachable()
    await endpoint(store)
    await post(Driver(store), ("paid", "ada"))
    await processor(outbox, {"crm": receiver}).drain()
    assert (len(receiver.attempts), outbox.refusals) == (1, -1)
    assert [one.messages for one in (await store.outbox.depth()).endpoints] == [0]


@pytest.mark.requirement("WC-07", "SM-16")
async def test_a_worker_delivers_what_its_jobs_commit_to_the_endpoints_of_the_app(database: Database) -> None:
    app, got, done = tenure.App(database.url, environment={}), [], asyncio.Event()

    @app.job()
    async def pay(ctx: tenure.Context, amount: int) -> int:
        async with ctx.commit(result=amount) as tx:
            tx.outbox("paid", {"amount": amount, "region": "eu"}, aggregate="ada", headers={"x": "1"})
            tx.outbox("paid", {"amount": amount, "region": "us"}, aggregate="ada")
        return amount

    @app.endpoint("crm", topics=["paid"], filters={"region": ["eu"]})
    async def notify(delivery: Delivery) -> None:
        got.append(delivery)
        done.set()

    async with database.opened(), app, working(app):
        handle = await pay.enqueue(3)
        await handle.result(timeout_seconds=LIMIT_SECONDS)
        async with asyncio.timeout(LIMIT_SECONDS):
            await done.wait()
    [delivery] = got
    assert (delivery.job_id, delivery.correlation_id) == (handle.id, str(handle.id))
    assert (delivery.body, delivery.headers) == ('{"amount":3,"region":"eu"}', {"x": "1"})


async def test_an_endpoint_can_be_a_sink_of_the_program(database: Database) -> None:
    app, receiver = tenure.App(database.url, environment={}), Receiver()
    assert app.endpoint("lake", topics=["*"])(receiver) is receiver
    async with database.opened(), app, app.outbox_role()(await app.store(), "p") as role:
        await app.outbox("paid", {"n": 1}, aggregate="ada")
        await eventually(lambda: role.counts["delivered"] == 1)  # type: ignore[attr-defined]
    assert [one.topic for one in receiver.accepted["ada"]] == ["paid"]


async def test_a_message_in_a_rolled_back_transaction_of_the_user_is_never_delivered(
    database: Database, store: Store
) -> None:
    await endpoint(store)
    app, receiver = tenure.App(database.url, environment={}), Receiver()
    with pytest.raises(InvalidInput, match="topic"):
        await app.outbox("paid.*", {})
    async with app:
        await app.outbox("kept", {"n": 1}, aggregate="ada")
    connection: Any
    if database.is_sqlite:
        import sqlite3

        connection = sqlite3.connect(database.path)
        await app.outbox("dropped", {}, aggregate="ada", within=connection)
        connection.rollback()
        await app.outbox("own", {}, aggregate="ada", within=connection)
        connection.commit()
        connection.close()
    else:
        import psycopg

        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            await app.outbox("dropped", {}, aggregate="ada", within=connection)
            await connection.rollback()
            await app.outbox("own", {}, aggregate="ada", within=connection)
            await connection.commit()
    await processor(store.outbox, {"crm": receiver}).drain()
    assert [one.topic for one in receiver.accepted["ada"]] == ["kept", "own"]


@pytest.mark.requirement("WC-07")
def test_the_processors_part_of_the_store_changes_no_job_and_writes_no_message() -> None:
    methods = {name for name in vars(OutboxStore) if not name.startswith("_")}
    assert methods == {"claim", "disable", "endpoints", "mark_failing", "mark_seen", "settle", "throttle", "warn"}


def test_the_retry_schedule_is_spread_and_ends() -> None:
    schedule, id_ = RetrySchedule(), SYSTEM.random.job_id()
    delays = [
        schedule.delay_seconds(message_id=id_, endpoint="crm", attempt=attempt)
        for attempt in range(1, len(DELAYS_SECONDS) + 2)
    ]
    assert delays[-1] is None
    for delay, whole in zip(delays, DELAYS_SECONDS, strict=False):
        assert delay is not None
        assert 0.9 * whole <= delay <= 1.1 * whole
    again = schedule.delay_seconds(message_id=id_, endpoint="crm", attempt=1, asked=90.0)
    assert again == 90.0


def test_filters_compare_fields_of_the_body() -> None:
    def wants(filters: str, body: str) -> bool:
        subscription = SubscriptionRecord(endpoint="crm", topic="a.*", filters=filters)
        return bool(matching_subscriptions([subscription], "a.b", body))

    assert wants('{"kind":"pay"}', '{"kind":"pay"}')
    assert wants('{"job.kind":["pay","send"]}', '{"job":{"kind":"send"}}')
    assert not wants('{"job.kind":["pay"]}', '{"job":{"kind":"send"}}')
    assert not wants('{"job.kind":"pay"}', "7")


async def test_what_an_open_circuit_refuses_counts_as_no_attempt(store: Store) -> None:
    refusals = iter(range(3))

    def answer(_: Delivery) -> Delivered | Undelivered:
        if next(refusals, None) is None:
            return Delivered()
        return Undelivered(reason="not attempted", retry_after_seconds=0.001, attempted=False)

    receiver = Receiver(answer)
    await endpoint(store)
    await post(Driver(store), ("mail.sent", "ada"))
    once = RetrySchedule(delays_seconds=(0.0,))

    async def is_delivered() -> bool:
        await processor(store.outbox, {"crm": receiver}, retry=once).drain()
        return bool(receiver.accepted["ada"])

    await eventually(is_delivered)
    assert [one.attempt for one in receiver.attempts] == [1, 1, 1, 1]
    [delivery] = receiver.accepted["ada"]
    assert delivery.sequence is not None
    assert [one.outcome for one in await store.outbox.deliveries(delivery.sequence)] == ["delivered"]
