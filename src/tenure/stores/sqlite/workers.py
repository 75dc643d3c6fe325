"""The registration of workers, and the statistics of the file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tenure.lifecycle.statuses import Status
from tenure.stores.contract import PinnedJobs, Stats, Tally, UnreadableRow, WorkerRecord
from tenure.stores.quarantine import decode_each
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import decode_record, encode_record, json_list, micros, named_rows, optional_timestamp


class SqliteWorkers:
    """The registration of workers in one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._write = connections.write

    async def register(self, worker: WorkerRecord) -> None:
        await self._write(_register, worker)

    async def unregister(self, worker_id: str) -> None:
        await self._write(_unregister, worker_id)


def _register(session: Session, worker: WorkerRecord) -> None:
    session.execute("workers/upsert", encode_record(worker) | {"at": micros(session.now)})


def _unregister(session: Session, worker_id: str) -> None:
    session.execute("workers/stop", {"id": worker_id, "at": micros(session.now)})


def list_workers(
    session: Session, ids: Sequence[str] | None, unreadable: list[UnreadableRow] | None = None
) -> list[WorkerRecord]:
    """The workers of these ids; without ids, those that have not stopped."""
    rows = session.execute("workers/select", {"ids": None if ids is None else json_list(ids)})
    return decode_each(
        named_rows(rows),
        lambda row: decode_record(WorkerRecord, row),
        lambda row: f"worker {row['id']!r}",
        unreadable,
    )


STATUSES = {status.value: status for status in Status}


def _readable_timestamp(value: Any) -> datetime | None:
    """None for a time that cannot be represented: its job is named by `verify`."""
    try:
        return optional_timestamp(value)
    except (OverflowError, TypeError):
        return None


def pinned_jobs(session: Session) -> list[PinnedJobs]:
    """How many jobs are pinned to each version of the code."""
    return [PinnedJobs(*row) for row in session.execute("jobs/count_pinned")]


def read_stats(session: Session) -> Stats:
    """Counts of jobs, workers and open dead letters, in one snapshot."""
    rows = session.execute("jobs/count_by_status", {"now": micros(session.now)})
    return Stats(
        at=session.now,
        tallies=[
            Tally(
                queue=str(queue),
                kind=str(kind),
                status=STATUSES.get(status, status),
                jobs=jobs,
                due=due,
                oldest_due_at=_readable_timestamp(oldest_due_at),
            )
            for queue, kind, status, jobs, due, oldest_due_at in rows
        ],
        workers=list_workers(session, None),
        dead_letters=session.execute("dead_letters/count_open").fetchone()[0],
        pinned=pinned_jobs(session),
    )
