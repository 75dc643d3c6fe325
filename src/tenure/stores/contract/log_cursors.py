"""How far a role has read the event log, under a lease, and what it publishes of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from tenure.stores.contract.records import OutboxMessage


class LogCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A leased cursor. `position` is that of the last event it has passed; None before the first."""

    name: str
    position: str | None = None


class EventMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message about an event of the log. No job sends it: it has the correlation id and trace of the event's job."""

    message: OutboxMessage
    correlation_id: str
    trace: str | None = None


class OperatorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the operator log: what an operator did, or what a processor did to an endpoint or a message."""

    id: int
    at: datetime
    actor: str
    action: str
    job_id: UUID | None = None
    detail: str | None = None


class LogCursorStore(Protocol):
    """The event publisher's part. It writes messages about events, and cannot change a job."""

    async def lease(self, name: str, *, owner: str, token: UUID, lease_seconds: float) -> LogCursor | None:
        """Lease the cursor, or renew the lease of this token. None: another owner has a lease that has not ended."""
        ...

    async def unpublished(self, *, limit: int) -> list[OperatorEvent]:
        """Records of the operator log that are not published, the oldest first."""
        ...

    async def publish(
        self,
        cursor: LogCursor,
        *,
        token: UUID,
        position: str | None,
        messages: Sequence[EventMessage] = (),
        operator_events: Sequence[int] = (),
    ) -> bool:
        """Write the messages, mark these records of the operator log as published, and advance the cursor from its
        position to the given one, in one transaction.

        A message whose id is in use is skipped: it was published before. False: the lease is lost or the position is
        another one, and nothing was written."""
        ...

    async def release(self, name: str, *, token: UUID) -> None:
        """End the lease of this token, so that another owner need not wait for its end."""
        ...
