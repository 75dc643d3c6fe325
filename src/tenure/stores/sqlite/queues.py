"""What operators say about queues, on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from tenure.lifecycle.json_text import check_name
from tenure.lifecycle.limits import QueueLimits
from tenure.lifecycle.records import Actor
from tenure.stores.contract import QueueRecord
from tenure.stores.limits import columns_of, rules_of
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.retention import note_operator
from tenure.stores.sqlite.rows import maybe_moment, micros, moment
from tenure.stores.sqlite.statements import sql


class SqliteQueues:
    """Each change is one piece of work, which also writes down who made it."""

    def __init__(self, connections: SqliteConnections, wake: Callable[[set[str]], None]) -> None:
        self._write, self._read, self._clock = connections.write, connections.read, connections.clock
        self._wake = wake

    async def known(self) -> list[QueueRecord]:
        return await self._read(queues_known)

    async def put(self, name: str, rules: QueueLimits, *, actor: Actor) -> QueueRecord:
        [record] = await self._change("put_queue", name, actor, columns_of(rules), rules=msgspec.to_builtins(rules))
        return record

    async def pause(self, name: str, *, actor: Actor) -> QueueRecord:
        [record] = await self._change("pause_queue", name, actor, {})
        return record

    async def resume(self, name: str, *, actor: Actor) -> QueueRecord | None:
        records = await self._change("resume_queue", name, actor, {})
        return records[0] if records else None

    async def forget(self, name: str, *, actor: Actor) -> bool:
        check_name(name, "queue")

        def work(connection: sqlite3.Connection) -> bool:
            gone = connection.execute(sql("forget_queue"), {"name": name}).rowcount > 0
            connection.execute(sql("forget_limits"), {"name": name})
            if gone:
                note_operator(connection, "forget_queue", actor=actor, now=self._clock(), detail={"queue": name})
            return gone

        gone = await self._write(work)
        self._wake({name})
        return gone

    async def _change(
        self, statement: str, name: str, actor: Actor, values: dict[str, Any], **detail: Any
    ) -> list[QueueRecord]:
        check_name(name, "queue")

        def work(connection: sqlite3.Connection) -> list[QueueRecord]:
            now = self._clock()
            if connection.execute(sql(statement), {"name": name, "now": micros(now), **values}).rowcount > 0:
                note_operator(connection, statement, actor=actor, now=now, detail={"queue": name, **detail})
            return queues_known(connection, name)

        records = await self._write(work)
        self._wake({name})
        return records


def queues_known(connection: sqlite3.Connection, name: str | None = None) -> list[QueueRecord]:
    """All queues that are written down, or the one of this name."""
    return [
        QueueRecord(
            name=queue,
            rules=rules_of(rules),
            paused_at=maybe_moment(paused_at),
            updated_at=moment(updated_at),
            held=held,
        )
        for queue, paused_at, *rules, updated_at, held in connection.execute(sql("queues"), {"name": name})
    ]
