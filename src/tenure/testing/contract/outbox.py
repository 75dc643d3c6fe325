"""The outbox: endpoints, what is pending for each, leases of processors, and the record of deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import load
from tenure.seams import SYSTEM
from tenure.stores.contract import OutboxMessage, Store
from tenure.stores.contract.log_cursors import OperatorEvent
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    DeliveryAttempt,
    LeasedStream,
    MessageFilter,
    Settlement,
    SubscriptionRecord,
)
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import OPERATOR, Driver

LEASE_SECONDS = 30.0


async def endpoint(store: Store, name: str = "crm", *topics: str, **facts: Any) -> None:
    """An endpoint that subscribes to these topics, or to all."""
    subscriptions = [SubscriptionRecord(endpoint=name, topic=topic, **facts) for topic in topics or ("*",)]
    await store.outbox.put_endpoint(name, kind="callable", subscriptions=subscriptions, actor=OPERATOR)


async def post(drive: Driver, *messages: tuple[str, str | None]) -> list[UUID]:
    """Write messages (topic, aggregate) in one transaction."""
    made = [
        OutboxMessage(id=drive.random.job_id(), topic=topic, body="{}", aggregate=aggregate)
        for topic, aggregate in messages
    ]
    async with drive.store.transaction(deadline_seconds=10) as tx:
        await tx.post(made)
    return [one.id for one in made]


async def claim(store: Store, *endpoints: str, limit: int = 10, messages_max: int = 100) -> list[LeasedStream]:
    request = ClaimDeliveries(
        owner="processor",
        token=SYSTEM.random.token(),
        lease_seconds=LEASE_SECONDS,
        limits=dict.fromkeys(endpoints or ("crm",), limit),
        messages_max=messages_max,
    )
    return await store.outbox.claim(request)


def ids(streams: Sequence[LeasedStream]) -> dict[str, list[UUID]]:
    return {stream.aggregate: [message.id for message in stream.messages] for stream in streams}


def settlement(stream: LeasedStream, outcome: str = "delivered", **facts: Any) -> Settlement:
    """All leased messages with this outcome; after a failure the position stays."""
    attempts = tuple(
        DeliveryAttempt(
            sequence=message.sequence,
            aggregate=message.aggregate,
            attempt=stream.attempts + 1,
            outcome=outcome,  # type: ignore[arg-type]
            duration_ms=3,
            error=None if outcome == "delivered" else "refused",
        )
        for message in stream.messages
    )
    position = stream.position if outcome == "failed" else stream.messages[-1].sequence
    key = {"endpoint": stream.endpoint, "aggregate": stream.aggregate, "only_sequence": stream.only_sequence}
    return Settlement(
        **{**key, "token": stream.token, "owner": "processor", "position": position, "deliveries": attempts, **facts}
    )


async def noted(drive: Driver, *actions: str) -> list[OperatorEvent]:
    """The records of the operator log about these actions."""
    return [one for one in await drive.store.log_cursors.unpublished(limit=100) if one.action in actions]


class OutboxContract:
    """`store.outbox`."""

    @pytest.mark.requirement("WC-07", "EH-06")
    async def test_messages_of_an_aggregate_are_leased_in_order_to_each_endpoint_that_subscribes(
        self, drive: Driver
    ) -> None:
        await endpoint(drive.store, "crm", "mail.*")
        await endpoint(drive.store, "audit")
        first, other, second = await post(drive, ("mail.sent", "ada"), ("paid", "ada"), ("mail.read", "ada"))
        [third] = await post(drive, ("mail.sent", "ada"))
        [crm, audit] = sorted(await claim(drive.store, "crm", "audit"), key=lambda stream: stream.endpoint)[::-1]
        assert ids([audit]) == {"ada": [first, other, second, third]}
        assert ids([crm]) == {"ada": [first, other, second, third]}
        sequences = [message.sequence for message in audit.messages]
        assert sequences == sorted(set(sequences))

    async def test_a_leased_stream_is_claimed_by_no_other_until_its_lease_has_ended(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await endpoint(drive.store)
        sent = await post(drive, ("paid", "ada"))
        [stale] = await claim(drive.store)
        assert await claim(drive.store) == []
        clock.advance(LEASE_SECONDS + 1)
        [stream] = await claim(drive.store)
        assert ids([stream]) == {"ada": sent}
        assert await drive.store.outbox.settle([settlement(stale)]) == [False]
        assert await drive.store.outbox.settle([settlement(stream)]) == [True]
        assert await claim(drive.store) == []
        assert len(await drive.store.outbox.deliveries(stream.messages[0].sequence)) == 1

    @pytest.mark.requirement("WC-07")
    async def test_a_processor_whose_lease_has_ended_settles_nothing(self, drive: Driver, clock: DatabaseClock) -> None:
        await endpoint(drive.store)
        await post(drive, ("paid", "ada"))
        [stream] = await claim(drive.store)
        clock.advance(LEASE_SECONDS + 1)
        assert await drive.store.outbox.settle([settlement(stream)]) == [False]
        assert await drive.store.outbox.deliveries(stream.messages[0].sequence) == []

    @pytest.mark.requirement("WC-07")
    async def test_a_stream_that_another_processor_has_leased_is_not_settled(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await endpoint(drive.store)
        await post(drive, ("mail.sent", "ada"), ("mail.sent", "ada"))
        [late] = await claim(drive.store)
        clock.advance(LEASE_SECONDS + 1)
        [current] = await claim(drive.store)
        for position in (late.messages[0].sequence, late.messages[1].sequence):
            assert await drive.store.outbox.settle([settlement(late, position=position)]) == [False]
        assert await drive.store.outbox.deliveries(late.messages[0].sequence) == []
        assert await drive.store.outbox.settle([settlement(current)]) == [True]

    async def test_a_message_that_is_written_while_others_are_delivered_stays_pending(self, drive: Driver) -> None:
        await endpoint(drive.store)
        await post(drive, ("paid", "ada"))
        [stream] = await claim(drive.store)
        later = await post(drive, ("paid", "ada"))
        assert await drive.store.outbox.settle([settlement(stream)]) == [True]
        [next_stream] = await claim(drive.store)
        assert ids([next_stream]) == {"ada": later}
        assert next_stream.previous == stream.messages[0].sequence

    async def test_a_settlement_that_keeps_the_lease_moves_the_position(self, drive: Driver) -> None:
        await endpoint(drive.store)
        await post(drive, ("paid", "ada"), ("paid", "ada"))
        [stream] = await claim(drive.store, messages_max=1)
        assert await drive.store.outbox.settle([settlement(stream, lease_seconds=LEASE_SECONDS)]) == [True]
        assert await claim(drive.store) == []
        assert await drive.store.outbox.settle([settlement(stream)]) == [True]
        [rest] = await claim(drive.store)
        assert [message.sequence for message in rest.messages] == [stream.last_sequence]

    @pytest.mark.requirement("EH-06")
    async def test_a_failed_message_blocks_its_aggregate_and_no_other(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await endpoint(drive.store)
        first, second = await post(drive, ("paid", "ada"), ("paid", "ada"))
        [stream] = await claim(drive.store, messages_max=1)
        assert await drive.store.outbox.settle([settlement(stream, "failed", attempts=1, due_seconds=60.0)]) == [True]
        await post(drive, ("paid", "bob"))
        assert list(ids(await claim(drive.store))) == ["bob"]
        clock.advance(61)
        [again] = [one for one in await claim(drive.store) if one.aggregate == "ada"]
        assert (ids([again]), again.attempts) == ({"ada": [first, second]}, 1)
        assert again.blocked_seconds >= 60

    async def test_messages_without_an_aggregate_have_no_order_and_no_stream(self, drive: Driver) -> None:
        await endpoint(drive.store)
        first, second = await post(drive, ("paid", None), ("paid", None))
        streams = await claim(drive.store)
        assert sorted(message.id for stream in streams for message in stream.messages) == sorted([first, second])
        by_id = {stream.messages[0].id: stream for stream in streams}
        assert await drive.store.outbox.settle([settlement(by_id[second])]) == [True]
        assert await drive.store.outbox.settle([settlement(by_id[first], "failed", attempts=1)]) == [True]
        [left] = await claim(drive.store)
        assert (left.messages[0].id, left.previous) == (first, None)

    @pytest.mark.requirement("EH-06")
    async def test_what_comes_in_while_an_endpoint_is_disabled_is_delivered_in_order_when_it_is_enabled(
        self, drive: Driver
    ) -> None:
        await endpoint(drive.store)
        outbox = drive.store.outbox
        assert await outbox.disable("crm", because="410 Gone", actor=OPERATOR)
        assert not await outbox.disable("crm", because="again", actor=OPERATOR)
        sent = [id_ for _ in range(3) for id_ in await post(drive, ("paid", "ada"))]
        assert await claim(drive.store) == []
        [known] = await outbox.endpoints()
        assert known.disabled_because == "410 Gone"
        assert [one.messages for one in (await outbox.depth()).endpoints] == [3]
        assert [one.id for one in await outbox.messages(MessageFilter(endpoint="crm", state="pending"))] == sent
        assert await outbox.enable("crm", actor=OPERATOR)
        assert not await outbox.enable("crm", actor=OPERATOR)
        assert ids(await claim(drive.store)) == {"ada": sent}

    async def test_a_throttled_endpoint_rests_and_the_others_do_not(self, drive: Driver, clock: DatabaseClock) -> None:
        await endpoint(drive.store, "crm")
        await endpoint(drive.store, "audit")
        await post(drive, ("paid", "ada"))
        await drive.store.outbox.throttle("crm", seconds=30)
        await drive.store.outbox.throttle("crm", seconds=10)
        clock.advance(11)
        assert [stream.endpoint for stream in await claim(drive.store, "crm", "audit")] == ["audit"]
        clock.advance(20)
        assert [stream.endpoint for stream in await claim(drive.store, "crm")] == ["crm"]

    async def test_a_dead_message_is_passed_over_and_can_be_redriven_on_its_own(self, drive: Driver) -> None:
        await endpoint(drive.store)
        outbox = drive.store.outbox
        first, second = await post(drive, ("paid", "ada"), ("paid", "ada"))
        [stream] = await claim(drive.store, messages_max=1)
        assert await outbox.settle([settlement(stream, "dead")]) == [True]
        [rest] = await claim(drive.store)
        assert (ids([rest]), rest.previous) == ({"ada": [second]}, stream.messages[0].sequence)
        assert await outbox.settle([settlement(rest)]) == [True]
        assert [one.id for one in await outbox.messages(MessageFilter(state="dead"))] == [first]
        assert [one.dead for one in (await outbox.depth()).endpoints] == [1]
        assert await outbox.resolve("crm", how="redriven", actor=OPERATOR) == 1
        assert await outbox.resolve("crm", how="discarded", actor=OPERATOR) == 0
        [alone] = await claim(drive.store)
        assert (alone.aggregate, [one.id for one in alone.messages]) == ("", [first])
        assert await outbox.settle([settlement(alone)]) == [True]
        assert await claim(drive.store) == []
        made = await outbox.deliveries(stream.messages[0].sequence)
        assert [(one.outcome, one.handled_as) for one in made] == [("dead", "redriven"), ("delivered", None)]

    async def test_a_discarded_dead_letter_is_not_sent_again(self, drive: Driver) -> None:
        await endpoint(drive.store)
        await post(drive, ("paid", None))
        [stream] = await claim(drive.store)
        await drive.store.outbox.settle([settlement(stream, "dead")])
        sequences = [stream.messages[0].sequence]
        assert await drive.store.outbox.resolve("crm", how="discarded", sequences=[0], actor=OPERATOR) == 0
        assert await drive.store.outbox.resolve("crm", how="discarded", sequences=sequences, actor=OPERATOR) == 1
        assert await claim(drive.store) == []

    @pytest.mark.requirement("EH-06")
    async def test_a_replay_delivers_again_in_order_and_revokes_leases(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await endpoint(drive.store)
        await post(drive, ("paid", "ada"))
        clock.advance(10)
        since = await drive.store.now()
        sent = [id_ for _ in range(2) for id_ in await post(drive, ("paid", "ada"))]
        [single] = await post(drive, ("paid", None))
        streams = await claim(drive.store)
        assert await drive.store.outbox.settle([settlement(stream) for stream in streams]) == [True, True]
        await post(drive, ("paid", "ada"))
        [leased] = await claim(drive.store)
        assert await drive.store.outbox.replay("crm", since=since, actor=OPERATOR) == 4
        assert await drive.store.outbox.settle([settlement(leased)]) == [False]
        again = ids(await claim(drive.store))
        assert again == {"": [single], "ada": [*sent, leased.messages[0].id]}

    async def test_a_message_that_no_endpoint_subscribes_to_is_counted_until_it_is_replayed(
        self, drive: Driver
    ) -> None:
        since = await drive.store.now()
        await endpoint(drive.store, "crm", "mail.sent")
        lost = await post(drive, ("paid", "ada"))
        outbox = drive.store.outbox
        assert (await outbox.depth()).unserved == 1
        assert [one.id for one in await outbox.messages(MessageFilter(state="unserved"))] == lost
        await endpoint(drive.store, "crm", "mail.sent", "paid")
        assert await claim(drive.store) == []
        assert await outbox.replay("crm", since=since, actor=OPERATOR) == 1
        assert (await outbox.depth()).unserved == 0
        assert ids(await claim(drive.store)) == {"ada": lost}

    async def test_a_deleted_endpoint_has_nothing_pending(self, drive: Driver) -> None:
        await endpoint(drive.store)
        [sent] = await post(drive, ("paid", "ada"))
        message = await drive.store.outbox.message(sent)
        assert message is not None
        assert [one.endpoint for one in await drive.store.outbox.pending(message.sequence)] == ["crm"]
        assert await drive.store.outbox.delete_endpoint("crm", actor=OPERATOR)
        assert not await drive.store.outbox.delete_endpoint("crm", actor=OPERATOR)
        assert await drive.store.outbox.pending(message.sequence) == []
        assert await drive.store.outbox.endpoints() == []
        assert await claim(drive.store) == []

    @pytest.mark.requirement("EH-06")
    async def test_a_failing_endpoint_is_warned_of_once_in_a_while_and_then_disabled(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        store = drive.store.outbox
        await endpoint(drive.store)
        await store.mark_failing("crm", failing=True)
        [known] = await store.endpoints()
        since = known.failing_since_at
        assert since is not None

        async def warned() -> bool:
            return await store.warn("crm", failing_since=since, every_seconds=60.0, because="down", actor=OPERATOR)

        assert not await warned()
        clock.advance(61)
        assert [await warned(), await warned()] == [True, False]
        [known] = await store.endpoints()
        assert known.failing_seconds is not None
        assert known.failing_seconds >= 60.0
        clock.advance(61)
        assert await warned()
        # It recovered and failed again: what was decided upon the first failure no longer holds.
        await store.mark_failing("crm", failing=False)
        await store.mark_failing("crm", failing=True)
        assert not await warned()
        assert not await store.disable("crm", because="down", actor=OPERATOR, failing_since=since)
        [known] = await store.endpoints()
        assert await store.disable("crm", because="down", actor=OPERATOR, failing_since=known.failing_since_at)
        actions = [one.action for one in await drive.store.log_cursors.unpublished(limit=100)]
        assert [one for one in actions if one != "put_endpoint"] == [
            "warn_endpoint",
            "warn_endpoint",
            "disable_endpoint",
        ]

    @pytest.mark.requirement("EH-06")
    async def test_a_dead_letter_is_in_the_operator_log(self, drive: Driver) -> None:
        await endpoint(drive.store)
        [id_] = await post(drive, ("mail.sent", "ada"))
        [stream] = await claim(drive.store)
        assert await drive.store.outbox.settle([settlement(stream, "dead")]) == [True]
        noted = [
            one for one in await drive.store.log_cursors.unpublished(limit=100) if one.action == "dead_letter_message"
        ]
        assert [(one.actor, load(one.detail or "")) for one in noted] == [
            (
                "outbox:processor",
                {
                    "endpoint": "crm",
                    "sequence": stream.messages[0].sequence,
                    "message": str(id_),
                    "topic": "mail.sent",
                    "attempt": 1,
                    "error": "refused",
                },
            )
        ]

    async def test_an_endpoint_records_since_when_it_fails(self, drive: Driver, clock: DatabaseClock) -> None:
        await endpoint(drive.store)
        since = await drive.store.now()
        await drive.store.outbox.mark_failing("crm", failing=True)
        clock.advance(10)
        await drive.store.outbox.mark_failing("crm", failing=True)
        await drive.store.outbox.mark_seen(["crm"])
        [known] = await drive.store.outbox.endpoints()
        assert known.failing_since_at is not None
        assert (known.failing_since_at - since).total_seconds() < 5
        assert known.seen_at is not None
        await drive.store.outbox.mark_failing("crm", failing=False)
        [known] = await drive.store.outbox.endpoints()
        assert known.failing_since_at is None

    @pytest.mark.parametrize("topic", ["", "a*b", "*.a"])
    async def test_an_invalid_subscription_is_refused(self, drive: Driver, topic: str) -> None:
        with pytest.raises(InvalidInput, match="topic"):
            await endpoint(drive.store, "crm", topic)
        assert await drive.store.outbox.endpoints() == []
