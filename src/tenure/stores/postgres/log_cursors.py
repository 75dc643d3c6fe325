"""Cursors of the event log on PostgreSQL: leased, and advanced with the messages that are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from uuid import UUID

from tenure.stores.contract.log_cursors import EventMessage, LogCursor, OperatorEvent
from tenure.stores.contract.outbox import OUTBOX_WAKEUP
from tenure.stores.log_cursor_validation import validate_cursor_lease, validate_event_messages
from tenure.stores.postgres.connections import Connections, Session, fetch
from tenure.stores.postgres.messages import write_messages


class PostgresLogCursors:
    """The cursors of one database."""

    def __init__(self, connections: Connections, wake: Callable[[Set[str]], None]) -> None:
        self._connections, self._wake = connections, wake

    async def lease(self, name: str, *, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
        validate_cursor_lease(name, owner=owner, lease_seconds=lease_seconds)
        values = {"name": name, "owner": owner, "token": token, "lease_ms": round(lease_seconds * 1000)}
        rows = await self._connections.write("store", lambda session: fetch(session, "log_cursors/lease", values))
        return LogCursor(name=name, position=rows[0]["position"]) if rows else None

    async def unpublished(self, *, limit: int) -> list[OperatorEvent]:
        rows = await self._connections.fetch("operator_log/select_unpublished", {"limit": limit})
        return [OperatorEvent(**row) for row in rows]

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
        values = {"name": cursor.name, "token": token, "after": cursor.position, "position": position}

        async def work(session: Session) -> bool:
            if not await fetch(session, "log_cursors/advance", values):
                return False
            rows = [(one.message, None, one.correlation_id, one.trace) for one in messages]
            if rows:
                await write_messages(lambda name, given: fetch(session, name, given), rows)
            if operator_events:
                await fetch(session, "operator_log/mark_published", {"ids": list(operator_events)})
            return True

        published = await self._connections.write("store", work)
        if published and messages:
            self._wake({OUTBOX_WAKEUP})
        return published

    async def release(self, name: str, *, token: UUID) -> None:
        values = {"name": name, "token": token}
        await self._connections.write("store", lambda session: fetch(session, "log_cursors/release", values))
