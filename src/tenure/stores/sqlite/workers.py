"""Who works on this file, and how the work stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

import msgspec

from tenure.lifecycle.statuses import Status
from tenure.stores.contract import Stats, Tally, WorkerRecord
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import maybe_moment, micros, moment
from tenure.stores.sqlite.statements import Row, sql

_encode = msgspec.json.encode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


class SqliteWorkers:
    """The registration of workers in one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._write, self._clock = connections.write, connections.clock

    async def register(self, worker: WorkerRecord) -> None:
        await self._write(lambda connection: _register(connection, worker, now=self._clock()))

    async def unregister(self, worker_id: str) -> None:
        await self._write(lambda connection: _unregister(connection, worker_id, now=self._clock()))


def _register(connection: sqlite3.Connection, worker: WorkerRecord, *, now: datetime) -> None:
    """Write a worker down, or that it was seen."""
    parameters = {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": _encode(worker.queues).decode(),
        "kinds": _encode(worker.kinds).decode(),
        "concurrency": worker.concurrency,
        "at": micros(now),
    }
    connection.execute(sql("register_worker"), parameters)


def _unregister(connection: sqlite3.Connection, worker_id: str, *, now: datetime) -> None:
    connection.execute(sql("unregister_worker"), {"id": worker_id, "at": micros(now)})


def list_workers(connection: sqlite3.Connection, ids: Sequence[str] | None) -> list[WorkerRecord]:
    """The workers of these ids; without ids, those that have not stopped."""
    wanted = None if ids is None else _encode(list(ids)).decode()
    return [_worker(row) for row in connection.execute(sql("workers"), {"ids": wanted})]


def read_stats(connection: sqlite3.Connection, *, now: datetime) -> Stats:
    """Everything at a glance, of one moment."""
    return Stats(
        at=now,
        tallies=[_tally(row) for row in connection.execute(sql("tallies"), {"now": micros(now)})],
        workers=list_workers(connection, None),
        dead_letters=connection.execute(sql("open_dead_letters")).fetchone()[0],
    )


def _worker(row: Row) -> WorkerRecord:
    id_, host, pid, version, queues, kinds, concurrency, started_at, seen_at, stopped_at = row
    return WorkerRecord(
        id=id_,
        host=host,
        pid=pid,
        version=version,
        queues=_names(queues),
        kinds=_names(kinds),
        concurrency=concurrency,
        started_at=moment(started_at),
        seen_at=moment(seen_at),
        stopped_at=maybe_moment(stopped_at),
    )


def _tally(row: Row) -> Tally:
    queue, kind, status, jobs, due, oldest_due_at = row
    return Tally(
        queue=queue,
        kind=kind,
        status=Status(status),
        jobs=jobs,
        due=due,
        oldest_due_at=maybe_moment(oldest_due_at),
    )
