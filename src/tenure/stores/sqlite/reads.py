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
from tenure.lifecycle.budgets import BudgetLine
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import UNSUCCESSFUL
from tenure.lifecycle.steps import StepRecord
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
    UnreadableRow,
    WorkerRecord,
    without_token,
)
from tenure.stores.contract.steps import STEPS_PER_READ
from tenure.stores.quarantine import UNREADABLE
from tenure.stores.sqlite.apply import read_row
from tenure.stores.sqlite.artifacts import list_artifacts, read_artifact
from tenure.stores.sqlite.budgets import read_budget
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.content import read_content
from tenure.stores.sqlite.rows import EVENT, POSITIONED, decode_events
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.steps import list_steps, read_state
from tenure.stores.sqlite.values import Row, decode_records, json_list, micros, optional_micros, require_text
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

    async def find(
        self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> JobPage:
        return await self._read(find, wanted, after=after, limit=limit, newest_first=newest_first)

    async def recoverable(self, *, limit: int, after: UUID | None) -> list[Job | RowPoisoned]:
        return await self._read(_recoverable, after=after, limit=limit)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._read(history, job_ids)

    async def wakeable(self, job_ids: Sequence[UUID]) -> list[Job | RowPoisoned]:
        return await self._read(_wakeable, job_ids)

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        return await self._read(_children, parent_id, live_only=live_only, after=after, limit=limit)

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
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> DeadLetterPage:
        return await self._read(_dead_letters, wanted, after=after, limit=limit, newest_first=newest_first)

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return await self._read(list_artifacts, job_id)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._read(read_artifact, job_id, name)

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._read(_signals, job_id)

    async def run_state(self, job_id: UUID) -> str | None:
        return await self._read(read_state, job_id)

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        return await self._read(read_budget, root_id)

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        return await self._read(list_steps, job_id, after=after, limit=limit)

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await self._read(read_content, job_ids)

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


def find(session: Session, wanted: JobFilter, *, after: UUID | None, limit: int, newest_first: bool = False) -> JobPage:
    """A page of jobs in the order of ids, or the other way round."""
    parameters = {
        "after": _after_id(after, newest_first=newest_first),
        "limit": limit + 1,
        "statuses": _optional_list([str(status) for status in wanted.statuses]),
        "queues": _optional_list(wanted.queues),
        "kinds": _optional_list(wanted.kinds),
        "reasons": _optional_list(wanted.reasons),
        "dedupe_key": wanted.dedupe_key,
        "submitted_by": wanted.submitted_by,
        "created_from": optional_micros(wanted.created_from),
        "created_until": optional_micros(wanted.created_until),
        "tags": _encode(wanted.tags).decode(),
    }
    statement = "jobs/select_newest_page" if newest_first else "jobs/select_page"
    if wanted.correlation_id is not None:
        parameters["correlation_id"] = wanted.correlation_id
        statement += "_by_correlation"
    elif wanted.statuses and UNSUCCESSFUL.issuperset(wanted.statuses):
        statement += "_by_unsuccessful_status"
    return _job_page(session, session.execute(statement, parameters).fetchall(), limit)


def _job_page(session: Session, rows: Sequence[Row], limit: int) -> JobPage:
    """The first rows as a page. There is another page if there are more rows."""
    found = [read_row(session, row) for row in rows[:limit]]
    jobs = [without_token(job) for job in found if isinstance(job, Job)]
    unreadable = tuple(unreadable_job(problem) for problem in found if isinstance(problem, RowPoisoned))
    return JobPage(jobs, _last_id(rows[:limit]) if len(rows) > limit else None, unreadable)


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


def _wakeable(session: Session, job_ids: Sequence[UUID]) -> list[Job | RowPoisoned]:
    """Those of these jobs that wait for no further child."""
    parameters = {"ids": json_list(map(str, job_ids)), "now": micros(session.now)}
    found = [read_row(session, row) for row in session.execute("jobs/select_wakeable", parameters)]
    return [without_token(job) if isinstance(job, Job) else job for job in found]


def _children(session: Session, parent_id: UUID, *, live_only: bool, after: UUID | None, limit: int) -> JobPage:
    """A page of the jobs that have this parent."""
    parameters = {"parent_id": str(parent_id), "live_only": live_only, "after": _after_id(after), "limit": limit + 1}
    return _job_page(session, session.execute("jobs/select_children", parameters).fetchall(), limit)


def history(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
    """Each job's events in the order of revisions; an empty list for an id without events."""
    found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
    for row in session.execute("events/select_history", {"ids": json_list(map(str, found))}):
        events = _read_events(session, row)
        if isinstance(events, UnreadableRow):
            raise RowPoisoned(events.job_id, str(events))
        for event in events:
            found[event.job_id].append(event)
    return found


def _events(session: Session, wanted: EventFilter, *, after: str | None, limit: int) -> EventPage:
    """A page of the log's events that match, by the index that fits the filter."""
    parameters: dict[str, object] = {
        **_rows_after(after, limit),
        **_types_of_rows(wanted.types),
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
    return _page(session, rows, after, limit, wanted.types)


def tail(session: Session, *, after: str | None, limit: int) -> EventPage:
    """The log after a position."""
    parameters = {**_rows_after(after, limit), "since": None, "until": None}
    return _page(session, session.execute("events/select_tail", parameters), after, limit)


def _end(session: Session) -> str:
    """The position of the last event."""
    return str(2 * session.execute("events/select_last_position").fetchone()[0])


def _dead_letter(session: Session, job_id: UUID) -> DeadLetterRecord | None:
    rows = session.execute("dead_letters/select", {"job_id": str(job_id)})
    return next(iter(decode_records(DeadLetterRecord, rows)), None)


def _dead_letters(
    session: Session, wanted: DeadLetterFilter, *, after: UUID | None, limit: int, newest_first: bool
) -> DeadLetterPage:
    """A page of dead letters, in the order of their jobs' ids, or the other way round."""
    parameters = {
        "after": _after_id(after, newest_first=newest_first),
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
    statement = "dead_letters/select_newest_page" if newest_first else "dead_letters/select_page"
    found = decode_records(DeadLetterRecord, session.execute(statement, parameters))
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


def _rows_after(after: str | None, limit: int) -> dict[str, object]:
    """Which rows have the events of a page: one row more than events, since the page may need nothing of the first."""
    return {"after": _position(after) // 2, "limit": limit + 1}


def _types_of_rows(types: Sequence[EventType]) -> dict[str, object]:
    """Which rows have events of these types: a start may also be in the row of its claim."""
    starts_alone = EventType.STARTED in types and EventType.CLAIMED not in types
    of_rows = [*types, EventType.CLAIMED] if starts_alone else types
    return {"types": _optional_list([type_.value for type_ in of_rows]), "starts_alone": int(starts_alone)}


def _page(
    session: Session, rows: Iterable[Row], after: str | None, limit: int, types: Sequence[EventType] = ()
) -> EventPage:
    begin = position = _position(after)
    found: list[Event] = []
    unreadable: list[UnreadableRow] = []
    for row in rows:
        events = _read_events(session, row)
        if isinstance(events, UnreadableRow):
            if 2 * row[0] > begin:
                unreadable.append(events)
                position = 2 * row[0]
            continue
        for event in events:
            if (not types or event.type in types) and int(event.position or 0) > begin:
                found.append(event)
                position = int(event.position or 0)
                if len(found) == limit:
                    return EventPage(found, str(position), tuple(unreadable))
    return EventPage(found, str(position), tuple(unreadable))


def _read_events(session: Session, row: Row) -> tuple[Event, ...] | UnreadableRow:
    try:
        if session.connection.text_factory is not str:
            require_text(row, (*POSITIONED, *EVENT))
        return decode_events(row)
    except UNREADABLE as problem:
        job_id, rev = row[len(POSITIONED)], row[len(POSITIONED) + 1]
        return UnreadableRow(f"event {rev} of job {job_id}", repr(problem), optional_id(job_id))


def unreadable_job(problem: RowPoisoned) -> UnreadableRow:
    return UnreadableRow(f"job {problem.job_id}", problem.problem, optional_id(problem.job_id))


def optional_id(written: object) -> UUID | None:
    """The id in this column; None if it is none."""
    try:
        return UUID(str(written))
    except ValueError:
        return None


def _last_id(rows: Sequence[Row]) -> UUID | None:
    """The last id of a page, from which the next one starts."""
    return next((found for row in reversed(rows) if (found := optional_id(row[0])) is not None), None)


def _after_id(after: UUID | None, *, newest_first: bool = False) -> str:
    """The id that the page follows. The empty text is less than all ids, and `~` greater."""
    if after is None:
        return "~" if newest_first else ""
    return str(after)


def _position(after: object) -> int:
    """A position is a number as text, from an earlier page."""
    if after is None:
        return 0
    if not (isinstance(after, str) and _POSITION.fullmatch(after) and int(after) <= POSITION_MOST):
        raise InvalidInput("after", f"{after!r} is not a position of this log; take it from an earlier page")
    return int(after)


def _optional_list(values: Sequence[str]) -> str | None:
    return json_list(values) if values else None
