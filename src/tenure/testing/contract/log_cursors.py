"""Cursors of the event log: one owner at a time, and messages that are written with the position or not at all."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import load
from tenure.stores.contract import OutboxMessage
from tenure.stores.contract.log_cursors import EventMessage, LogCursor
from tenure.stores.contract.outbox import MessageFilter, StoredMessage
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.outbox import endpoint
from tenure.testing.driver import OPERATOR, Driver

FIRST, SECOND = UUID(int=1), UUID(int=2)


def event_message(number: int, topic: str = "tenure.job.succeeded") -> EventMessage:
    message = OutboxMessage(id=UUID(int=number), topic=topic, body='{"kind":"mail"}', aggregate="job/1")
    return EventMessage(message=message, correlation_id="order-7", trace="00-trace")


async def leased(drive: Driver, token: UUID = FIRST) -> LogCursor | None:
    return await drive.store.log_cursors.lease("events", owner="worker-1", token=token, lease_seconds=30)


async def written(drive: Driver) -> list[StoredMessage]:
    return await drive.store.outbox.messages(MessageFilter())


class LogCursorContract:
    """`log_cursors`."""

    async def test_a_new_cursor_is_before_the_first_event(self, drive: Driver) -> None:
        assert await leased(drive) == LogCursor(name="events", position=None)

    @pytest.mark.requirement("WC-07")
    async def test_messages_and_position_are_written_together(self, drive: Driver) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        cursors = drive.store.log_cursors
        assert await cursors.publish(cursor, token=FIRST, position="p1", messages=[event_message(1), event_message(2)])
        assert await leased(drive) == LogCursor(name="events", position="p1")
        stored = await written(drive)
        assert [(one.id, one.topic, one.aggregate) for one in stored] == [
            (UUID(int=number), "tenure.job.succeeded", "job/1") for number in (1, 2)
        ]

    @pytest.mark.requirement("SM-16")
    async def test_a_message_has_the_correlation_id_and_trace_of_its_event(self, drive: Driver) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        await drive.store.log_cursors.publish(cursor, token=FIRST, position="p1", messages=[event_message(1)])
        [stored] = await written(drive)
        assert (stored.correlation_id, stored.trace, stored.job_id) == ("order-7", "00-trace", None)

    @pytest.mark.requirement("WC-07")
    async def test_a_message_that_was_published_before_is_skipped(self, drive: Driver) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        cursors = drive.store.log_cursors
        assert await cursors.publish(cursor, token=FIRST, position="p1", messages=[event_message(1)])
        moved = msgspec.structs.replace(cursor, position="p1")
        assert await cursors.publish(moved, token=FIRST, position="p2", messages=[event_message(1), event_message(2)])
        assert [one.id.int for one in await written(drive)] == [1, 2]

    async def test_another_owner_has_to_wait_for_the_end_of_the_lease(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        assert await leased(drive) is not None
        clock.advance(29)
        assert await leased(drive, SECOND) is None
        clock.advance(2)
        assert await leased(drive, SECOND) is not None
        assert await leased(drive, FIRST) is None

    async def test_the_owner_renews_its_lease(self, drive: Driver, clock: DatabaseClock) -> None:
        for _ in range(3):
            assert await leased(drive) is not None
            clock.advance(20)
        assert await leased(drive, SECOND) is None

    async def test_a_released_cursor_is_leased_at_once(self, drive: Driver) -> None:
        assert await leased(drive) is not None
        await drive.store.log_cursors.release("events", token=SECOND)
        assert await leased(drive, SECOND) is None
        await drive.store.log_cursors.release("events", token=FIRST)
        assert await leased(drive, SECOND) is not None

    @pytest.mark.requirement("WC-07")
    async def test_an_owner_whose_lease_has_ended_writes_nothing(self, drive: Driver, clock: DatabaseClock) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        clock.advance(31)
        cursors = drive.store.log_cursors
        assert not await cursors.publish(cursor, token=FIRST, position="p1", messages=[event_message(1)])
        assert await leased(drive, SECOND) == cursor
        assert not await cursors.publish(cursor, token=FIRST, position="p1", messages=[event_message(1)])
        assert await written(drive) == []

    async def test_a_cursor_that_was_moved_is_not_moved_from_its_old_position(self, drive: Driver) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        cursors = drive.store.log_cursors
        assert await cursors.publish(cursor, token=FIRST, position="p1")
        assert not await cursors.publish(cursor, token=FIRST, position="p2", messages=[event_message(1)])
        assert await written(drive) == []

    @pytest.mark.requirement("EH-06")
    async def test_a_record_of_the_operator_log_is_published_once_and_with_its_message(self, drive: Driver) -> None:
        store = drive.store
        await endpoint(store)
        assert await store.outbox.disable("crm", because="down", actor=OPERATOR)
        cursor, cursors = await leased(drive), store.log_cursors
        assert cursor is not None
        noted = await cursors.unpublished(limit=100)
        assert (noted[-1].action, noted[-1].actor, load(noted[-1].detail or "")) == (
            "disable_endpoint",
            str(OPERATOR),
            {"endpoint": "crm", "because": "down"},
        )
        ids = [one.id for one in noted]
        publish = cursors.publish(cursor, token=SECOND, position=None, messages=[event_message(1)], operator_events=ids)
        assert not await publish, "another owner's lease"
        assert await cursors.unpublished(limit=100) == noted
        assert await cursors.publish(
            cursor, token=FIRST, position=None, messages=[event_message(1)], operator_events=ids
        )
        assert await cursors.unpublished(limit=100) == []
        assert len(await written(drive)) == 1

    async def test_an_unknown_cursor_is_not_moved(self, drive: Driver) -> None:
        unknown = LogCursor(name="unknown")
        assert not await drive.store.log_cursors.publish(unknown, token=FIRST, position="p1")

    @pytest.mark.parametrize("facts", [{"name": ""}, {"owner": ""}, {"lease_seconds": 0}, {"lease_seconds": 1e9}])
    async def test_an_invalid_lease_is_refused(self, drive: Driver, facts: dict[str, object]) -> None:
        values: dict[str, object] = {"name": "events", "owner": "worker-1", "lease_seconds": 30, **facts}
        with pytest.raises(InvalidInput):
            await drive.store.log_cursors.lease(values.pop("name"), token=FIRST, **values)  # type: ignore[arg-type]

    async def test_an_invalid_message_is_refused_and_nothing_is_written(self, drive: Driver) -> None:
        cursor = await leased(drive)
        assert cursor is not None
        wrong = [event_message(1), event_message(2, topic="")]
        with pytest.raises(InvalidInput):
            await drive.store.log_cursors.publish(cursor, token=FIRST, position="p1", messages=wrong)
        assert await leased(drive) == cursor
        assert await written(drive) == []
