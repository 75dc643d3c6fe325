"""The whole database as it was at one time, and a whole log written into an empty one.

A snapshot is one repeatable-read transaction that writes nothing. An import is one transaction that keeps all other
writers out. The log's order is that of transactions' numbers, so an import gives its events numbers that have passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from tenure.lifecycle.causes import stored_cause
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.records import Event, Job, Policy
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.lifecycle.steps import StepRecord
from tenure.seams import Seams
from tenure.stores.archive_rows import RowReader, columns_of, facts_of
from tenure.stores.archive_tables import ARCHIVE_TABLES
from tenure.stores.contract import Artifact, ArtifactRecord, SignalRecord, UnreadableRow
from tenure.stores.contract.archive import (
    ArchivedJob,
    ArchiveRecord,
    DeduplicatedRequest,
    NotEmpty,
    NotRestored,
    Restore,
    Runs,
    Snapshot,
    StreamRecord,
    Totals,
)
from tenure.stores.contract.outbox import MessageRecord, PendingRecord
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.connections import (
    ABOUT_A_ROW,
    AS_USUAL,
    GUARD_STATE,
    ISOLATION,
    PACKAGE,
    Address,
    Connections,
    Session,
    UnreadableTime,
    fetch,
    fetch_any_time,
    is_unreadable,
)
from tenure.stores.postgres.content import read_content
from tenure.stores.postgres.log_positions import use_up_to
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import NO_ID, events_of, page_of
from tenure.stores.sql_files import numbered

T = TypeVar("T", bound=msgspec.Struct)
Rows = list[dict[str, Any]]

COUNTING_SECONDS_MAX = 3600.0
"""Counting reads a whole index, which may take longer than any other statement may."""

_OF_THE_LOG = ("correlation_id", "trace", "position")
"""Fields of an event that are no columns of its row."""
_NO_FILTER = dict.fromkeys(
    ("statuses", "queues", "kinds", "reasons", "dedupe_key", "submitted_by", "tags", "created_from", "created_until")
)


class PostgresArchive:
    """The archive of one database."""

    def __init__(self, connections: Connections, address: Address, seams: Seams) -> None:
        self._connections, self._address, self._seams = connections, address, seams

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        async with (
            self._connections.session() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(AS_USUAL)
            # The first statement that reads takes the snapshot: this one.
            at = await connection.fetchval("select tenure.clock()")
            yield PostgresSnapshot(connection, at=at)

    @asynccontextmanager
    async def restore(self, *, runs: int) -> AsyncIterator[Restore]:
        async with self._connections.session() as connection:
            await use_up_to(connection, runs)
            async with connection.transaction(isolation=ISOLATION):
                await _write_as_import(connection)
                await fetch(connection, "archive/lock_tables", {})
                if tables := [found["name"] for found in await fetch(connection, "archive/select_nonempty_tables", {})]:
                    raise NotEmpty(self._address.shown, tables)
                mine = await connection.fetchval("select pg_current_xact_id()::text::bigint")
                yield PostgresRestore(connection, self._seams, first_tx=mine - runs)


class PostgresSnapshot:
    """One read transaction, which sees nothing that is committed after it began."""

    store = "postgres"

    def __init__(self, connection: Session, *, at: datetime) -> None:
        self._connection = connection
        self._policies = PostgresPolicies(Within(connection))
        self._reader = RowReader()
        self.at = at

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        return self._reader.unreadable

    async def totals(self) -> Totals:
        [found] = await self._connection.fetch(
            numbered(PACKAGE, "archive/count_rows").sql, timeout=COUNTING_SECONDS_MAX
        )
        return Totals(found["jobs"], found["events"])

    async def records(self, kind: type[ArchiveRecord], *, limit: int) -> AsyncIterator[Sequence[ArchiveRecord]]:
        after = ARCHIVE_TABLES[kind].first_key
        # A lease is no part of a record, and a reader may not read its token.
        columns = ", ".join(kind.__struct_fields__) if kind in (StreamRecord, MessageRecord, PendingRecord) else "*"
        sql = _select_page(ARCHIVE_TABLES[kind].name, tuple(after), columns)
        while page := await self._page(sql, *after.values(), limit):
            after = {key: page[-1][key] for key in after}
            policies = await self._policies.of(page) if kind is ScheduleRecord else {}
            yield [
                record
                for found in page
                for record in self._reader.record(kind, dict(found), partial(self._facts, kind, found, policies))
            ]

    async def _page(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        try:
            return await self._connection.fetch(sql, *arguments)
        except OverflowError:
            return await fetch_any_time(self._connection, sql, *arguments)

    def _facts(
        self, kind: type[ArchiveRecord], found: asyncpg.Record, policies: Mapping[int, Policy]
    ) -> dict[str, Any]:
        for name, value in found.items():
            if isinstance(value, datetime | UnreadableTime) and is_unreadable(value):
                raise ValueError(f"{name} is not a time between the years 1 and 9999")
        policy = policies[found["policy_id"]] if kind is ScheduleRecord else None
        return facts_of(kind, dict(found), policy, self._reader)

    async def log(self, *, limit: int) -> AsyncIterator[Sequence[Event]]:
        after: dict[str, object] = {"tx": 0, "job_id": NO_ID, "rev": 0}
        while page := await self._fetch("events/select_all", {**after, "limit": limit}):
            after = {key: page[-1][key] for key in after}
            events, unreadable = events_of(page)
            self._reader.add(*unreadable)
            yield events

    async def jobs(self, *, limit: int) -> AsyncIterator[Sequence[ArchivedJob]]:
        after: UUID | None = None
        while True:
            rows = await self._fetch("jobs/select_page", {**_NO_FILTER, "after": after, "limit": limit + 1})
            page = await page_of(self._policies, rows, limit)
            self._reader.add(*page.unreadable)
            yield await self._reader.archived(page.jobs, self._kept)
            if (after := page.after) is None:
                return

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await _histories(self._connection, job_ids)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        found = await self._fetch("artifacts/select", {"job_id": job_id, "name": name})
        return Artifact(**found[0]) if found else None

    async def steps(self, job_id: UUID, *, limit: int) -> AsyncIterator[Sequence[StepRecord]]:
        """Through a cursor: the rows of a job are sorted once, and few of them are here at a time."""
        cursor = await self._connection.cursor(numbered(PACKAGE, "steps/select_of_job").sql, job_id)
        while page := await cursor.fetch(limit):
            yield [row.step_from(found) for found in page]

    async def _kept(self, jobs: Sequence[Job]) -> list[ArchivedJob]:
        ids = {"ids": [job.id for job in jobs]}
        letters = {
            found["job_id"]: row.dead_letter_from(found) for found in await self._fetch("dead_letters/select", ids)
        }
        signals: defaultdict[UUID, list[SignalRecord]] = defaultdict(list)
        for found in await self._fetch("signals/select", ids):
            signals[found["job_id"]].append(row.signal_from(found))
        deduplicated = _by_job(await self._fetch("deduplicated_requests/select", ids), DeduplicatedRequest)
        artifacts = _by_job(await self._fetch("artifacts/select_records", ids), ArtifactRecord)
        steps = {found["job_id"]: found["count"] for found in await self._fetch("steps/count", ids)}
        return [
            ArchivedJob(
                job=job,
                dead_letter=letters.get(job.id),
                signals=tuple(signals[job.id]),
                deduplicated_requests=tuple(deduplicated[job.id]),
                artifacts=tuple(artifacts[job.id]),
                step_count=steps.get(job.id, 0),
            )
            for job in jobs
        ]

    async def _fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        return await fetch(self._connection, name, values)


class PostgresRestore:
    """One transaction that writes as an import."""

    def __init__(self, connection: Session, seams: Seams, *, first_tx: int) -> None:
        self._connection, self._seams, self._first_tx = connection, seams, first_tx
        self._runs = Runs()
        self._policies = PostgresPolicies(Within(connection, restores_writer=True))

    async def write_records(self, records: Sequence[ArchiveRecord]) -> None:
        for kind in dict.fromkeys(type(record) for record in records):
            places = [place for place, record in enumerate(records) if type(record) is kind]
            await self._insert(
                ARCHIVE_TABLES[kind].name, [await self._columns(records[place]) for place in places], places
            )
            if kind is MessageRecord:
                await fetch(self._connection, "outbox/restore_sequence", {})

    async def write_events(self, events: Sequence[Event]) -> None:
        await self._insert("events", [self._event_facts(event) for event in events], range(len(events)))

    async def write_jobs(self, kept: Sequence[ArchivedJob]) -> None:
        facts = [await self._job_facts(one.job) for one in kept]
        letters = [(place, one.dead_letter) for place, one in enumerate(kept) if one.dead_letter is not None]
        signals = [(place, signal) for place, one in enumerate(kept) for signal in one.signals]
        deduplicated = [(place, request) for place, one in enumerate(kept) for request in one.deduplicated_requests]
        await self._insert_of_jobs("dead_letters", kept, letters, erased="last_error")
        await self._insert_of_jobs("signals", kept, signals, erased="payload")
        await self._insert_of_jobs("deduplicated_requests", kept, deduplicated)
        await self._insert("jobs", facts, range(len(kept)))

    async def write_artifact(self, record: ArtifactRecord, body: bytes) -> None:
        values = {**_facts(record), "body": body}
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        sql = f"insert into tenure.artifacts ({', '.join(values)}) values ({places})"  # noqa: S608  names of columns of ours
        try:
            async with self._connection.transaction():
                await self._connection.execute(sql, *values.values())
        except asyncpg.PostgresError as problem:
            raise _refusal(problem, 0) from problem

    async def write_steps(self, steps: Sequence[StepRecord]) -> None:
        rows = [{name: fact for name, fact in _facts(step).items() if name != "number"} for step in steps]
        await self._insert("steps", rows, range(len(steps)))

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await _histories(self._connection, job_ids)

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await read_content(Within(self._connection), job_ids)

    async def missing_job(self) -> UUID | None:
        found = await fetch(self._connection, "events/select_orphan", {})
        return found[0]["job_id"] if found else None

    async def _insert_of_jobs(
        self, table: str, kept: Sequence[ArchivedJob], placed: Sequence[tuple[int, msgspec.Struct]], *, erased: str = ""
    ) -> None:
        """What erasure has emptied is null here, and the text `null` in records."""
        facts = [_facts(record) for _, record in placed]
        for (place, _), one in zip(placed, facts, strict=True):
            if erased and kept[place].job.erased_at is not None:
                one[erased] = None
        await self._insert(table, facts, [place for place, _ in placed])

    async def _insert(self, table: str, rows: Rows, places: Sequence[int]) -> None:
        """All rows in one statement; where that is refused, one by one, to find the row that is."""
        if not rows:
            return
        try:
            async with self._connection.transaction():
                await self._connection.execute(_insert(table, tuple(rows[0])), msgspec.json.encode(rows).decode())
        except asyncpg.PostgresError as problem:
            refusal = _refusal(problem, places[0])
            if len(rows) == 1 or not isinstance(refusal, NotRestored):
                raise refusal from problem
            for one, place in zip(rows, places, strict=True):
                await self._insert(table, [one], [place])
            raise refusal from problem

    async def _columns(self, record: ArchiveRecord) -> dict[str, Any]:
        columns = columns_of(record)
        if (policy := columns.pop("policy", None)) is not None:
            columns["policy_id"] = await self._policies.number(policy)
        return columns

    def _event_facts(self, event: Event) -> dict[str, Any]:
        facts = {name: fact for name, fact in _facts(event).items() if name not in _OF_THE_LOG}
        facts["cause"] = stored_cause(event.type, event.cause)
        return {**facts, "tx": self._first_tx + self._runs.place(event)}

    async def _job_facts(self, job: Job) -> dict[str, Any]:
        origin = _facts(job.origin) | {"policy_id": await self._policies.number(job.policy)}
        tags = job.origin.tags
        origin["tags"] = None if tags is None else msgspec.json.encode(tags, order="sorted").decode()
        facts = _facts(job) | origin | {"token": self._seams.random.token() if job.leased else None}
        if job.erased_at is not None:
            facts["payload"] = None
        return {name: fact for name, fact in facts.items() if name not in ("origin", "policy")}


class Within:
    """Statements by name inside one transaction. The function that inserts policies sets the writer to the store, so an
    import sets its own writer again afterwards."""

    def __init__(self, connection: Session, *, restores_writer: bool = False) -> None:
        self._connection, self._restores_writer = connection, restores_writer

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        found = await fetch(self._connection, name, values)
        if self._restores_writer:
            await _write_as_import(self._connection)
        return found


async def _write_as_import(connection: Session) -> None:
    await connection.execute("select set_config('tenure.writer', 'import', true)")


async def _histories(connection: Session, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
    found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
    for answer in await fetch(connection, "events/select_history", {"ids": list(job_ids)}):
        found[answer["job_id"]].append(row.event_from(answer))
    return found


def _select_page(table: str, keys: tuple[str, ...], columns: str) -> str:
    """A page of rows in the order of their keys, after the given ones."""
    after = ", ".join(f"${number}" for number in range(1, len(keys) + 1))
    order = ", ".join(keys)
    where = f"({order}) > ({after})"
    limit = f"${len(keys) + 1}"
    return f"select {columns} from tenure.{table} where {where} order by {order} limit {limit}"  # noqa: S608  as below


def _insert(table: str, columns: tuple[str, ...]) -> str:
    """Inserts rows that are given as JSON, in their order. Guards require that the session is an import.

    The previous status of a job is that of its last event.
    """
    names, values = ", ".join(columns), ", ".join(f"given.{name}" for name in columns)
    rows = f"from json_populate_recordset(null::tenure.{table}, $1::json) given"
    if table == "jobs":
        names, values = f"{names}, previous_status, transition_count", f"{values}, event.from_status, 1"
        rows += " left join tenure.log event on event.job_id = given.id and event.rev = given.rev"
    return f"insert into tenure.{table} ({names}) select {values} {rows}"


def _refusal(problem: asyncpg.PostgresError, place: int) -> Exception:
    """A record that the guards or constraints refuse; any other error stays what it is."""
    if problem.sqlstate == GUARD_STATE or isinstance(problem, ABOUT_A_ROW):
        return NotRestored(place, str(problem))
    return problem


def _by_job(found: Iterable[asyncpg.Record], kind: type[T]) -> defaultdict[UUID, list[T]]:
    records: defaultdict[UUID, list[T]] = defaultdict(list)
    for one in found:
        records[one["job_id"]].append(_record(kind, one))
    return records


def _record(kind: type[T], found: asyncpg.Record) -> T:
    """The record of a row whose columns have its fields' names."""
    return msgspec.convert({name: found[name] for name in kind.__struct_fields__}, kind)


def _facts(record: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(record)
