"""The harness itself: if these fail, no other test on PostgreSQL proves anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.support.postgres import PgBouncer, Postgres, PostgresServer, database_of
from tests.support.server_process import ServerFailed, is_alive, wait_until

OWN_TABLES = """
select count(*)
from pg_tables
where schemaname not in ('pg_catalog', 'information_schema')
"""
# What another process does that starts a server, and is then killed.
STARTER = """
import time
from tests.support.postgres import PostgresServer

with PostgresServer(fsync=False) as server:
    print(server.pid, server.folder, flush=True)
    time.sleep(60)
"""


def ask(dsn: str, question: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
    return None if row is None else row[0]


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync=False) as server:
        yield server


def test_the_shared_server_answers_with_the_version_that_it_was_chosen_for(postgres_server: Postgres) -> None:
    assert ask(postgres_server.dsn(), "show server_version") == postgres_server.version
    assert ask(postgres_server.socket_dsn(), "show server_version") == postgres_server.version


async def test_asyncpg_connects_over_tcp_and_over_the_socket(postgres_server: Postgres) -> None:
    for dsn in (postgres_server.dsn(), postgres_server.socket_dsn()):
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("select 1") == 1
        await connection.close()


def test_a_new_database_is_empty_and_separate(postgres_server: Postgres, postgres_dsn: str) -> None:
    assert ask(postgres_dsn, OWN_TABLES) == 0
    execute(postgres_dsn, "create table mine (id int)")
    another = postgres_server.create_database()
    assert ask(another, OWN_TABLES) == 0
    postgres_server.drop_database(another)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(another)


def test_a_database_can_be_cloned_from_a_prepared_one(postgres_server: Postgres, postgres_dsn: str) -> None:
    execute(postgres_dsn, "create table prepared as select 42 as answer")
    clone = postgres_server.create_database(template=database_of(postgres_dsn))
    assert ask(clone, "select answer from prepared") == 42
    postgres_server.drop_database(clone)


def test_a_database_is_dropped_although_someone_is_connected(postgres_server: Postgres) -> None:
    dsn = postgres_server.create_database()
    connection = psycopg.connect(dsn)
    postgres_server.drop_database(dsn)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()


def test_a_killed_server_restarts_at_its_address_with_committed_data(own_server: PostgresServer) -> None:
    dsn = own_server.create_database()
    execute(dsn, "create table kept as select 7 as value")
    open_transaction = psycopg.connect(dsn)
    open_transaction.execute("insert into kept values (8)")
    own_server.kill9()
    with pytest.raises(psycopg.OperationalError):
        open_transaction.commit()
    open_transaction.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    own_server.restart()
    assert ask(dsn, "select array_agg(value) from kept") == [7]


def test_a_stopped_server_restarts(own_server: PostgresServer) -> None:
    dsn = own_server.create_database()
    execute(dsn, "create table kept as select 7 as value")
    first_pid = own_server.pid
    own_server.restart()
    assert own_server.pid != first_pid
    assert ask(dsn, "select value from kept") == 7


def test_closing_leaves_neither_process_nor_folder() -> None:
    with PostgresServer(fsync=False) as server:
        pid = server.pid
    assert not is_alive(pid)
    assert not server.folder.exists()


@pytest.mark.parametrize("version", [16, 18])
def test_both_bundled_versions_can_be_started(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_TEST_PG_BIN", raising=False)
    with PostgresServer(version, fsync=False) as server:
        assert ask(server.dsn(), "select current_setting('server_version_num')::int / 10000") == version


def test_fsync_stays_on_unless_it_is_switched_off() -> None:
    with PostgresServer() as server:
        assert ask(server.dsn(), "show fsync") == "on"


def test_a_server_that_does_not_start_is_reported_with_its_log() -> None:
    with (
        pytest.raises(ServerFailed, match="unrecognized configuration parameter"),
        PostgresServer(settings={"no_such_setting": "1"}),
    ):
        pass


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the owner of a process is read from /proc")
def test_no_server_runs_as_root(own_server: PostgresServer) -> None:
    owner = Path(f"/proc/{own_server.pid}").stat().st_uid
    assert owner != 0
    assert owner == own_server.account.uid
    assert os.geteuid() in (0, owner)


def test_a_server_does_not_outlive_the_process_that_started_it() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, cwd=root) as starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        assert is_alive(int(pid))
        starter.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_alive(int(pid)), seconds=20)
    assert wait_until(lambda: not Path(folder).exists(), seconds=20)


async def test_pgbouncer_pools_by_transaction(pgbouncer: PgBouncer, pgbouncer_dsn: str, postgres_dsn: str) -> None:
    connections = [await asyncpg.connect(pgbouncer_dsn, statement_cache_size=0) for _ in range(3)]
    backends = {await connection.fetchval("select pg_backend_pid()") for connection in connections}
    assert len(backends) == 1  # Three clients, one after the other, were served by one connection to the server.
    await connections[0].execute("create table through_the_pooler (id int)")
    assert ask(postgres_dsn, OWN_TABLES) == 1
    for connection in connections:
        await connection.close()


def test_pgbouncer_does_not_outlive_its_block(postgres_server: Postgres, pgbouncer: PgBouncer) -> None:
    with PgBouncer(postgres_server, settings={"default_pool_size": "2"}) as pooler:
        assert ask(pooler.dsn(), "select 1") == 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(pooler.dsn())
    assert not pooler.folder.exists()
