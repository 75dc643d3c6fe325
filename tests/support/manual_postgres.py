"""PostgreSQL databases with tenure's schema and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tenure.stores.postgres.store import PostgresStore
from tenure.testing.clock import START
from tests.support.postgres import Postgres, database_of

STAND_STILL = """
create table tenure.test_clock (at timestamptz not null);
insert into tenure.test_clock values (%(start)s);
create or replace function tenure.clock() returns timestamptz
    language sql volatile as 'select at from tenure.test_clock';
"""
ADVANCE = "update tenure.test_clock set at = at + make_interval(secs => %(seconds)s)"


class PostgresClock:
    """Sets the time that `tenure.clock()` returns in one database."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    def advance(self, seconds: float) -> None:
        self._connection.execute(ADVANCE, {"seconds": seconds})

    def close(self) -> None:
        self._connection.close()


@contextmanager
def prepared_database(server: Postgres) -> Iterator[str]:
    """The name of a migrated, empty database with a manual clock, to be cloned, which is faster than migrating."""
    dsn = server.create_database()
    asyncio.run(_migrate(dsn))
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(STAND_STILL, {"start": START})
    try:
        yield database_of(dsn)
    finally:
        server.drop_database(dsn)


@contextmanager
def copied_database(server: Postgres, prepared: str) -> Iterator[str]:
    """The address of a clone."""
    dsn = server.create_database(template=prepared)
    try:
        yield dsn
    finally:
        server.drop_database(dsn)


EMPTY = """
set lock_timeout = '20s';
set session_replication_role = replica;
do $$
declare one text;
begin
    for one in
        select format('tenure.%%I', tablename) from pg_tables
        where schemaname = 'tenure' and tablename not in ('migrations', 'meta', 'test_clock', 'jobs')
    loop
        execute 'delete from ' || one;
    end loop;
end $$;
truncate tenure.jobs;
update tenure.test_clock set at = %(start)s;
drop schema public cascade;
create schema public;
"""
"""Rows are deleted, which is fast for few of them; jobs are truncated, since claims would read the dead rows."""


def make_empty(dsn: str) -> None:
    """Restore a clone to its initial state, which is much faster than another clone."""
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(EMPTY, {"start": START})


async def _migrate(dsn: str) -> None:
    store = PostgresStore.from_url(dsn)
    await store.migrate()
    await store.close()
