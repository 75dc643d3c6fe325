"""The model's cursors of the event log."""

# ruff: noqa: SLF001 - the cursors are a part of the model

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from tenure.stores.contract.log_cursors import EventMessage, LogCursor, OperatorEvent
from tenure.stores.log_cursor_validation import validate_cursor_lease, validate_event_messages

if TYPE_CHECKING:
    from simulation.model.content import ModelContent


class CursorRow(msgspec.Struct, frozen=True):
    """A cursor with its lease."""

    position: str | None
    token: UUID | None
    lease_expires_at: datetime


class ModelLogCursors:
    """The cursors of a model."""

    def __init__(self, model: ModelContent) -> None:
        self._model = model

    async def lease(self, name: str, *, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
        validate_cursor_lease(name, owner=owner, lease_seconds=lease_seconds)
        now, row = self._model._clock.now(), self._model._cursors.get(name)
        if row is not None and row.token not in (None, token) and row.lease_expires_at > now:
            return None
        position = None if row is None else row.position
        self._model._cursors[name] = CursorRow(position, token, now + timedelta(seconds=lease_seconds))
        return LogCursor(name=name, position=position)

    async def unpublished(self, *, limit: int) -> list[OperatorEvent]:
        return [one for one in self._model._operator_events if one.id not in self._model._published][:limit]

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
        row = self._model._cursors.get(cursor.name)
        if row is None or row.token != token or row.lease_expires_at <= self._model._clock.now():
            return False
        if row.position != cursor.position:
            return False
        self._model._cursors[cursor.name] = msgspec.structs.replace(row, position=position)
        for one in messages:
            if one.message.id not in self._model._outbox:
                self._model.write_message(one.message, (one.correlation_id, one.trace))
        self._model._published.update(operator_events)
        return True

    async def release(self, name: str, *, token: UUID) -> None:
        row = self._model._cursors.get(name)
        if row is not None and row.token == token:
            self._model._cursors[name] = msgspec.structs.replace(row, token=None)
