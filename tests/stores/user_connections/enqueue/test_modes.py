"""Modes of user connections: autocommit, transactions that tenure begins, `run_sync`, few rights, PgBouncer."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import InvalidInput, PayloadRefused, PrivilegeMissing
from tenure.lifecycle.operations import Commit
from tenure.lifecycle.records import Actor, Role
from tenure.stores import JobFilter, store_for
from tenure.stores.contract import Applied, Artifact, OutboxMessage, Request
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.user_connections import django_connections, run_without_loop


def declared(database: Database) -> JobFunction[[str], str]:
    @tenure.App(database.url).job()
    def send(to: str) -> str:
        return to

    return send


async def count(database: Database) -> int:
    store = store_for(database.url)
    await store.open()
    try:
        return len((await store.find(JobFilter())).jobs)
    finally:
        await store.close()


def on_sqlite(database: Database, **settings: Any) -> Any:
    return closing(sqlite3.connect(database.path, **settings))


# A new SQLite file, which `enqueue` would migrate.


@pytest.mark.parametrize("settings", [{}, {"isolation_level": None}], ids=["transaction", "autocommit"])
async def test_a_new_sqlite_file_is_migrated_in_the_users_transaction(tmp_path: Path, settings: Any) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    send = declared(database)
    with on_sqlite(database, **settings) as connection:
        connection.execute("begin")
        connection.execute("create table notes (says text)")
        assert send.within(connection).enqueue_sync("ada").created
        assert connection.in_transaction
        connection.rollback()
        assert connection.execute("select count(*) from sqlite_master").fetchone() == (0,)
        assert send.within(connection).enqueue_sync("ada").created
        connection.commit()
        assert send.within(connection).enqueue_sync("bob").created
        connection.commit()
    assert await count(database) == 2


# Autocommit: each call is a transaction of its own.


def test_psycopg_in_autocommit_mode_queues_at_once(postgres: Database) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        assert declared(postgres).within(connection).enqueue_sync("ada").created
        assert asyncio.run(count(postgres)) == 1


async def test_asyncpg_without_a_transaction_queues_at_once(postgres: Database) -> None:
    connection = await asyncpg.connect(postgres.url)
    assert (await declared(postgres).within(connection).enqueue("ada")).created
    assert await count(postgres) == 1
    await connection.close()


def test_sqlalchemy_in_autocommit_mode_queues_at_once(postgres: Database, sqlite: Database) -> None:
    for database, url in ((postgres, postgres.url.replace("://", "+psycopg://")), (sqlite, sqlite.url)):
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            assert declared(database).within(connection).enqueue_sync("ada").created
            assert asyncio.run(count(database)) == 1
        engine.dispose()


def test_django_outside_of_atomic_queues_at_once(postgres: Database, sqlite: Database) -> None:
    for database in (postgres, sqlite):
        connections = django_connections(database.url)
        assert declared(database).within(connections["default"]).enqueue_sync("ada").created
        assert asyncio.run(count(database)) == 1
        connections.close_all()


def test_sqlite_in_autocommit_mode_queues_at_once_and_leaves_no_transaction(sqlite: Database) -> None:
    modes: list[dict[str, Any]] = [{"isolation_level": None}]
    if sys.version_info >= (3, 12):
        modes.append({"autocommit": True})
    for number, mode in enumerate(modes, start=1):
        with on_sqlite(sqlite, **mode) as connection:
            assert declared(sqlite).within(connection).enqueue_sync("ada").created
            assert not connection.in_transaction
            assert asyncio.run(count(sqlite)) == number


# Synchronous connections inside a running event loop.


@pytest.mark.parametrize("kind", ["psycopg", "session", "sqlite3"])
async def test_a_synchronous_connection_can_be_awaited_too(kind: str, postgres: Database, sqlite: Database) -> None:
    if kind == "sqlite3":
        with on_sqlite(sqlite) as connection:
            await declared(sqlite).within(connection).enqueue("ada")
            assert await count(sqlite) == 0
            connection.commit()
        assert await count(sqlite) == 1
    elif kind == "psycopg":
        with psycopg.connect(postgres.url) as connection:
            await declared(postgres).within(connection).enqueue("ada")
            assert await count(postgres) == 0
        assert await count(postgres) == 1
    else:
        engine = sqlalchemy.create_engine(postgres.url.replace("://", "+psycopg://"))
        with Session(engine) as session, session.begin():
            await declared(postgres).within(session).enqueue("ada")
            assert await count(postgres) == 0
        assert await count(postgres) == 1
        engine.dispose()


async def test_enqueue_sync_uses_a_synchronous_connection_on_a_thread_that_runs_an_event_loop(sqlite: Database) -> None:
    """Unlike the app's own enqueue_sync, it waits for no event loop."""
    with on_sqlite(sqlite) as connection:
        declared(sqlite).within(connection).enqueue_sync("ada")
        connection.commit()
    assert await count(sqlite) == 1


async def test_django_itself_refuses_a_thread_that_runs_an_event_loop(postgres: Database) -> None:
    from django.core.exceptions import SynchronousOnlyOperation

    connection = django_connections(postgres.url)["default"]
    with pytest.raises(SynchronousOnlyOperation):
        await declared(postgres).within(connection).enqueue("ada")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "aiosqlite"])
async def test_a_session_of_run_sync_uses_the_transaction_of_the_async_session(
    driver: str, postgres: Database, sqlite: Database
) -> None:
    database = sqlite if driver == "aiosqlite" else postgres
    send = declared(database)
    engine = create_async_engine(database.url.replace("://", f"+{driver}://"))
    for end, expected in (("rollback", 0), ("commit", 1)):
        async with AsyncSession(engine) as session:
            handle = await session.run_sync(lambda plain: send.within(plain).enqueue_sync("ada"))
            assert handle.created
            assert await count(database) == 0
            await getattr(session, end)()
        assert await count(database) == expected
    await engine.dispose()


# The settings of the connection stay as they were.


@pytest.mark.parametrize("level", ["", "IMMEDIATE", None])
async def test_sqlite_keeps_its_factories_its_mode_and_its_cursors(sqlite: Database, level: str | None) -> None:
    send = declared(sqlite)
    with on_sqlite(sqlite, isolation_level=level) as connection:
        connection.executemany("insert into notes values (?)", [("one",), ("two",)])
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        begun = connection.in_transaction
        reading = connection.execute("select says from notes order by rowid")
        assert reading.fetchone()[0] == b"one"
        send.options(request_id="r").within(connection).enqueue_sync("ada")
        with pytest.raises(tenure.TenureError):
            send.options(request_id="r").within(connection).enqueue_sync("bob")
        assert reading.fetchone()["says"] == b"two"
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
        assert (connection.isolation_level, connection.in_transaction) == (level, begun)
        [row] = connection.execute("select writer from tenure_writer").fetchall()
        assert row["writer"] is None
        connection.commit()
    assert await count(sqlite) == 1


async def test_a_locked_sqlite_file_raises_the_error_of_the_driver_and_leaves_the_connection_as_it_was(
    sqlite: Database,
) -> None:
    with on_sqlite(sqlite, isolation_level=None) as other, on_sqlite(sqlite, timeout=0) as connection:
        other.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            declared(sqlite).within(connection).enqueue_sync("ada")
        assert not connection.in_transaction
        other.execute("rollback")
        declared(sqlite).within(connection).enqueue_sync("ada")
        connection.rollback()
    assert await count(sqlite) == 0


def test_postgres_keeps_the_users_settings(postgres: Database) -> None:
    with psycopg.connect(postgres.url) as connection:
        connection.execute("set timezone = 'Asia/Kolkata'")
        handle = declared(postgres).options(dedupe_key="k").within(connection).enqueue_sync("ada")
        again = declared(postgres).options(dedupe_key="k").within(connection).enqueue_sync("ada")
        assert again.job == handle.job
        settings = "select current_setting('timezone'), current_setting('tenure.writer', true)"
        zone, writer = connection.execute(settings).fetchone() or ("", "")
        assert (zone, writer or "") == ("Asia/Kolkata", "")


# Transactions that tenure begins and ends.


async def marked(transaction: UserTransaction, database: Database) -> Callable[[], Any]:
    """Begin, mark a job as committed, and return a function that reads whether the mark is visible."""
    store = store_for(database.url)
    await store.open()
    drive = Driver(store)
    job = await drive.running()

    async def committed() -> bool:
        await store.open()
        try:
            return (await drive.job(job.id)).committed
        finally:
            await store.close()

    await store.close()
    actor = Actor(Role.RUNNER, "worker-1", job.token)
    request = Request(job=job, operations=(Commit("1"),), actor=actor, request_id=str(job.id), fresh=True)
    await transaction.begin()
    assert isinstance(await transaction.apply(request), Applied)
    return committed


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "aiosqlite", "sqlite3"])
async def test_a_connection_in_autocommit_mode_is_given_a_transaction(
    kind: str, end: str, postgres: Database, sqlite: Database
) -> None:
    connection: Any
    if kind == "asyncpg":
        database, connection = postgres, await asyncpg.connect(postgres.url)
    elif kind == "psycopg":
        database, connection = postgres, await psycopg.AsyncConnection.connect(postgres.url, autocommit=True)
    elif kind == "aiosqlite":
        database, connection = sqlite, await aiosqlite.connect(sqlite.path, isolation_level=None)
    else:
        database, connection = sqlite, sqlite3.connect(sqlite.path, isolation_level=None)
    transaction = UserTransaction(connection, database.url)
    committed = await marked(transaction, database)
    assert not await committed()
    await getattr(transaction.connection, end)()
    assert await committed() == (end == "commit")
    closed = connection.close()
    if closed is not None:
        await closed


@pytest.mark.skipif(sys.version_info < (3, 12), reason="autocommit= came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_transactions_in_both_autocommit_modes_of_python_3_12_are_ended(
    sqlite: Database, autocommit: bool
) -> None:
    mode: dict[str, Any] = {"autocommit": autocommit}
    for end in ("rollback", "commit"):
        connection = sqlite3.connect(sqlite.path, **mode)
        connection.rollback()
        transaction = UserTransaction(connection, sqlite.url)
        committed = await marked(transaction, sqlite)
        await getattr(transaction.connection, end)()
        assert await committed() == (end == "commit")
        connection.close()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_django_is_given_a_transaction_outside_of_atomic(end: str, postgres: Database, sqlite: Database) -> None:
    for database in (postgres, sqlite):
        connections = django_connections(database.url)
        transaction = UserTransaction(connections["default"], database.url)
        send = declared(database)
        run_without_loop(transaction, transaction.begin())
        send.within(connections["default"]).enqueue_sync("ada")
        assert asyncio.run(count(database)) == 0
        run_without_loop(transaction, getattr(transaction.connection, end)())
        assert asyncio.run(count(database)) == int(end == "commit")
        assert connections["default"].get_autocommit()
        connections.close_all()


def begin(connection: Any, url: str) -> None:
    transaction = UserTransaction(connection, url)
    run_without_loop(transaction, transaction.begin())


@pytest.mark.parametrize("where", ["engine", "connection"])
def test_sqlalchemy_in_autocommit_mode_cannot_be_given_a_transaction(
    where: str, postgres: Database, sqlite: Database
) -> None:
    mode: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    for database, url in ((postgres, postgres.url.replace("://", "+psycopg://")), (sqlite, sqlite.url)):
        engine = sqlalchemy.create_engine(url, **(mode if where == "engine" else {}))
        connection = engine.connect().execution_options(**(mode if where == "connection" else {}))
        with connection, pytest.raises(InvalidInput, match="autocommit mode"):
            begin(connection, database.url)
        engine.dispose()


def test_django_keeps_the_autocommit_mode_that_the_user_has_set(sqlite: Database) -> None:
    connection = django_connections(sqlite.url)["default"]
    connection.set_autocommit(False)
    transaction = UserTransaction(connection, sqlite.url)
    run_without_loop(transaction, transaction.begin())
    run_without_loop(transaction, transaction.connection.commit())
    assert not connection.get_autocommit()
    connection.close()


def test_a_connection_inside_atomic_is_refused(sqlite: Database) -> None:
    connection = django_connections(sqlite.url)["default"]
    connection.ensure_connection()
    connection.in_atomic_block = True
    with pytest.raises(InvalidInput, match="inside `atomic`"):
        begin(connection, sqlite.url)


async def test_tenure_does_not_end_a_transaction_that_asyncpg_began(postgres: Database) -> None:
    connection = await asyncpg.connect(postgres.url)
    transaction = UserTransaction(connection, postgres.url)
    async with connection.transaction():
        for step in (transaction.begin, transaction.connection.commit, transaction.connection.rollback):
            with pytest.raises(InvalidInput, match="begun elsewhere"):
                await step()
        assert connection.is_in_transaction()
    await connection.close()


def test_a_connection_inside_a_block_of_psycopg_is_refused(postgres: Database) -> None:
    with psycopg.connect(postgres.url) as connection:
        with connection.transaction(), pytest.raises(InvalidInput, match="only psycopg may end"):
            begin(connection, postgres.url)
        begin(connection, postgres.url)


# Roles with few rights, PgBouncer, and imports.


RIGHTS = """
grant usage on schema tenure to {role};
grant select on all tables in schema tenure to {role};
grant insert on tenure.jobs, tenure.events, tenure.policies, tenure.deduplicated_requests to {role};
"""


RIGHTS_TO_COMMIT = """
grant update on tenure.jobs to {role};
grant insert on tenure.artifacts, tenure.outbox to {role};
grant usage on sequence tenure.outbox_sequence to {role};
"""


async def test_a_role_needs_only_the_rights_that_the_page_names(postgres: Database) -> None:
    role = f"few_rights_{uuid4().hex}"
    send = declared(postgres)
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"create role {role}".encode())
        connection.execute(f"set local role {role}".encode())
        with connection.transaction(force_rollback=True), pytest.raises(PrivilegeMissing):
            send.within(connection).enqueue_sync("ada")
        connection.execute("reset role")
        connection.execute(RIGHTS.format(role=role).encode())
        connection.execute(f"set local role {role}".encode())
        keyed = send.options(dedupe_key="k", request_id="r").within(connection)
        assert (keyed.enqueue_sync("ada").created, keyed.enqueue_sync("ada").created) == (True, False)
        assert not send.options(dedupe_key="k").within(connection).enqueue_sync("ada").created
        connection.execute("reset role")
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_a_role_that_commits_needs_only_the_rights_that_the_page_names(postgres: Database) -> None:
    role = f"few_rights_{uuid4().hex}"
    async with Database(postgres.url).opened() as store:
        job = await Driver(store).running()
        request = Request(
            job=job, operations=(Commit("1"),), actor=Actor(Role.RUNNER, "worker-1", job.token), request_id="mark-1"
        )
        message = OutboxMessage(id=uuid4(), topic="t", body="1", aggregate="a")
        artifact = Artifact(name="a", media_type="x", body=b"1")
        with psycopg.connect(postgres.url) as connection:
            transaction = UserTransaction(connection, postgres.url)
            connection.execute(f"create role {role}".encode())
            connection.execute((RIGHTS + RIGHTS_TO_COMMIT).format(role=role).encode())
            connection.execute(f"set local role {role}".encode())
            await transaction.post([message])
            await transaction.attach(job, [artifact])
            assert isinstance(await transaction.apply(request), Applied)
            connection.execute("reset role")
            connection.execute(f"drop owned by {role}; drop role {role}".encode())
        assert (await store.read([job.id]))[job.id].committed


async def test_jobs_are_enqueued_behind_pgbouncer_in_transaction_mode(postgres_dsn: str, pgbouncer_dsn: str) -> None:
    async with Database(postgres_dsn).opened():
        pass
    send = declared(Database(postgres_dsn))
    with psycopg.connect(pgbouncer_dsn, prepare_threshold=None) as plain:
        for _ in range(7):
            send.within(plain).enqueue_sync("ada")
    pooled = await asyncpg.connect(pgbouncer_dsn, statement_cache_size=0)
    async with pooled.transaction():
        await send.within(pooled).enqueue("ada")
    await pooled.close()
    assert await count(Database(postgres_dsn)) == 8


def test_no_driver_is_imported_before_one_of_its_connections_is_passed() -> None:
    drivers = {"psycopg", "asyncpg", "sqlalchemy", "django", "aiosqlite"}
    code = f"import sys, tenure; print(sorted({drivers} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_call_is_typed_by_the_functions_signature(sqlite: Database) -> None:
    with on_sqlite(sqlite) as connection:
        within = declared(sqlite).within(connection)
        with pytest.raises(PayloadRefused, match="`to`"):
            await within.enqueue(7)  # type: ignore[arg-type]
        with pytest.raises(PayloadRefused, match="`to`"):
            within.enqueue_sync(7)  # type: ignore[arg-type]
