"""Reads of jobs, events, dead letters and signals. No token leaves the store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, RowPoisoned
from tenure.lifecycle import fold
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import Event, Execution, Job
from tenure.stores.contract import (
    Artifact,
    ArtifactRecord,
    DeadLetterFilter,
    DeadLetterPage,
    EventFilter,
    EventPage,
    JobFilter,
    JobPage,
    SignalRecord,
    Stats,
    WorkerRecord,
    without_token,
)
from tenure.stores.sqlite.apply import read_row
from tenure.stores.sqlite.artifacts import list_artifacts, read_artifact
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import Row, decode_event, decode_records, json_list, micros, optional_micros
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.workers import list_workers, read_stats

MICROS_LEAST, MICROS_MOST = -(2**63), 2**63 - 1
POSITION_MOST = 2**63 - 1

_POSITION = re.compile(r"[0-9]{1,19}")
_encode = msgspec.json.encode


class SqliteReads:
    """Reads in one file, each in a snapshot of its own."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._connections, self._read = connections, connections.read

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._read(read, job_ids)

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        return await self._read(find, wanted, after=after, limit=limit)

    async def recoverable(self, *, limit: int, after: UUID | None) -> list[Job | RowPoisoned]:
        return await self._read(_recoverable, after=after, limit=limit)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._read(history, job_ids)

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return await self._read(_events, wanted, after=after, limit=limit)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return await self._read(tail, after=after, limit=limit)

    async def end(self) -> str:
        return await self._read(_end)

    async def executions(self, job_id: UUID) -> list[Execution]:
        return fold.executions((await self.history([job_id]))[job_id])

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None:
        return await self._read(_dead_letter, job_id)

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage:
        return await self._read(_dead_letters, wanted, after=after, limit=limit)

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return await self._read(list_artifacts, job_id)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._read(read_artifact, job_id, name)

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._read(_signals, job_id)

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        return await self._read(list_workers, ids)

    async def stats(self) -> Stats:
        return await self._read(read_stats)

    async def now(self) -> datetime:
        self._connections.require_open()
        return self._connections.clock()


def read(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """The jobs that exist."""
    return {job.id: job for job in _decoded(session, session.select_jobs(map(str, job_ids)))}


def find(session: Session, wanted: JobFilter, *, after: UUID | None, limit: int) -> JobPage:
    """A page of jobs, oldest first."""
    parameters = {
        "after": _after_id(after),
        "limit": limit + 1,
        "statuses": _optional_list([status.value for status in wanted.statuses]),
        "queues": _optional_list(wanted.queues),
        "kinds": _optional_list(wanted.kinds),
        "reasons": _optional_list(wanted.reasons),
        "dedupe_key": wanted.dedupe_key,
        "submitted_by": wanted.submitted_by,
        "created_from": optional_micros(wanted.created_from),
        "created_until": optional_micros(wanted.created_until),
        "tags": _encode(wanted.tags).decode(),
    }
    if wanted.correlation_id is None:
        rows = session.execute("jobs/select_page", parameters).fetchall()
    else:
        parameters["correlation_id"] = wanted.correlation_id
        rows = session.execute("jobs/select_page_by_correlation", parameters).fetchall()
    jobs = list(_decoded(session, rows[:limit]))
    return JobPage(jobs, jobs[-1].id if len(rows) > limit else None)


def _recoverable(session: Session, *, after: UUID | None, limit: int) -> list[Job | RowPoisoned]:
    """Up to `limit` jobs that need recovery, and the rows between them that cannot be decoded."""
    found: list[Job | RowPoisoned] = []
    jobs = 0
    parameters = {"after": _after_id(after), "now": micros(session.now)}
    with closing(session.execute("jobs/select_recoverable", parameters)) as rows:
        for row in rows:
            job = read_row(session, row)
            found.append(without_token(job) if isinstance(job, Job) else job)
            jobs += isinstance(job, Job)
            if jobs == limit:
                break
    return found


def history(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
    """Each job's events in the order of revisions; an empty list for an id without events."""
    found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
    for row in session.execute("events/select_history", {"ids": json_list(map(str, found))}):
        event = decode_event(row)
        found[event.job_id].append(event)
    return found


def _events(session: Session, wanted: EventFilter, *, after: str | None, limit: int) -> EventPage:
    """A page of the log's events that match, by the index that fits the filter."""
    parameters: dict[str, object] = {
        "after": _position(after),
        "limit": limit,
        "types": _optional_list([type_.value for type_ in wanted.types]),
        "correlation_id": wanted.correlation_id,
        "since": optional_micros(wanted.since),
        "until": optional_micros(wanted.until),
    }
    if wanted.job_id is not None:
        rows = session.execute("events/select_by_job", parameters | {"job_id": str(wanted.job_id)})
    elif wanted.correlation_id is not None:
        rows = session.execute("events/select_by_correlation", parameters)
    elif wanted.types:
        since = MICROS_LEAST if wanted.since is None else micros(wanted.since)
        until = MICROS_MOST if wanted.until is None else micros(wanted.until)
        rows = session.execute("events/select_by_type", parameters | {"since": since, "until": until})
    else:
        rows = session.execute("events/select_tail", parameters)
    return _page(rows, after)


def tail(session: Session, *, after: str | None, limit: int) -> EventPage:
    """The log after a position."""
    parameters = {"after": _position(after), "limit": limit, "since": None, "until": None}
    return _page(session.execute("events/select_tail", parameters), after)


def _end(session: Session) -> str:
    """The position of the last event."""
    return str(session.execute("events/select_last_position").fetchone()[0])


def _dead_letter(session: Session, job_id: UUID) -> DeadLetterRecord | None:
    rows = session.execute("dead_letters/select", {"job_id": str(job_id)})
    return next(iter(decode_records(DeadLetterRecord, rows)), None)


def _dead_letters(session: Session, wanted: DeadLetterFilter, *, after: UUID | None, limit: int) -> DeadLetterPage:
    """A page of dead letters, in the order of their jobs' ids."""
    parameters = {
        "after": _after_id(after),
        "limit": limit + 1,
        "handled": int(wanted.handled),
        "reason_codes": _optional_list([code.value for code in wanted.reason_codes]),
        "stages": _optional_list([stage.value for stage in wanted.stages]),
        "kinds": _optional_list(wanted.kinds),
        "queues": _optional_list(wanted.queues),
        "correlation_id": wanted.correlation_id,
        "dead_from": optional_micros(wanted.dead_from),
        "dead_until": optional_micros(wanted.dead_until),
    }
    found = decode_records(DeadLetterRecord, session.execute("dead_letters/select_page", parameters))
    page = found[:limit]
    return DeadLetterPage(page, page[-1].job_id if len(found) > limit else None)


def _signals(session: Session, job_id: UUID) -> list[SignalRecord]:
    return decode_records(SignalRecord, session.execute("signals/select", {"job_id": str(job_id)}))


def _decoded(session: Session, rows: Iterable[Row]) -> Iterable[Job]:
    """The jobs of these rows without their tokens. A row that cannot be decoded is an error."""
    for row in rows:
        job = read_row(session, row)
        if isinstance(job, RowPoisoned):
            raise job
        yield without_token(job)


def _page(rows: Iterable[Row], after: str | None) -> EventPage:
    found = [decode_event(row) for row in rows]
    return EventPage(found, found[-1].position or "0" if found else after or "0")


def _after_id(after: UUID | None) -> str:
    """The id that the page follows; the empty text precedes all ids."""
    return "" if after is None else str(after)


def _position(after: object) -> int:
    """A position is a number as text, from an earlier page."""
    if after is None:
        return 0
    if not (isinstance(after, str) and _POSITION.fullmatch(after) and int(after) <= POSITION_MOST):
        raise InvalidInput("after", f"{after!r} is not a position of this log; take it from an earlier page")
    return int(after)


def _optional_list(values: Sequence[str]) -> str | None:
    return json_list(values) if values else None
