"""The whole file as it was at one moment, and a whole log written into an empty one.

Both have a connection of their own: a snapshot is one read transaction, an import one write transaction, and each stays
open between its calls. What is in memory has one connection only, so that there a copy of it takes its place.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from tenure.lifecycle.records import Event, Job, Policy
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.seams import Seams
from tenure.stores.archive_rows import FIRST_PAGES, columns_of, facts_of
from tenure.stores.contract import Artifact, ArtifactRecord, JobFilter, SignalRecord
from tenure.stores.contract.archive import (
    AnswerRecord,
    ClaimRecord,
    Kept,
    KeySpent,
    MessageRecord,
    NotEmpty,
    NotRestored,
    OperatorRecord,
    QueueState,
    Restoring,
    Shelved,
    Snapshot,
    StreamRecord,
    Totals,
)
from tenure.stores.sqlite import reads
from tenure.stores.sqlite.artifacts import read_artifact
from tenure.stores.sqlite.connect import MEMORY, connect
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import dead_letter_of, event_row, micros, moment, text
from tenure.stores.sqlite.statements import Row, sql, write_rows
from tenure.stores.sqlite.transactions import Reading, open_gate
from tenure.stores.sqlite.writer_thread import Connection, InlineLane, Lane, ThreadLane, Work

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.json.encode
_WRITTEN_BY: Mapping[type[Shelved], str] = {
    OperatorRecord: "log_operator",
    ClaimRecord: "insert_claim",
    QueueState: "restore_queue",
    KeySpent: "restore_limit",
    ScheduleRecord: "restore_schedule",
    StreamRecord: "restore_stream",
    MessageRecord: "restore_message",
}


class SqliteArchive:
    """The archive of one file."""

    def __init__(
        self,
        path: str,
        lanes: SqliteConnections,
        *,
        seams: Seams,
        clock: Callable[[], datetime],
        busy_seconds: float,
        inline: bool,
    ) -> None:
        self._path, self._lanes, self._seams, self._clock = path, lanes, seams, clock
        self._busy_seconds, self._inline = busy_seconds, inline

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Snapshot]:
        async with self._lane(read_only=True) as lane:
            totals = await lane.look(_begin_reading)
            yield SqliteSnapshot(lane, at=self._clock(), totals=totals)

    @asynccontextmanager
    async def restoring(self, *, runs: int) -> AsyncIterator[Restoring]:
        async with self._lane(read_only=False) as lane:
            await lane.look(partial(_begin_restoring, where=self._path))
            try:
                yield SqliteRestoring(lane, self._seams)
                await lane.look(_commit)
            except BaseException:
                await lane.look(_roll_back)
                raise
            if self._path == MEMORY:
                await self._put_in_place(lane)

    @asynccontextmanager
    async def _lane(self, *, read_only: bool) -> AsyncIterator[Lane]:
        """A lane of its own, on the file or on a copy of what is in memory."""
        self._lanes.require_open()
        opening = partial(connect, self._path, read_only=read_only, busy_seconds=self._busy_seconds)
        if self._path == MEMORY:
            copy = connect(MEMORY)
            await (await self._lanes.reader()).look(partial(_copy, target=copy))
            opening = partial(_given, copy)
        connection = Connection(opening, Reading(), where=self._path)
        name = f"tenure-sqlite-{'export' if read_only else 'import'}"
        lane = InlineLane(connection) if self._inline else ThreadLane(connection, spawn=self._seams.spawn, name=name)
        await lane.start()
        try:
            yield lane
        finally:
            await lane.stop()

    async def _put_in_place(self, lane: Lane) -> None:
        """What was restored becomes what is in memory, if that is still empty."""
        writer = await self._lanes.writer()
        copy = await lane.look(_itself)
        await writer.look(partial(_replace, source=copy, where=self._path))
        self._lanes.policies.forget_ids()


class SqliteSnapshot:
    """One read transaction, which sees nothing of what is committed after it began."""

    store = "sqlite"

    def __init__(self, lane: Lane, *, at: datetime, totals: Totals) -> None:
        self._lane, self._totals = lane, totals
        self._policies = SqlitePolicies()
        self.at = at

    async def totals(self) -> Totals:
        return self._totals

    async def shelf(self, kind: type[Shelved], *, limit: int) -> AsyncIterator[Sequence[Shelved]]:
        name, after = FIRST_PAGES[kind]
        while page := await self._lane.look(partial(_rows, name=name, parameters={**after, "limit": limit})):
            after = {key: page[-1][key] for key in after}
            yield await self._lane.look(partial(self._shelved, kind=kind, rows=page))

    def _shelved(
        self, connection: sqlite3.Connection, *, kind: type[Shelved], rows: Sequence[dict[str, Any]]
    ) -> list[Shelved]:
        found: list[Shelved] = []
        for row in rows:
            policy = self._policies.read(connection, row["policy_id"]) if "policy_id" in row else None
            found.append(msgspec.convert(facts_of(kind, dict(_with_moments(row)), policy), kind))
        return found

    async def log(self, *, limit: int) -> AsyncIterator[Sequence[Event]]:
        after: str | None = None
        while (page := await self._lane.look(partial(reads.tail, after=after, limit=limit))).events:
            after = page.position
            yield page.events

    async def jobs(self, *, limit: int) -> AsyncIterator[Sequence[Kept]]:
        after: UUID | None = None
        while page := await self._lane.look(partial(self._kept, after=after, limit=limit)):
            after = page[-1].job.id
            yield page

    async def histories(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._lane.look(partial(reads.history, job_ids=job_ids))

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._lane.look(partial(read_artifact, job_id=job_id, name=name))

    def _kept(self, connection: sqlite3.Connection, *, after: UUID | None, limit: int) -> list[Kept]:
        def policy_of(policy_id: int) -> Policy:
            return self._policies.read(connection, policy_id)

        page = reads.find(connection, JobFilter(), after=after, limit=limit, policy_of=policy_of)
        ids = {"ids": _encode([str(job.id) for job in page.jobs]).decode()}
        letters = {row[0]: dead_letter_of(row) for row in connection.execute(sql("letters_of_jobs"), ids)}
        signals = _by_job(_rows(connection, name="signals_of_jobs", parameters=ids), SignalRecord)
        answers = _by_job(_rows(connection, name="answers_of_jobs", parameters=ids), AnswerRecord)
        artifacts = _by_job(_rows(connection, name="artifacts_of_jobs", parameters=ids), ArtifactRecord)
        return [
            Kept(
                job=job,
                dead_letter=letters.get(str(job.id)),
                signals=tuple(signals[job.id]),
                answers=tuple(answers[job.id]),
                artifacts=tuple(artifacts[job.id]),
            )
            for job in page.jobs
        ]


class SqliteRestoring:
    """One write transaction, in which the gate is open for an import."""

    def __init__(self, lane: Lane, seams: Seams) -> None:
        self._lane, self._seams = lane, seams
        self._policies = SqlitePolicies()

    async def shelve(self, records: Sequence[Shelved]) -> None:
        await self._written([partial(self._shelve, record=one) for one in records])

    async def log(self, events: Sequence[Event]) -> None:
        rows = [event_row(event, text(event.job_id)) for event in events]
        try:
            await self._written([partial(_write_events, rows=rows)])
        except NotRestored:
            await self._written([partial(_write_events, rows=[row]) for row in rows])
            raise

    async def jobs(self, kept: Sequence[Kept]) -> None:
        await self._written([partial(self._keep, kept=one) for one in kept])

    async def artifact(self, record: ArtifactRecord, body: bytes) -> None:
        await self._written([partial(_execute, name="restore_artifact", facts=_facts(record) | {"body": body})])

    async def histories(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._lane.look(partial(reads.history, job_ids=job_ids))

    async def stray(self) -> UUID | None:
        rows = await self._lane.look(partial(_rows, name="stray_event", parameters={}))
        return UUID(rows[0]["job_id"]) if rows else None

    async def _written(self, steps: Sequence[Work[None]]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("savepoint restoring")
            for place, step in enumerate(steps):
                try:
                    step(connection)
                except (sqlite3.IntegrityError, OverflowError) as problem:
                    connection.execute("rollback to restoring")
                    raise NotRestored(place, str(problem)) from problem
            connection.execute("release restoring")

        await self._lane.look(work)

    def _shelve(self, connection: sqlite3.Connection, *, record: Shelved) -> None:
        columns = columns_of(record)
        if (policy := columns.pop("policy", None)) is not None:
            columns["policy_id"] = self._policies.insert(connection, policy)
        facts = {name: _plain(value) for name, value in columns.items()}
        _execute(connection, name=_WRITTEN_BY[type(record)], facts=facts)

    def _keep(self, connection: sqlite3.Connection, *, kept: Kept) -> None:
        if kept.dead_letter is not None:
            _execute(connection, name="restore_dead_letter", facts=_facts(kept.dead_letter))
        for signal in kept.signals:
            _execute(connection, name="insert_signal", facts=_facts(signal))
        for answer in kept.answers:
            _execute(connection, name="insert_answer", facts=_facts(answer))
        policy_id = self._policies.insert(connection, kept.job.policy)
        token = self._seams.random.token() if kept.job.leased else None
        _execute(connection, name="restore_job", facts=_job_facts(kept.job, policy_id, token))


def _begin_reading(connection: sqlite3.Connection) -> Totals:
    """The snapshot is that of the first statement that reads, and so this is it."""
    connection.execute("begin")
    jobs, events = connection.execute(sql("totals")).fetchone()
    return Totals(jobs, events)


def _begin_restoring(connection: sqlite3.Connection, *, where: str) -> None:
    connection.execute("begin immediate")
    _require_empty(connection, where=where)
    open_gate(connection, "import")


def _require_empty(connection: sqlite3.Connection, *, where: str) -> None:
    held = [name for (name,) in connection.execute(sql("holdings"))]
    if held:
        raise NotEmpty(where, held)


def _commit(connection: sqlite3.Connection) -> None:
    connection.execute(sql("close_gate"))
    connection.execute("commit")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.rollback()


def _copy(connection: sqlite3.Connection, *, target: sqlite3.Connection) -> None:
    connection.backup(target)


def _replace(connection: sqlite3.Connection, *, source: sqlite3.Connection, where: str) -> None:
    _require_empty(connection, where=where)
    source.backup(connection)


def _given(connection: sqlite3.Connection) -> sqlite3.Connection:
    return connection


def _itself(connection: sqlite3.Connection) -> sqlite3.Connection:
    return connection


def _rows(connection: sqlite3.Connection, *, name: str, parameters: Mapping[str, object]) -> list[dict[str, Any]]:
    with closing(connection.execute(sql(name), dict(parameters))) as cursor:
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def _execute(connection: sqlite3.Connection, *, name: str, facts: Mapping[str, object]) -> None:
    connection.execute(sql(name), dict(facts))


def _write_events(connection: sqlite3.Connection, *, rows: Sequence[Row]) -> None:
    write_rows(connection, "insert_events", rows)


def _by_job(rows: Iterable[Mapping[str, Any]], kind: type[T]) -> defaultdict[UUID, list[T]]:
    found: defaultdict[UUID, list[T]] = defaultdict(list)
    for row in rows:
        found[UUID(row["job_id"])].append(_record(kind, row))
    return found


def _record(kind: type[T], row: Mapping[str, Any]) -> T:
    """The record of a row whose columns have its fields' names."""
    facts = dict(_with_moments(row))
    return msgspec.convert({name: facts[name] for name in kind.__struct_fields__}, kind)


def _with_moments(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if value is not None and (name == "at" or name.endswith("_at")):
            yield name, moment(value)
        else:
            yield name, msgspec.json.decode(value) if name == "job_ids" else value


def _facts(record: msgspec.Struct) -> dict[str, object]:
    """The fields of a record as they lie in a row."""
    return {name: _plain(getattr(record, name)) for name in record.__struct_fields__}


def _plain(value: object) -> object:
    match value:
        case UUID():
            return text(value)
        case datetime():
            return micros(value)
        case bool():
            return int(value)
        case str():
            return str(value)
        case tuple():
            return _encode(value).decode()
    return value


def _job_facts(job: Job, policy_id: int, token: UUID | None) -> dict[str, object]:
    origin = _facts(job.origin) | {"policy_id": policy_id}
    origin["tags"] = None if job.origin.tags is None else _encode(job.origin.tags).decode()
    facts = _facts(job) | origin | {"token": _plain(token)}
    return {name: fact for name, fact in facts.items() if name not in ("origin", "policy")}
