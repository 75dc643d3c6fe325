"""Changing jobs: read the row, decide, write the events and the row.

The changes of a batch are written by few statements in a savepoint. Only when that fails is the batch halved until the
poisoned row is isolated; all others are applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from tenure.errors import RowPoisoned
from tenure.lifecycle.decide import Change, effective_at, expand, renewal_due
from tenure.lifecycle.operations import DeadLetter, Signal
from tenure.lifecycle.records import Event, Job
from tenure.stores.contract import Applied, Failure, Outcome, Request, decide_request, disjoint_batches, redacted
from tenure.stores.quarantine import UNREADABLE, Bisection
from tenure.stores.sqlite.content import steps_digest
from tenure.stores.sqlite.rows import (
    JOB,
    decode_events,
    decode_job,
    encode_change,
    encode_events,
)
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.statements import by_name
from tenure.stores.sqlite.values import Row, id_of, json_list, micros, require_text, text

POISON = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeError,
)
"""What is raised when the row cannot be written, rather than the file."""


class RowChanged(Exception):
    """The row is not the one that was decided upon. Within one transaction this means that the row is corrupt."""


class SideRecord(msgspec.Struct, frozen=True):
    """A record that is written besides the event: the name of its statement, and the parameters."""

    statement: str
    parameters: dict[str, object]


class Write(msgspec.Struct, frozen=True):
    """Everything that is written for one change of one job."""

    after: Job
    events: list[Row]
    row: Row
    records: list[SideRecord]

    @property
    def job_id(self) -> UUID:
        return self.after.id


class SharedWrite(msgspec.Struct, frozen=True):
    """What the changes of a homogeneous batch share: their events, the statement for their rows, its parameters."""

    events: list[dict[str, object]]
    statement: str
    parameters: dict[str, object]

    @classmethod
    def of(cls, write: Write, statement: str) -> SharedWrite:
        """From the write of one of them."""
        events = [by_name("events/insert", event) for event in write.events]
        return cls(events, statement, by_name("jobs/update", write.row))

    def write(self, session: Session, events: Sequence[Row], rows: Sequence[Row]) -> int:
        """Write the changes of these rows. Returns how many rows of jobs changed."""
        for event in self.events:
            session.write_rows("events/insert_homogeneous", events, event)
        return session.write_rows(self.statement, rows, self.parameters)


class HomogeneousWrite(msgspec.Struct, frozen=True, gc=False):
    """One change of a homogeneous batch: its own values, as the statements for events and rows take them."""

    job_id: UUID
    shared: SharedWrite
    event: Row
    row: Row


AnyWrite = Write | HomogeneousWrite


def apply(session: Session, requests: Sequence[Request]) -> list[Outcome]:
    """The outcome of each request, in order. Requests for the same job are applied one after the other."""
    outcomes: dict[int, Outcome] = {}
    for wave in disjoint_batches(requests):
        outcomes.update(_apply_wave(session, wave))
    return [outcomes[index] for index in range(len(requests))]


def _apply_wave(session: Session, wave: Sequence[tuple[int, Request]]) -> dict[int, Outcome]:
    requests = [request for _, request in wave]
    current = current_jobs(session, requests)
    logged = _logged(session, [request for request in requests if not _surely_new(request)])
    outcomes: dict[int, Outcome] = {}
    applied: dict[int, Applied] = {}
    writes: list[Write] = []
    for index, request in wave:
        key = (request.job_id, request.request_id)
        job = current.get(request.job_id)
        if isinstance(job, RowPoisoned):
            outcomes[index] = Failure(job)
            continue
        signals = _signal_count(session, request)
        verdict = decide_request(job, request, logged=logged.get(key, ()), now=session.now, signals=signals)
        if isinstance(verdict, Failure) and _surely_new(request):
            written = _logged(session, [request]).get(key, ())
            verdict = decide_request(job, request, logged=written, now=session.now, signals=signals)
        if isinstance(verdict, Change):
            if verdict.counts_steps:
                verdict = verdict.with_steps(steps_digest(session, verdict.before.id))
            at, renewed = _timing(verdict, session.now)
            writes.append(prepare(verdict, at, renewed=renewed))
            applied[index] = Applied(redacted(verdict), at, renewed)
        else:
            outcomes[index] = verdict
    for (index, success), problem in zip(applied.items(), write_changes(session, writes), strict=True):
        outcomes[index] = success if problem is None else Failure(problem)
    return outcomes


def _signal_count(session: Session, request: Request) -> int:
    """How many signals the job was sent; 0 for a request that sends none, to which it does not matter."""
    if not request.signal_count:
        return 0
    [[count]] = session.execute("signals/count", {"job_id": text(request.job_id)})
    return int(count)


def _timing(change: Change, now: datetime) -> tuple[datetime, bool]:
    """When the change takes effect, and whether it then renews the lease."""
    at = effective_at(change.before, now)
    return at, any(step.renews for step in change.planned) and renewal_due(change.before, at)


def _surely_new(request: Request) -> bool:
    """Whether the log need not be read, as long as the row is the one that was decided upon."""
    return request.fresh and request.rev is not None


def current_jobs(session: Session, requests: Sequence[Request]) -> dict[UUID, Job | RowPoisoned]:
    """The current jobs, with their tokens.

    Where the request brings the record and its revision is still the row's, only the token is read. All other rows are
    read in full.
    """
    given = {text(request.job_id): request.job for request in requests if isinstance(request.job, Job)}
    found: dict[UUID, Job | RowPoisoned] = {}
    unread = [text(request.job_id) for request in requests if not isinstance(request.job, Job)]
    for id_, rev, token in session.execute("jobs/select_leases", {"ids": json_list(given)}) if given else ():
        job = given[id_]
        if job.rev != rev or job.erased_at is not None:
            unread.append(id_)
        else:
            found[job.id] = _with_token(job, token)
    for row in session.select_jobs(unread) if unread else ():
        found[id_of(row[0])] = read_row(session, row)
    return found


def read_row(session: Session, row: Row) -> Job | RowPoisoned:
    """The record of a row, or why it cannot be decoded."""
    try:
        if session.connection.text_factory is not str:
            require_text(row, JOB)
        return decode_job(row, session.policy)
    except UNREADABLE as problem:
        return RowPoisoned(row[0], f"its row cannot be read ({problem})")


def prepare(change: Change, at: datetime, *, renewed: bool = False) -> Write:
    """Everything that is written for a change at this time."""
    events, after = expand(change, at, renewed=renewed)
    job_id = text(after.id)
    return Write(
        after,
        [astuple(row) for row in encode_events(events, job_id)],
        encode_change(change.before, after),
        [
            _side_record(operation, event, after)
            for operation, event in zip(change.operations, events, strict=True)
            if isinstance(operation, DeadLetter | Signal)
        ],
    )


def _side_record(operation: DeadLetter | Signal, event: Event, after: Job) -> SideRecord:
    parameters: dict[str, object] = {"job_id": text(after.id), "at": micros(event.at)}
    if isinstance(operation, Signal):
        parameters |= {"rev": event.rev, "name": operation.name, "payload": operation.payload}
        return SideRecord("signals/insert", parameters)
    parameters |= {
        "reason_code": operation.reason_code.value,
        "stage": operation.stage.value,
        "last_error": operation.error,
        "attempts": after.attempt,
        "correlation_id": after.correlation_id,
    }
    return SideRecord("dead_letters/insert", parameters)


def write_changes(session: Session, writes: Sequence[AnyWrite]) -> list[RowPoisoned | None]:
    """Write all changes but those of poisoned rows. For each: None, or what is wrong with its row."""
    problems: dict[UUID, RowPoisoned] = {}
    batches = Bisection(writes)
    for batch in batches:
        problem = _try(session, batch)
        if problem is not None and batches.isolates(batch):
            problems[batch[0].job_id] = problem
    return [problems.get(write.job_id) for write in writes]


def _try(session: Session, writes: Sequence[AnyWrite]) -> RowPoisoned | None:
    session.savepoint("changes")
    try:
        _write(session, writes)
    except (*POISON, RowChanged) as problem:
        session.release("changes", undo=True)
        return RowPoisoned(writes[0].job_id, str(problem))
    session.release("changes")
    return None


def _write(session: Session, writes: Sequence[AnyWrite]) -> None:
    changed = _write_each(session, [write for write in writes if isinstance(write, Write)])
    changed += _write_homogeneous(session, [write for write in writes if isinstance(write, HomogeneousWrite)])
    if changed != len(writes):
        raise RowChanged("its row does not match the revision and token that were just read")


def _write_each(session: Session, writes: Sequence[Write]) -> int:
    """Returns how many rows of jobs changed."""
    session.write_rows("events/insert", [event for write in writes for event in write.events])
    for write in writes:
        for record in write.records:
            session.execute(record.statement, record.parameters)
    return session.write_rows("jobs/update", [write.row for write in writes])


def _write_homogeneous(session: Session, writes: Sequence[HomogeneousWrite]) -> int:
    """Returns how many rows of jobs changed."""
    batches: dict[int, list[HomogeneousWrite]] = {}
    for write in writes:
        batches.setdefault(id(write.shared), []).append(write)
    return sum(
        batch[0].shared.write(session, [write.event for write in batch], [write.row for write in batch])
        for batch in batches.values()
    )


def _logged(session: Session, requests: Sequence[Request]) -> dict[tuple[UUID, str], list[Event]]:
    """The events that these requests have written before."""
    found: dict[tuple[UUID, str], list[Event]] = {}
    if requests:
        wanted = json_list([[text(request.job_id), request.request_id] for request in requests])
        for row in session.execute("events/select_by_request", {"requests": wanted}):
            for event in decode_events(row):
                found.setdefault((event.job_id, event.request_id), []).append(event)
    return found


def _with_token(job: Job, token: str | None) -> Job:
    if (None if job.token is None else text(job.token)) == token:
        return job
    return msgspec.structs.replace(job, token=None if token is None else id_of(token))
