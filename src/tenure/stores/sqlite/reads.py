"""Everything that can be asked, on any connection. Tokens never leave."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, RowPoisoned
from tenure.lifecycle import fold
from tenure.lifecycle.records import DeadLetter, Event, Execution, Job
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
    without_secret,
)
from tenure.stores.sqlite.apply import read_row
from tenure.stores.sqlite.artifacts import list_artifacts, read_artifact
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import (
    PolicyOf,
    dead_letter_of,
    event_of,
    json_list,
    maybe_micros,
    micros,
    signal_of,
)
from tenure.stores.sqlite.statements import Row, sql
from tenure.stores.sqlite.workers import list_workers, read_stats

MICROS_LEAST, MICROS_MOST = -(2**63), 2**63 - 1
POSITION_MOST = 2**63 - 1

_POSITION = re.compile(r"[0-9]{1,19}")
_encode = msgspec.json.encode


class SqliteReads:
    """Reads in one file. A token never leaves the store."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._connections, self._run, self._clock = connections, connections.read, connections.clock
        self._policies_on = connections.policies_on

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._run(lambda connection: read(connection, job_ids, self._policies_on(connection)))

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        return await self._run(
            lambda connection: find(
                connection, wanted, after=after, limit=limit, policy_of=self._policies_on(connection)
            )
        )

    async def recoverable(self, *, limit: int, after: UUID | None) -> list[Job | RowPoisoned]:
        return await self._run(
            lambda connection: recoverable(
                connection, after=after, limit=limit, now=self._clock(), policy_of=self._policies_on(connection)
            )
        )

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._run(lambda connection: history(connection, job_ids))

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return await self._run(lambda connection: events(connection, wanted, after=after, limit=limit))

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return await self._run(lambda connection: tail(connection, after=after, limit=limit))

    async def end(self) -> str:
        return await self._run(end)

    async def executions(self, job_id: UUID) -> list[Execution]:
        return fold.executions((await self.history([job_id]))[job_id])

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        return await self._run(lambda connection: dead_letter(connection, job_id))

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage:
        return await self._run(lambda connection: dead_letters(connection, wanted, after=after, limit=limit))

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return await self._run(lambda connection: list_artifacts(connection, job_id))

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._run(lambda connection: read_artifact(connection, job_id, name))

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._run(lambda connection: signals(connection, job_id))

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        return await self._run(lambda connection: list_workers(connection, ids))

    async def stats(self) -> Stats:
        return await self._run(lambda connection: read_stats(connection, now=self._clock()))

    async def now(self) -> datetime:
        self._connections.require_open()
        return self._clock()


def read(connection: sqlite3.Connection, job_ids: Sequence[UUID], policy_of: PolicyOf) -> dict[UUID, Job]:
    """The jobs that are there."""
    rows = connection.execute(sql("jobs_by_id"), {"ids": json_list(map(str, job_ids))})
    return {job.id: job for job in _shown(rows, policy_of)}


def find(
    connection: sqlite3.Connection, wanted: JobFilter, *, after: UUID | None, limit: int, policy_of: PolicyOf
) -> JobPage:
    """A page of jobs, oldest first."""
    parameters = {
        "after": _cursor(after),
        "limit": limit + 1,
        "statuses": _maybe_json([status.value for status in wanted.statuses]),
        "queues": _maybe_json(wanted.queues),
        "kinds": _maybe_json(wanted.kinds),
        "reasons": _maybe_json(wanted.reasons),
        "dedupe_key": wanted.dedupe_key,
        "submitted_by": wanted.submitted_by,
        "created_from": maybe_micros(wanted.created_from),
        "created_until": maybe_micros(wanted.created_until),
        "tags": _encode(wanted.tags).decode(),
    }
    if wanted.correlation_id is None:
        rows = connection.execute(sql("find_jobs"), parameters).fetchall()
    else:
        parameters["correlation_id"] = wanted.correlation_id
        rows = connection.execute(sql("find_correlated_jobs"), parameters).fetchall()
    jobs = list(_shown(rows[:limit], policy_of))
    return JobPage(jobs, jobs[-1].id if len(rows) > limit else None)


def recoverable(
    connection: sqlite3.Connection, *, after: UUID | None, limit: int, now: datetime, policy_of: PolicyOf
) -> list[Job | RowPoisoned]:
    """Up to `limit` jobs that need recovery; where a row cannot be read, what is wrong with it, besides."""
    parameters = {"after": _cursor(after), "now": micros(now)}
    found: list[Job | RowPoisoned] = []
    sound = 0
    with closing(connection.execute(sql("recoverable"), parameters)) as rows:
        for row in rows:
            job = read_row(row, policy_of)
            found.append(without_secret(job) if isinstance(job, Job) else job)
            sound += isinstance(job, Job)
            if sound == limit:
                break
    return found


def history(connection: sqlite3.Connection, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
    """Each job's events in the order of revisions; an empty list for an id that has none."""
    found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
    for row in connection.execute(sql("history"), {"ids": json_list(map(str, found))}):
        event = event_of(row)
        found[event.job_id].append(event)
    return found


def events(connection: sqlite3.Connection, wanted: EventFilter, *, after: str | None, limit: int) -> EventPage:
    """A page of the log's events that match, by the index that fits what is asked."""
    parameters: dict[str, object] = {
        "after": _position(after),
        "limit": limit,
        "types": _maybe_json([type_.value for type_ in wanted.types]),
        "since": maybe_micros(wanted.since),
        "until": maybe_micros(wanted.until),
    }
    if wanted.job_id is not None:
        parameters |= {"job_id": str(wanted.job_id), "correlation_id": wanted.correlation_id}
        rows = connection.execute(sql("events_of_job"), parameters)
    elif wanted.correlation_id is not None:
        rows = connection.execute(sql("events_of_correlation"), parameters | {"correlation_id": wanted.correlation_id})
    elif wanted.types:
        since = MICROS_LEAST if wanted.since is None else micros(wanted.since)
        until = MICROS_MOST if wanted.until is None else micros(wanted.until)
        rows = connection.execute(sql("events_of_type"), parameters | {"since": since, "until": until})
    else:
        rows = connection.execute(sql("tail"), parameters)
    return _page(rows, after)


def tail(connection: sqlite3.Connection, *, after: str | None, limit: int) -> EventPage:
    """The log from a position on."""
    parameters = {"after": _position(after), "limit": limit, "since": None, "until": None}
    return _page(connection.execute(sql("tail"), parameters), after)


def end(connection: sqlite3.Connection) -> str:
    """The position of the last event."""
    [last] = connection.execute(sql("end")).fetchone()
    return str(last)


def dead_letter(connection: sqlite3.Connection, job_id: UUID) -> DeadLetter | None:
    row = connection.execute(sql("dead_letter"), {"job_id": str(job_id)}).fetchone()
    return None if row is None else dead_letter_of(row)


def dead_letters(
    connection: sqlite3.Connection, wanted: DeadLetterFilter, *, after: UUID | None, limit: int
) -> DeadLetterPage:
    """A page of dead letters, in the order of their jobs' ids."""
    parameters = {
        "after": _cursor(after),
        "limit": limit + 1,
        "handled": int(wanted.handled),
        "reason_codes": _maybe_json([code.value for code in wanted.reason_codes]),
        "stages": _maybe_json([stage.value for stage in wanted.stages]),
        "kinds": _maybe_json(wanted.kinds),
        "queues": _maybe_json(wanted.queues),
        "correlation_id": wanted.correlation_id,
        "dead_from": maybe_micros(wanted.dead_from),
        "dead_until": maybe_micros(wanted.dead_until),
    }
    rows = connection.execute(sql("dead_letters"), parameters).fetchall()
    letters = [dead_letter_of(row) for row in rows[:limit]]
    return DeadLetterPage(letters, letters[-1].job_id if len(rows) > limit else None)


def signals(connection: sqlite3.Connection, job_id: UUID) -> list[SignalRecord]:
    return [signal_of(row, job_id) for row in connection.execute(sql("signals"), {"job_id": str(job_id)})]


def _shown(rows: Iterable[Row], policy_of: PolicyOf) -> Iterable[Job]:
    for row in rows:
        job = read_row(row, policy_of)
        if isinstance(job, RowPoisoned):
            raise job
        yield without_secret(job)


def _page(rows: Iterable[Row], after: str | None) -> EventPage:
    found = [event_of(row) for row in rows]
    return EventPage(found, found[-1].position or "0" if found else after or "0")


def _cursor(after: UUID | None) -> str:
    """The id that the page begins behind; the empty text comes before them all."""
    return "" if after is None else str(after)


def _position(after: object) -> int:
    """A position is a number as text, and only what an earlier page gave."""
    if after is None:
        return 0
    if not (isinstance(after, str) and _POSITION.fullmatch(after) and int(after) <= POSITION_MOST):
        raise InvalidInput("after", f"{after!r} is not a position of this log; take it from an earlier page")
    return int(after)


def _maybe_json(values: Sequence[str]) -> str | None:
    return json_list(values) if values else None
