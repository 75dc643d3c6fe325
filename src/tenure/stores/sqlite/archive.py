"""Archives: a snapshot of the whole file, and a whole log restored into an empty file.

Each has a connection of its own: a snapshot is one read transaction, a restoration one write transaction, and both stay
open between calls. A database in memory has only one connection, so that an archive works on a copy of it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import asdict, astuple

from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.steps import StepRecord
from tenure.seams import Seams
from tenure.stores.archive_rows import RowReader, columns_of, facts_of
from tenure.stores.archive_tables import ARCHIVE_TABLES, TABLES_OF_JOBS
from tenure.stores.contract import Artifact, ArtifactRecord, JobFilter, SignalRecord, UnreadableRow
from tenure.stores.contract.archive import (
    ArchivedJob,
    ArchiveRecord,
    DeduplicatedRequest,
    NotEmpty,
    NotRestored,
    Restore,
    Snapshot,
    Totals,
)
from tenure.stores.sqlite import reads
from tenure.stores.sqlite.artifacts import read_artifact
from tenure.stores.sqlite.connect import MEMORY, UnreadableText, connect, read_any_text
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.content import read_content
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import decode_step, encode_event, encode_job, encode_step
from tenure.stores.sqlite.session import Session, set_writer
from tenure.stores.sqlite.statements import insert, select_of_jobs, select_page, sql
from tenure.stores.sqlite.transactions import ReadTransactions
from tenure.stores.sqlite.values import (
    Row,
    decode_records,
    decode_value,
    encode_record,
    encode_value,
    json_list,
    require_text,
    text,
)
from tenure.stores.sqlite.writer_thread import ConnectionRunner

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", DeadLetterRecord, SignalRecord, DeduplicatedRequest, ArtifactRecord)


class SqliteArchive:
    """The archive of one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._connections, self._path = connections, connections.path

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        async with self._connected(read_only=True) as connection:
            totals = await connection.run(_begin_reading)
            yield SqliteSnapshot(connection, at=self._connections.clock(), totals=totals)

    @asynccontextmanager
    async def restore(self, *, runs: int) -> AsyncIterator[Restore]:
        async with self._connected(read_only=False) as connection:
            await connection.run(_begin_restoring, where=self._path)
            try:
                yield SqliteRestore(connection, self._connections.seams)
                await connection.run(_commit)
            except BaseException:
                await connection.run(_roll_back)
                raise
            if self._path == MEMORY:
                await self._replace_memory(connection)

    @asynccontextmanager
    async def _connected(self, *, read_only: bool) -> AsyncIterator[_ArchiveConnection]:
        """A connection to the file, or to a copy of the database in memory."""
        self._connections.require_open()
        copy = None
        if self._path == MEMORY:
            copy = connect(MEMORY)
            await (await self._connections.reader()).call(partial(_copy, target=copy))
        name = "export" if read_only else "import"
        runner = self._connections.runner(name, ReadTransactions(), read_only=read_only, opened=copy)
        await runner.start()
        try:
            yield _ArchiveConnection(runner, self._connections.clock)
        finally:
            await runner.stop()

    async def _replace_memory(self, connection: _ArchiveConnection) -> None:
        """Replace the database in memory by the restored copy, if it is still empty."""
        writer = await self._connections.writer()
        restored = await connection.run(_connection_of)
        await writer.call(partial(_replace, source=restored, where=self._path))
        self._connections.policies.forget_ids()


class _ArchiveConnection:
    """Runs operations inside the one transaction of an archive."""

    def __init__(self, runner: ConnectionRunner, clock: Callable[[], datetime]) -> None:
        self._runner, self._clock = runner, clock
        self._policies = SqlitePolicies()

    async def run(self, operation: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        def work(connection: sqlite3.Connection) -> R:
            session = Session(connection, self._clock(), self._policies)
            return read_any_text(connection, lambda: operation(session, *args, **kwargs))

        return await self._runner.call(work)


class SqliteSnapshot:
    """One read transaction, which sees nothing that is committed after it began."""

    store = "sqlite"

    def __init__(self, connection: _ArchiveConnection, *, at: datetime, totals: Totals) -> None:
        self._run, self._totals = connection.run, totals
        self._reader = RowReader()
        self.at = at

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        return self._reader.unreadable

    async def totals(self) -> Totals:
        return self._totals

    async def records(self, kind: type[ArchiveRecord], *, limit: int) -> AsyncIterator[Sequence[ArchiveRecord]]:
        after = ARCHIVE_TABLES[kind].first_key
        while page := await self._run(_select_page, kind, after, limit):
            yield await self._run(_decode_page, kind, page, self._reader)
            if (last := _last_key(page, tuple(after))) is None:
                return
            after = last

    async def log(self, *, limit: int) -> AsyncIterator[Sequence[Event]]:
        after: str | None = None
        while (page := await self._run(reads.tail, after=after, limit=limit)).events or page.unreadable:
            after = page.position
            self._reader.add(*page.unreadable)
            yield page.events

    async def jobs(self, *, limit: int) -> AsyncIterator[Sequence[ArchivedJob]]:
        after: UUID | None = None
        while True:
            page = await self._run(reads.find, JobFilter(), after=after, limit=limit)
            self._reader.add(*page.unreadable)
            yield await self._reader.archived(page.jobs, lambda jobs: self._run(_with_records, jobs))
            if (after := page.after) is None:
                return

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._run(reads.history, job_ids)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._run(read_artifact, job_id, name)

    async def steps(self, job_id: UUID, *, limit: int) -> AsyncIterator[Sequence[StepRecord]]:
        numbers = await self._run(_step_numbers, job_id)
        for first in range(0, len(numbers), limit):
            yield await self._run(_select_steps, numbers[first : first + limit])


class SqliteRestore:
    """One write transaction as the writer `import`."""

    def __init__(self, connection: _ArchiveConnection, seams: Seams) -> None:
        self._run, self._seams = connection.run, seams

    async def write_records(self, records: Sequence[ArchiveRecord]) -> None:
        await self._write([partial(_restore_record, record=record) for record in records])

    async def write_events(self, events: Sequence[Event]) -> None:
        rows = [astuple(encode_event(event, text(event.job_id))) for event in events]
        try:
            await self._write([partial(_insert_events, rows=rows)])
        except NotRestored:
            await self._write([partial(_insert_events, rows=[row]) for row in rows])
            raise

    async def write_jobs(self, kept: Sequence[ArchivedJob]) -> None:
        await self._write([partial(_restore_job, kept=one, token=self._token(one.job)) for one in kept])

    async def write_artifact(self, record: ArtifactRecord, body: bytes) -> None:
        values = encode_record(record) | {"body": body}
        await self._write([partial(_insert, table="artifacts", values=values)])

    async def write_steps(self, steps: Sequence[StepRecord]) -> None:
        await self._write([partial(_restore_step, step=step) for step in steps])

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._run(reads.history, job_ids)

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await self._run(read_content, job_ids)

    async def missing_job(self) -> UUID | None:
        return await self._run(_orphan)

    async def _write(self, steps: Sequence[Callable[[Session], None]]) -> None:
        await self._run(_write_steps, steps)

    def _token(self, job: Job) -> str | None:
        """A leased job is restored with a token that no worker has."""
        return text(self._seams.random.token()) if job.leased else None


def _write_steps(session: Session, steps: Sequence[Callable[[Session], None]]) -> None:
    """Write all records or none. NotRestored has the index of the record that was refused."""
    session.savepoint("restoring")
    for place, step in enumerate(steps):
        try:
            step(session)
        except (sqlite3.IntegrityError, OverflowError) as problem:
            session.release("restoring", undo=True)
            raise NotRestored(place, str(problem)) from problem
    session.release("restoring")


def _restore_record(session: Session, record: ArchiveRecord) -> None:
    columns = columns_of(record)
    if (policy := columns.pop("policy", None)) is not None:
        columns["policy_id"] = session.policy_id(policy)
    values = {name: encode_value(value) for name, value in columns.items()}
    _insert(session, ARCHIVE_TABLES[type(record)].name, values)


def _restore_job(session: Session, kept: ArchivedJob, token: str | None) -> None:
    letters = () if kept.dead_letter is None else (kept.dead_letter,)
    for record in (*letters, *kept.signals, *kept.deduplicated_requests):
        _insert(session, TABLES_OF_JOBS[type(record)], encode_record(record))
    job = kept.job
    last = {"job_id": text(job.id), "rev": job.rev}
    [previous_status] = session.execute("events/select_previous_status", last).fetchone()
    row = encode_job(job, policy_id=session.policy_id(job.policy))
    _insert(session, "jobs", asdict(row) | {"token": token, "previous_status": previous_status})


def _insert(session: Session, table: str, values: dict[str, object]) -> None:
    session.connection.execute(insert(table, tuple(values)), values)


def _restore_step(session: Session, step: StepRecord) -> None:
    [last] = session.execute("steps/select_last_number").fetchone()
    session.write_rows("steps/insert", [encode_step(msgspec.structs.replace(step, number=last + 1))])


def _step_numbers(session: Session, job_id: UUID) -> list[int]:
    return [number for (number,) in session.execute("steps/select_numbers", {"job_id": text(job_id)})]


def _select_steps(session: Session, numbers: Sequence[int]) -> list[StepRecord]:
    rows = session.execute("steps/select_by_numbers", {"numbers": json_list(numbers)})
    return [decode_step(row) for row in rows]


def _insert_events(session: Session, rows: Sequence[Row]) -> None:
    session.write_rows("events/insert", rows)


def _orphan(session: Session) -> UUID | None:
    row = session.execute("events/select_orphan").fetchone()
    return None if row is None else UUID(row[0])


def _select_page(
    session: Session, kind: type[ArchiveRecord], after: Mapping[str, object], limit: int
) -> list[dict[str, Any]]:
    """The rows of a record's table that follow the key `after`, in the order of the key."""
    statement = select_page(ARCHIVE_TABLES[kind].name, tuple(after))
    rows = session.connection.execute(statement, {**after, "limit": limit})
    names = [column[0] for column in rows.description]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _last_key(page: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any] | None:
    """The key of the last row of a page that has one in UTF-8; None if none has."""
    for row in reversed(page):
        key = {name: row[name] for name in keys}
        if not any(isinstance(value, UnreadableText) for value in key.values()):
            return key
    return None


def _decode_page(
    session: Session, kind: type[ArchiveRecord], rows: Sequence[Mapping[str, Any]], reader: RowReader
) -> list[ArchiveRecord]:
    def facts(row: Mapping[str, Any]) -> dict[str, Any]:
        require_text(tuple(row.values()), tuple(row))
        decoded = {name: decode_value(name, value) for name, value in row.items()}
        policy = session.policy(row["policy_id"]) if "policy_id" in row else None
        return facts_of(kind, decoded, policy, reader)

    return [record for row in rows for record in reader.record(kind, row, partial(facts, row))]


def _with_records(session: Session, jobs: Sequence[Job]) -> list[ArchivedJob]:
    letters = _of_jobs(session, jobs, DeadLetterRecord, "at")
    signals = _of_jobs(session, jobs, SignalRecord, "rev")
    deduplicated = _of_jobs(session, jobs, DeduplicatedRequest, "request_id")
    artifacts = _of_jobs(session, jobs, ArtifactRecord, "name")
    steps: dict[str, int] = dict(session.execute("steps/count", {"ids": json_list(text(job.id) for job in jobs)}))
    return [
        ArchivedJob(
            job=job,
            dead_letter=next(iter(letters[job.id]), None),
            signals=signals[job.id],
            deduplicated_requests=deduplicated[job.id],
            artifacts=artifacts[job.id],
            step_count=steps.get(text(job.id), 0),
        )
        for job in jobs
    ]


def _of_jobs(session: Session, jobs: Sequence[Job], kind: type[T], key: str) -> dict[UUID, tuple[T, ...]]:
    """The records of these jobs, each job's in the order of `key`."""
    statement = select_of_jobs(TABLES_OF_JOBS[kind], kind.__struct_fields__, key)
    rows = session.connection.execute(statement, {"ids": json_list(text(job.id) for job in jobs)})
    found: defaultdict[UUID, list[T]] = defaultdict(list)
    for record in decode_records(kind, rows):
        found[record.job_id].append(record)
    return {job.id: tuple(found[job.id]) for job in jobs}


def _begin_reading(session: Session) -> Totals:
    """The first statement that reads takes the snapshot: this one."""
    session.connection.execute("begin")
    return Totals(*session.execute("archive/count_rows").fetchone())


def _begin_restoring(session: Session, *, where: str) -> None:
    session.connection.execute("begin immediate")
    _require_empty(session.connection, where=where)
    set_writer(session.connection, "import")


def _require_empty(connection: sqlite3.Connection, *, where: str) -> None:
    if nonempty := [name for (name,) in connection.execute(sql("archive/select_nonempty_tables"))]:
        raise NotEmpty(where, nonempty)


def _commit(session: Session) -> None:
    set_writer(session.connection, None)
    session.connection.execute("commit")


def _roll_back(session: Session) -> None:
    if session.connection.in_transaction:
        session.connection.rollback()


def _connection_of(session: Session) -> sqlite3.Connection:
    return session.connection


def _copy(connection: sqlite3.Connection, *, target: sqlite3.Connection) -> None:
    connection.backup(target)


def _replace(connection: sqlite3.Connection, *, source: sqlite3.Connection, where: str) -> None:
    _require_empty(connection, where=where)
    source.backup(connection)
