"""Changing jobs, inside the write transaction: read the row, ask for the verdict, write events and row.

What `settle` decides is written by few statements for the events and the rows of a whole batch, in a savepoint. Only
when that fails is the batch halved, again and again, until the poisoned row is found; the rest is applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import JobNotFound, RowPoisoned, TenureError
from tenure.lifecycle.decide import Change, effective_at, expand, renewal_due
from tenure.lifecycle.operations import DeadLetter, Signal
from tenure.lifecycle.records import Event, Job
from tenure.stores.contract import Applied, Failure, Outcome, Request, settle, shown, waves
from tenure.stores.quarantine import Bisection
from tenure.stores.sqlite.apply_batch import Alike, write_alike
from tenure.stores.sqlite.rows import (
    PolicyOf,
    changed_job_row,
    event_of,
    event_row,
    id_of,
    job_of,
    json_list,
    micros,
    text,
)
from tenure.stores.sqlite.statements import Row, sql, write_rows

_encode = msgspec.json.encode

POISON = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""What SQLite raises when it is the row that cannot be written, rather than the file."""
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, msgspec.MsgspecError, TenureError)
"""What comes of a row that somebody has spoilt."""


class Moved(Exception):
    """The row was no longer what was decided upon. Inside one transaction this means that it is not what it says."""


class Record(msgspec.Struct, frozen=True):
    """Something that is kept besides the event: the name of its statement, and what it takes."""

    statement: str
    parameters: dict[str, object]


class Write(msgspec.Struct, frozen=True):
    """Everything that is written for one change of one job."""

    after: Job
    events: list[Row]
    row: Row
    records: list[Record]

    @property
    def job_id(self) -> UUID:
        return self.after.id


AnyWrite = Write | Alike


def apply(
    connection: sqlite3.Connection, requests: Sequence[Request], *, now: datetime, policy_of: PolicyOf
) -> list[Outcome]:
    """The outcome of each request, in order. Several for one job follow each other."""
    outcomes: dict[int, Outcome] = {}
    for wave in waves(requests):
        outcomes.update(_perform_wave(connection, wave, now=now, policy_of=policy_of))
    return [outcomes[index] for index in range(len(requests))]


def _perform_wave(
    connection: sqlite3.Connection, wave: Sequence[tuple[int, Request]], *, now: datetime, policy_of: PolicyOf
) -> dict[int, Outcome]:
    requests = [request for _, request in wave]
    current = current_jobs(connection, requests, policy_of)
    logged = _logged(connection, [request for request in requests if not _surely_new(request)])
    outcomes: dict[int, Outcome] = {}
    applied: dict[int, Applied] = {}
    writes: list[Write] = []
    for index, request in wave:
        name = (request.job_id, request.request_id)
        job = current.get(name[0])
        if isinstance(job, RowPoisoned):
            outcomes[index] = Failure(job)
            continue
        verdict = settle(job, request, logged=logged.get(name, ()), now=now)
        if isinstance(verdict, Failure) and _surely_new(request):
            verdict = settle(job, request, logged=_logged(connection, [request]).get(name, ()), now=now)
        if isinstance(verdict, Change):
            at, renewed = when(verdict, now)
            writes.append(prepare(verdict, at, renewed=renewed))
            applied[index] = Applied(shown(verdict), at, renewed)
        else:
            outcomes[index] = verdict
    for (index, success), problem in zip(applied.items(), write_changes(connection, writes), strict=True):
        outcomes[index] = success if problem is None else Failure(problem)
    return outcomes


def when(change: Change, now: datetime) -> tuple[datetime, bool]:
    """When the change takes place, and whether it renews the lease then."""
    at = effective_at(change.before, now)
    return at, any(step.renews for step in change.planned) and renewal_due(change.before, at)


def _surely_new(request: Request) -> bool:
    """Whether the log need not be asked, as long as the row is the one that was decided upon."""
    return request.fresh and request.rev is not None


def current_jobs(
    connection: sqlite3.Connection, requests: Sequence[Request], policy_of: PolicyOf
) -> dict[UUID, Job | RowPoisoned]:
    """The jobs as they stand, with their tokens.

    Where the caller holds the record and its revision is still the row's, the record is the row: only the token is
    taken from there. All others are read in full.
    """
    held = {text(request.job_id): request.job for request in requests if isinstance(request.job, Job)}
    found: dict[UUID, Job | RowPoisoned] = {}
    unread = [text(request.job_id) for request in requests if not isinstance(request.job, Job)]
    for id_, rev, token in connection.execute(sql("leases_by_id"), {"ids": json_list(held)}) if held else ():
        job = held[id_]
        if job.rev != rev or job.erased_at is not None:
            unread.append(id_)
        else:
            found[job.id] = _with_token(job, token)
    for row in connection.execute(sql("jobs_by_id"), {"ids": json_list(unread)}) if unread else ():
        found[id_of(row[0])] = read_row(row, policy_of)
    return found


def read_row(row: Row, policy_of: PolicyOf) -> Job | RowPoisoned:
    """The record of a row, or why there is none."""
    try:
        return job_of(row, policy_of)
    except UNREADABLE as problem:
        return RowPoisoned(row[0], f"its row cannot be read ({problem})")


def read_one(connection: sqlite3.Connection, job_id: str, policy_of: PolicyOf) -> Job:
    """One job with its token, for the store's own use."""
    row = connection.execute(sql("jobs_by_id"), {"ids": json_list([job_id])}).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return job_of(row, policy_of)


def prepare(change: Change, at: datetime, *, renewed: bool = False) -> Write:
    """Everything that is written for a change at this moment."""
    events, after = expand(change, at, renewed=renewed)
    job_id = text(after.id)
    return Write(
        after,
        [event_row(event, job_id) for event in events],
        changed_job_row(change.before, after, job_id),
        [
            _record(operation, event, after)
            for operation, event in zip(change.operations, events, strict=True)
            if isinstance(operation, DeadLetter | Signal)
        ],
    )


def _record(operation: DeadLetter | Signal, event: Event, after: Job) -> Record:
    """What these operations keep besides the event."""
    if isinstance(operation, DeadLetter):
        parameters: dict[str, object] = {
            "job_id": text(after.id),
            "reason_code": operation.reason_code.value,
            "stage": operation.stage.value,
            "last_error": operation.error,
            "attempts": after.attempt,
            "at": micros(event.at),
            "correlation_id": after.origin.correlation_id,
        }
        return Record("insert_dead_letter", parameters)
    parameters = {
        "job_id": text(after.id),
        "rev": event.rev,
        "name": operation.name,
        "payload": operation.payload,
        "at": micros(event.at),
    }
    return Record("insert_signal", parameters)


def write_changes(connection: sqlite3.Connection, writes: Sequence[AnyWrite]) -> list[RowPoisoned | None]:
    """Write them all. For each: None, or what is wrong with its row."""
    problems: dict[UUID, RowPoisoned] = {}
    batches = Bisection(writes)
    for batch in batches:
        problem = _try(connection, batch)
        if problem is not None and batches.isolates(batch):
            problems[batch[0].job_id] = problem
    return [problems.get(write.job_id) for write in writes]


def _try(connection: sqlite3.Connection, writes: Sequence[AnyWrite]) -> RowPoisoned | None:
    connection.execute("savepoint changes")
    try:
        _write(connection, writes)
    except (*POISON, Moved, OverflowError, UnicodeError) as problem:
        connection.execute("rollback to changes")
        connection.execute("release changes")
        return RowPoisoned(writes[0].job_id, str(problem))
    connection.execute("release changes")
    return None


def _write(connection: sqlite3.Connection, writes: Sequence[AnyWrite]) -> None:
    changed = _write_each(connection, [write for write in writes if isinstance(write, Write)])
    changed += write_alike(connection, [write for write in writes if isinstance(write, Alike)])
    if changed != len(writes):
        raise Moved("its row does not match the revision and token that were just read")


def _write_each(connection: sqlite3.Connection, writes: Sequence[Write]) -> int:
    """How many rows were changed."""
    write_rows(connection, "insert_events", [event for write in writes for event in write.events])
    for write in writes:
        for record in write.records:
            connection.execute(sql(record.statement), record.parameters)
    return write_rows(connection, "update_jobs", [write.row for write in writes])


def _logged(connection: sqlite3.Connection, requests: Sequence[Request]) -> dict[tuple[UUID, str], list[Event]]:
    """What these requests have written before."""
    found: dict[tuple[UUID, str], list[Event]] = {}
    if requests:
        wanted = json_list([[text(request.job_id), request.request_id] for request in requests])
        for row in connection.execute(sql("logged_requests"), {"requests": wanted}):
            event = event_of(row)
            found.setdefault((event.job_id, event.request_id), []).append(event)
    return found


def _with_token(job: Job, token: str | None) -> Job:
    if (None if job.token is None else text(job.token)) == token:
        return job
    return msgspec.structs.replace(job, token=None if token is None else id_of(token))
