"""Pauses and limits of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenure.lifecycle.json_text import check_name
from tenure.lifecycle.queue_limits import QueueLimits
from tenure.lifecycle.records import Actor
from tenure.stores.contract import QueueRecord
from tenure.stores.limited_claim import decode_limits, limit_columns
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import micros, optional_timestamp, timestamp


class SqliteQueues:
    """The queues of one file. Each change is recorded in the operator log in its transaction."""

    def __init__(self, connections: SqliteConnections, wake: Callable[[set[str]], None]) -> None:
        self._write, self._read, self._wake = connections.write, connections.read, wake

    async def known(self) -> list[QueueRecord]:
        return await self._read(list_queues)

    async def put(self, name: str, limits: QueueLimits, *, actor: Actor) -> QueueRecord:
        [record] = await self._change("put", name, actor, limit_columns(limits), limits=msgspec.to_builtins(limits))
        return record

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        [record] = await self._change("pause", name, actor, {})
        return record

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        return next(iter(await self._change("resume", name, actor, {})), None)

    async def forget(self, name: str, *, actor: Actor) -> bool:
        check_name(name, "queue")
        deleted = await self._write(_forget, name, actor)
        self._wake({name})
        return deleted

    async def _change(
        self, action: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> list[QueueRecord]:
        check_name(name, "queue")
        records = await self._write(_change, action, name, actor, values, detail)
        self._wake({name})
        return records


def list_queues(session: Session, name: str | None = None) -> list[QueueRecord]:
    """All queues that are paused or have limits, or the one of this name."""
    return [
        QueueRecord(
            name=queue,
            limits=decode_limits(limits),
            paused_at=optional_timestamp(paused_at),
            updated_at=timestamp(updated_at),
            leased=leased,
        )
        for queue, paused_at, *limits, updated_at, leased in session.execute("queues/select", {"name": name})
    ]


def _forget(session: Session, name: str, actor: Actor) -> bool:
    deleted = session.execute("queues/delete", {"name": name}).rowcount > 0
    session.execute("rate_usage/delete_of_queue", {"name": name})
    if deleted:
        session.log_operator("forget_queue", actor, {"queue": name})
    return deleted


def _change(
    session: Session, action: str, name: str, actor: Actor, values: dict[str, Any], detail: dict[str, Any]
) -> list[QueueRecord]:
    if session.execute(f"queues/{action}", {"name": name, "now": micros(session.now), **values}).rowcount > 0:
        session.log_operator(f"{action}_queue", actor, {"queue": name, **detail})
    return list_queues(session, name)
