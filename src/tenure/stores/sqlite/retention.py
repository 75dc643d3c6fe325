"""What may be forgotten, inside the write transaction: whole jobs that ended, verbose details, one job's content."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.contract import Resolution, without_secret
from tenure.stores.sqlite.apply import read_one
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import PolicyOf, micros
from tenure.stores.sqlite.statements import sql
from tenure.stores.sqlite.transactions import open_gate

MADE = ("delete_artifacts", "delete_steps")
"""What a job made: its content, so that erasure removes it too."""
BELONGINGS = ("delete_events", "delete_answers", "delete_signals", "delete_dead_letters", *MADE)

_encode = msgspec.json.encode


class SqliteRetention:
    """What an operator may remove from one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._write, self._clock = connections.write, connections.clock
        self._policies_on = connections.policies_on

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        return await self._write(partial(self._forget, _prune, older_than_seconds, limit=limit, actor=actor))

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        return await self._write(partial(self._forget, _blank, older_than_seconds, limit=limit, actor=actor))

    def _forget(
        self,
        forget: Callable[..., int],
        older_than_seconds: float,
        connection: sqlite3.Connection,
        *,
        limit: int,
        actor: Actor,
    ) -> int:
        now = self._clock()
        before = now - timedelta(seconds=older_than_seconds)
        return forget(connection, before=before, limit=limit, actor=actor, now=now)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        return await self._write(
            lambda connection: _erase(
                connection,
                job_id,
                reason=reason,
                actor=actor,
                now=self._clock(),
                policy_of=self._policies_on(connection),
            )
        )

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        return await self._write(
            lambda connection: _resolve_dead_letters(connection, job_ids, how=how, actor=actor, now=self._clock())
        )


def _prune(connection: sqlite3.Connection, *, before: datetime, limit: int, actor: Actor, now: datetime) -> int:
    """Remove jobs that ended before a moment, with all that belongs to them. How many."""
    found = connection.execute(sql("finished_before"), {"before": micros(before), "limit": limit}).fetchall()
    if not found:
        return 0
    ids = _encode([row[0] for row in found]).decode()
    with _as(connection, "retention"):
        claims = connection.execute(sql("claims_of_jobs"), {"ids": ids}).fetchall()
        for name in BELONGINGS:
            connection.execute(sql(name), {"ids": ids})
        connection.execute(sql("delete_jobs"), {"ids": ids})
        connection.executemany(sql("delete_claim"), [{"request_id": row[0]} for row in claims])
    note_operator(connection, "prune", actor=actor, now=now, detail={"jobs": len(found), "before": before})
    return len(found)


def _blank(connection: sqlite3.Connection, *, before: datetime, limit: int, actor: Actor, now: datetime) -> int:
    """Empty the detail of verbose events before a moment that `fold` no longer needs. How many."""
    found = connection.execute(sql("blankable"), {"before": micros(before), "limit": limit}).fetchall()
    if not found:
        return 0
    with _as(connection, "retention"):
        connection.execute(sql("blank_events"), {"positions": _encode([row[0] for row in found]).decode()})
    note_operator(connection, "blank", actor=actor, now=now, detail={"events": len(found), "before": before})
    return len(found)


def _erase(
    connection: sqlite3.Connection, job_id: UUID, *, reason: str, actor: Actor, now: datetime, policy_of: PolicyOf
) -> Job:
    """Empty the content of a job that ended; its history stays. Asked again, it is the same job, erased when it was."""
    job = read_one(connection, str(job_id), policy_of)
    if job.live:
        allowed = allowed_from(job.status, committed=job.committed)
        raise IllegalTransition(without_secret(job), "erase", allowed=allowed, why="only when it has ended")
    if job.erased_at is not None:
        return job
    parameters = {"job_id": str(job_id)}
    with _as(connection, "erasure"):
        connection.execute(sql("erase_job"), parameters | {"at": micros(max(now, job.updated_at))})
        for name in ("erase_events", "erase_signals", "erase_dead_letter"):
            connection.execute(sql(name), parameters)
        for name in MADE:
            connection.execute(sql(name), {"ids": _encode([str(job_id)]).decode()})
    note_operator(connection, "erase", actor=actor, now=now, detail={"reason": reason}, job_id=str(job_id))
    return read_one(connection, str(job_id), policy_of)


def _resolve_dead_letters(
    connection: sqlite3.Connection, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor, now: datetime
) -> int:
    """Mark dead letters as dealt with, once, and write down who did it. How many were open."""
    open_ = 0
    for job_id in sorted(map(str, job_ids)):
        parameters = {"job_id": job_id, "at": micros(now), "how": how}
        if connection.execute(sql("mark_dead_letter"), parameters).rowcount:
            note_operator(connection, how, actor=actor, now=now, job_id=job_id)
            open_ += 1
    return open_


@contextmanager
def _as(connection: sqlite3.Connection, writer: str) -> Iterator[None]:
    """Write as somebody else for a moment. An error undoes the savepoint around it, and the gate with it."""
    open_gate(connection, writer)
    yield
    open_gate(connection, "store")


def note_operator(
    connection: sqlite3.Connection,
    action: str,
    *,
    actor: Actor,
    now: datetime,
    detail: dict[str, object] | None = None,
    job_id: str | None = None,
) -> None:
    """Write down what an operator did."""
    said = None if detail is None else encode(detail)
    parameters = {"at": micros(now), "actor": str(actor), "action": action, "job_id": job_id, "detail": said}
    connection.execute(sql("log_operator"), parameters)
