"""Cursors of the event log on SQLite: leased, and advanced with the messages that are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from uuid import UUID

from tenure.stores.contract.log_cursors import EventMessage, LogCursor, OperatorEvent
from tenure.stores.contract.outbox import OUTBOX_WAKEUP
from tenure.stores.log_cursor_validation import validate_cursor_lease, validate_event_messages
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.messages import write_message
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import decode_records, json_list, micros, text


class SqliteLogCursors:
    """The cursors of one file."""

    def __init__(self, connections: SqliteConnections, wake: Callable[[Set[str]], None]) -> None:
        self._write, self._read, self._wake = connections.write, connections.read, wake

    async def lease(self, name: str, *, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
        validate_cursor_lease(name, owner=owner, lease_seconds=lease_seconds)
        return await self._write(_lease, name, owner, token, lease_seconds)

    async def unpublished(self, *, limit: int) -> list[OperatorEvent]:
        return await self._read(_unpublished, limit)

    async def publish(
        self,
        cursor: LogCursor,
        *,
        token: UUID,
        position: str | None,
        messages: Sequence[EventMessage] = (),
        operator_events: Sequence[int] = (),
    ) -> bool:
        validate_event_messages(messages)
        published = await self._write(_publish, cursor, token, position, messages, operator_events)
        if published and messages:
            self._wake({OUTBOX_WAKEUP})
        return published

    async def release(self, name: str, *, token: UUID) -> None:
        await self._write(_release, name, token)


def _lease(session: Session, name: str, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
    until_at = micros(session.now + timedelta(seconds=lease_seconds))
    values = {"name": name, "owner": owner, "token": text(token), "until_at": until_at, "now": micros(session.now)}
    row = session.execute("log_cursors/lease", values).fetchone()
    return None if row is None else LogCursor(name=name, position=row[0])


def _unpublished(session: Session, limit: int) -> list[OperatorEvent]:
    return decode_records(OperatorEvent, session.execute("operator_log/select_unpublished", {"limit": limit}))


def _publish(
    session: Session,
    cursor: LogCursor,
    token: UUID,
    position: str | None,
    messages: Sequence[EventMessage],
    operator_events: Sequence[int],
) -> bool:
    moved = {"name": cursor.name, "token": text(token), "after": cursor.position, "position": position}
    if session.execute("log_cursors/advance", {**moved, "now": micros(session.now)}).rowcount == 0:
        return False
    for one in messages:
        write_message(session, one.message, job_id=None, correlation_id=one.correlation_id, trace=one.trace)
    if operator_events:
        session.execute("operator_log/mark_published", {"ids": json_list(operator_events), "now": micros(session.now)})
    return True


def _release(session: Session, name: str, token: UUID) -> None:
    values = {"name": name, "token": text(token), "now": micros(session.now)}
    session.execute("log_cursors/release", values)
