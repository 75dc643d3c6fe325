"""Fills a database with many valid jobs: copies of one job that the store has queued, or has run to its end.

A copy has its own id, its own events, and times some weeks ago. Everything else is as the store wrote it, so that
`tenure verify` reports no problem. Guards are disabled while copies are written, which requires the owner of the
database. A transaction writes about a thousand copies, as `enqueue_many` does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import asyncpg

from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Origin, Policy, Role
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.stores.contract import Applied, ClaimRequest, EnqueueRequest, Request, Store

KIND = "growth"
AGE = timedelta(days=40)
SPACING = timedelta(milliseconds=50)
"""The time between two copies. The first one is as old as AGE, so that there can be about seventy million."""
POSTGRES_BATCH, SQLITE_BATCH = 1_000, 50_000
MICROSECOND = timedelta(microseconds=1)
CLIENT = Actor(Role.CLIENT, "bench")


def payload_of(payload_bytes: int) -> str:
    """JSON text of this many bytes.

    >>> payload_of(20)
    '{"text":"xxxxxxxxx"}'
    """
    frame = '{"text":""}'
    return f'{{"text":"{"x" * (payload_bytes - len(frame))}"}}'


def origin(queue: str, payload: str) -> Origin:
    return Origin(id=SYSTEM.random.job_id(), kind=KIND, queue=queue, payload=payload, policy=Policy())


class Filler(Protocol):
    """Writes copies. Each call continues where the previous one ended."""

    async def fill(self, count: int, *, queue: str, payload: str, finished: bool) -> None: ...


async def template(url: str, *, queue: str, payload: str, finished: bool) -> str:
    """A job as the store writes it, queued or succeeded, as JSON text."""
    store = store_for(url)
    await store.open()
    try:
        [added] = await store.enqueue([EnqueueRequest(origin(queue, payload), CLIENT)])
        if finished:
            await _finish(store, queue)
        return str(added.job.id)
    finally:
        await store.close()


async def _finish(store: Store, queue: str) -> None:
    token, worker = SYSTEM.random.token(), f"filler-{SYSTEM.random.name()}"
    asked = ClaimRequest(
        queues=(queue,), kinds=(KIND,), limit=1, worker=worker, token=token, request_id=f"claim-{token}"
    )
    [job] = await store.claim(asked)
    done = Request(
        job=job, operations=(Complete("null"),), actor=Actor(Role.RUNNER, worker, token), request_id="complete"
    )
    [outcome] = await store.apply([done])
    assert isinstance(outcome, Applied), f"the template was not completed: {outcome}"


def batches(start: int, count: int, batch: int) -> list[tuple[int, int]]:
    """The first and the last number of each batch of copies.

    >>> batches(10, 5, 2)
    [(10, 11), (12, 13), (14, 14)]
    """
    end = start + count
    return [(first, min(first + batch, end) - 1) for first in range(start, end, batch)]


def copied(columns: Sequence[str], own: dict[str, str], shifted: str) -> str:
    """The SQL value of each column of a copy: its own, the template's shifted in time, or the template's."""
    return ", ".join(
        own.get(name) or (shifted.format(name) if name.endswith("_at") or name == "at" else f"template.{name}")
        for name in columns
    )


class PostgresFiller:
    """Writes a thousand copies with one statement, which inserts jobs and events."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._next = 0

    async def fill(self, count: int, *, queue: str, payload: str, finished: bool) -> None:
        """Write the copies, then run VACUUM, ANALYZE and a checkpoint."""
        wanted = batches(self._next, count, POSTGRES_BATCH)
        self._next += count
        source = await template(self._url, queue=queue, payload=payload, finished=finished) if count else None
        connection = await asyncpg.connect(self._url, command_timeout=3600)
        try:
            await connection.execute("set session_replication_role = replica; set synchronous_commit = off")
            copying = await connection.prepare(await self._statement(connection))
            for first, last in wanted:
                await copying.fetch(source, first, last)
            await connection.execute("vacuum (analyze) tenure.jobs")
            await connection.execute("vacuum (analyze) tenure.events")
            await connection.execute("checkpoint")
        finally:
            await connection.close()

    async def _statement(self, connection: asyncpg.Connection) -> str:
        jobs, events = await self._columns(connection, "jobs"), await self._columns(connection, "events")
        events.remove("tx")
        shifted = "template.{} + (fresh.at - source.created_at)"
        own_request = "case when template.request_id = $1::text then fresh.id::text else template.request_id end"
        return f"""
            with source as materialized (
                select created_at from tenure.jobs where id = $1::text::uuid
            ),
            clock as materialized (
                select number, now() - interval '{AGE.total_seconds()} s'
                    + number * interval '{SPACING.total_seconds()} s' as at
                from generate_series($2::bigint, $3::bigint) number
            ),
            fresh as materialized (
                select overlay(overlay(gen_random_uuid()::text
                    placing substr(stamp, 1, 8) || '-' || substr(stamp, 9, 4) from 1 for 13)
                    placing '7' from 15 for 1)::uuid as id, at
                from (select at, lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0') as stamp
                      from clock) stamped
                order by at
            ),
            copies as (
                insert into tenure.jobs ({", ".join(jobs)})
                select {copied(jobs, {"id": "fresh.id"}, shifted)}
                from fresh, source, tenure.jobs template
                where template.id = $1::text::uuid
            )
            insert into tenure.events ({", ".join(events)})
            select {copied(events, {"job_id": "fresh.id", "request_id": own_request}, shifted)}
            from fresh, source, tenure.events template
            where template.job_id = $1::text::uuid
        """

    @staticmethod
    async def _columns(connection: asyncpg.Connection, table: str) -> list[str]:
        rows = await connection.fetch(
            "select column_name from information_schema.columns "
            "where table_schema = 'tenure' and table_name = $1 order by ordinal_position",
            table,
        )
        return [row["column_name"] for row in rows]


class SqliteFiller:
    """Writes fifty thousand copies with two statements. Triggers are dropped for that time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0

    async def fill(self, count: int, *, queue: str, payload: str, finished: bool) -> None:
        if not count:
            return
        source = await template(f"sqlite:///{self._path}", queue=queue, payload=payload, finished=finished)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("pragma synchronous = off")
            connection.execute("pragma temp_store = memory")
            connection.execute("pragma cache_size = -500000")
            triggers = connection.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
            for name, _ in triggers:
                connection.execute(f'drop trigger "{name}"')
            for first, last in batches(self._next, count, SQLITE_BATCH):
                self._copy(connection, source, first, last)
            for _, sql in triggers:
                connection.execute(sql)
            connection.execute("pragma wal_checkpoint(truncate)")
        self._next += count

    def _copy(self, connection: sqlite3.Connection, source: str, first: int, last: int) -> None:
        jobs, events = (self._columns(connection, name) for name in ("tenure_jobs", "tenure_events"))
        events.remove("position")
        shifted = "template.{} + fresh.at - source.created_at"
        own_request = "iif(template.request_id = :source, fresh.id, template.request_id)"
        connection.execute("begin immediate")
        connection.execute("create temp table if not exists fresh (id text, at integer)")
        connection.execute("delete from fresh")
        connection.execute(FRESH_IN_SQLITE, {"source": source, "first": first, "last": last})
        connection.execute(
            f"insert into tenure_jobs ({', '.join(jobs)}) select {copied(jobs, {'id': 'fresh.id'}, shifted)} "
            "from fresh, tenure_jobs source, tenure_jobs template where source.id = :source and template.id = :source",
            {"source": source},
        )
        connection.execute(
            f"insert into tenure_events ({', '.join(events)}) "
            f"select {copied(events, {'job_id': 'fresh.id', 'request_id': own_request}, shifted)} "
            "from tenure_jobs source, fresh cross join tenure_events template "
            "where source.id = :source and template.job_id = :source",
            {"source": source},
        )
        connection.execute("commit")

    @staticmethod
    def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
        return [name for _, name, *_ in connection.execute(f"pragma table_info({table})")]


FRESH_IN_SQLITE = f"""
    insert into fresh (id, at)
    with recursive numbers(number) as (
        select :first union all select number + 1 from numbers where number < :last
    ),
    copy_times(at) as (
        select unixepoch() * 1000000 - {AGE // MICROSECOND} + number * {SPACING // MICROSECOND} from numbers
    )
    select printf('%08x-%04x-7%03x-a%03x-%012x', at / 1000 >> 16, at / 1000 & 65535,
        random() & 4095, random() & 4095, random() & 281474976710655), at
    from copy_times
"""


def filler_for(url: str) -> Filler:
    """The filler for this kind of database."""
    return SqliteFiller(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite") else PostgresFiller(url)
