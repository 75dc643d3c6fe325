"""What operators say about queues, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec

from tenure.errors import StoreUnavailable
from tenure.lifecycle.content import check_name, encode
from tenure.lifecycle.flow import QueueRules
from tenure.lifecycle.records import Actor
from tenure.stores.contract import QueueRecord
from tenure.stores.postgres.connections import COLLISIONS_MAX, Connections
from tenure.stores.postgres.ruled import rules_from
from tenure.stores.ruling import columns_of


class PostgresQueues:
    """Each change is one statement, which also writes down who made it."""

    def __init__(self, connections: Connections, ring: Callable[[set[str]], None]) -> None:
        self._connections, self._ring = connections, ring

    async def known(self) -> list[QueueRecord]:
        return [queue_from(row) for row in await self._connections.fetch("queues", {})]

    async def put(self, name: str, rules: QueueRules, *, actor: Actor) -> QueueRecord:
        return await self._certain("put_queue", name, actor, columns_of(rules), rules=msgspec.to_builtins(rules))

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        return await self._certain("pause_queue", name, actor, {})

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        rows = await self._change("resume_queue", name, actor, {})
        return queue_from(rows[0]) if rows else None

    async def forget(self, name: str, *, actor: Actor) -> bool:
        [row] = await self._change("forget_queue", name, actor, {})
        return bool(row[0])

    async def _certain(
        self, statement: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> QueueRecord:
        for _ in range(COLLISIONS_MAX):
            if rows := await self._change(statement, name, actor, values, **detail):
                return queue_from(rows[0])
        raise StoreUnavailable(f"queue {name!r} is made and removed by others all the time; try again")

    async def _change(
        self, statement: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> list[asyncpg.Record]:
        check_name(name, "queue")
        said = {"name": name, "actor": str(actor), "detail": encode({"queue": name, **detail})}
        rows = await self._connections.fetch(statement, {**said, **values})
        self._ring({name})
        return rows


def queue_from(row: asyncpg.Record) -> QueueRecord:
    """What a row of `queues` says."""
    return QueueRecord(
        name=row["name"],
        rules=rules_from(row),
        paused_at=row["paused_at"],
        updated_at=row["updated_at"],
        held=row["held"],
    )
