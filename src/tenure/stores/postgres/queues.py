"""Pauses queues and sets their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec

from tenure.errors import StoreUnavailable
from tenure.lifecycle.json_text import check_name, encode
from tenure.lifecycle.queue_limits import QueueLimits
from tenure.lifecycle.records import Actor
from tenure.stores.contract import QueueRecord
from tenure.stores.limited_claim import limit_columns
from tenure.stores.postgres.claim import limits_from
from tenure.stores.postgres.connections import CONFLICTS_MAX, Connections, Session, fetch


class PostgresQueues:
    """Each change is recorded with its actor in the same statement."""

    def __init__(self, connections: Connections, wake: Callable[[set[str]], None]) -> None:
        self._connections, self._wake = connections, wake

    async def known(self) -> list[QueueRecord]:
        return [queue_from(row) for row in await self._connections.fetch("queues/select", {"name": None})]

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        return await self._certain("queues/put", name, actor, limit_columns(limits), limits=msgspec.to_builtins(limits))

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        return await self._certain("queues/pause", name, actor, {})

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        rows = await self._changed("queues/resume", name, actor, {})
        return queue_from(rows[0]) if rows else None

    async def forget(self, name: str, *, actor: Actor) -> bool:
        values = _values(name, actor)

        async def work(session: Session) -> bool:
            # The lock first: a statement that waits for it would not see the usage that the other transaction records.
            await fetch(session, "queues/lock", {"name": name})
            [row] = await fetch(session, "queues/delete", values)
            return bool(row[0])

        gone = await self._connections.write("store", work)
        self._wake({name})
        return gone

    async def _certain(
        self, statement: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> QueueRecord:
        for _ in range(CONFLICTS_MAX):
            if rows := await self._changed(statement, name, actor, values, **detail):
                return queue_from(rows[0])
        raise StoreUnavailable(f"queue {name!r} was changed by other transactions each time; try again")

    async def _changed(
        self, statement: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> list[asyncpg.Record]:
        """The queue after the change. If the change had no effect, the queue is read by another statement: one that has
        waited for another transaction does not see its change."""
        asked = {**_values(name, actor, **detail), **values}
        rows = await self._connections.write("store", lambda session: fetch(session, statement, asked))
        self._wake({name})
        return rows or await self._connections.fetch("queues/select", {"name": name})


def _values(name: str, actor: Actor, **detail: Any) -> dict[str, Any]:
    check_name(name, "queue")
    return {"name": name, "actor": str(actor), "detail": encode({"queue": name, **detail})}


def queue_from(row: asyncpg.Record) -> QueueRecord:
    """The record of a row of `queues`."""
    return QueueRecord(
        name=row["name"],
        limits=limits_from(row),
        paused_at=row["paused_at"],
        updated_at=row["updated_at"],
        leased=row["leased"],
    )
