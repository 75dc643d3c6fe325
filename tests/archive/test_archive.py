"""Whole databases over both stores: random ones, in every situation, in order, and forged ones."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tenure.archive.exporter import Exporter
from tenure.archive.format import BrokenArchive
from tenure.errors import StoreError
from tenure.lifecycle.operations import Complete, Heartbeat
from tenure.stores import Store
from tenure.stores.contract import NotRestored
from tenure.stores.postgres import archive as postgres_archive
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite import archive as sqlite_archive
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract.archive import read_all, restore, seen
from tenure.testing.driver import Driver, runner
from tenure.testing.store_check import check_store, whole_tail
from tests.archive.test_format import FORGERIES, Damage, put, summed_up
from tests.property.test_lockstep import (
    Lockstep,
    Side,
    attachments,
    examples,
    model_side,
    plain,
    rows_and_histories,
    sqlite_side,
)
from tests.support.archives import check_and_import
from tests.support.databases import Database
from tests.support.full_database import fill_database
from tests.support.manual_postgres import copied_database, prepared_database
from tests.support.postgres import Postgres
from tests.support.situations import SITUATIONS, Setup


@pytest.fixture(scope="module")
def prepared(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.fixture
def postgres_target(postgres_server: Postgres, prepared: str) -> Iterator[str]:
    with copied_database(postgres_server, prepared) as dsn:
        yield dsn


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def export(store: Store, file: Path) -> list[bytes]:
    """Write it; all lines between header and footer."""
    async with store.archive.snapshot() as snapshot:
        lines = [line async for line in Exporter(snapshot).lines()]
    file.write_bytes(b"".join(lines))
    return lines[1:-1]


async def check_round_trip(store: Store, dsn: str, folder: Path) -> None:
    """From this store to PostgreSQL and back to SQLite: everything is the same at every stop, and verifies."""
    before = plain(await rows_and_histories(store))
    file = folder / "export.jsonl"
    lines = await export(store, file)
    for target in (PostgresStore.from_url(dsn), SqliteStore(folder / "home.db")):
        async with opened(target):
            await check_and_import(target.archive, file)
            await check_store(target)
            assert plain(await rows_and_histories(target)) == before
            assert await export(target, file) == lines
            for job in before[0]:
                there, here = await attachments(target, job_id=job.id), await attachments(store, job_id=job.id)
                assert plain(there) == plain(here)


@pytest.mark.requirement("EH-09", "EL-02")
async def test_jobs_in_every_situation_come_over_as_they_are(tmp_path: Path, postgres_target: str) -> None:
    clock = ManualClock()
    async with opened(SqliteStore(tmp_path / "origin.db", database_clock=clock.now)) as store:
        setup = Setup(Driver(store), clock)
        for situation in SITUATIONS:
            await situation.recipe(setup)
        await check_round_trip(store, postgres_target, tmp_path)


@pytest.mark.requirement("EH-09", "EL-02")
@pytest.mark.timeout(600)
def test_whatever_happened_by_chance_comes_over_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres, prepared: str
) -> None:
    """A model and SQLite are asked the same things at random; then SQLite moves to PostgreSQL and back."""

    def sides(stack: ExitStack, runner: asyncio.Runner) -> list[Side]:
        return [model_side(), sqlite_side(stack, runner)]

    class Moving(Lockstep):
        def __init__(self) -> None:
            super().__init__(sides)

        def teardown(self) -> None:
            try:
                if self.sides:
                    self._move()
            finally:
                super().teardown()

        def _move(self) -> None:
            with copied_database(postgres_server, prepared) as dsn:
                self.runner.run(check_round_trip(self.sides[1].store, dsn, tmp_path_factory.mktemp("moving")))

    run_state_machine_as_test(Moving, settings=examples(25, shrink=False))


@pytest.mark.parametrize(
    ("forge", "expected_text"), FORGERIES, ids=lambda value: value.__name__ if callable(value) else ""
)
async def test_a_forged_export_leaves_a_real_database_empty(
    forge: Damage, expected_text: str, tmp_path: Path, postgres_target: str
) -> None:
    file = tmp_path / "forged.jsonl"
    async with opened(SqliteStore(tmp_path / "origin.db")) as origin:
        await fill_database(origin)
        await export(origin, file)
    lines, _ = forge([line.removesuffix(b"\n") for line in file.read_bytes().splitlines(keepends=True)])
    put(file, summed_up(lines))
    for target in (SqliteStore(tmp_path / "target.db"), PostgresStore.from_url(postgres_target)):
        async with opened(target):
            empty = await seen(target)
            with pytest.raises(BrokenArchive) as broken:
                await check_and_import(target.archive, file)
            assert "; nothing was imported" in str(broken.value)
            assert await seen(target) == empty
            assert (await read_all(target)).records == []


# Order and numbers on PostgreSQL.


async def interleaved(store: Store, rounds: int) -> list[UUID]:
    """Jobs whose events stand in the log in another order than that of their ids, turn about."""
    drive = Driver(store)
    jobs = [await drive.running(kind=f"kind-{number}") for number in range(3)]
    for turn in range(rounds):
        for job in jobs if turn % 2 else reversed(jobs):
            await drive.apply(job.id, Heartbeat(), actor=runner(job))
    return [job.id for job in jobs]


async def test_the_order_of_the_log_is_kept_where_it_is_that_of_transactions(
    tmp_path: Path, postgres_target: str
) -> None:
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(opened(SqliteStore(tmp_path / "origin.db")))
        target = await stack.enter_async_context(opened(PostgresStore.from_url(postgres_target)))
        await interleaved(origin, 20)
        read = await read_all(origin)
        await restore(target, read)
        log = [(event.job_id, event.rev) for event in read.log]
        assert log != sorted(log), "an order that is that of ids would prove nothing"
        for limit in (1000, 7):
            logged = await whole_tail(target, limit=limit, expected=len(log))
            assert [(event.job_id, event.rev) for event in logged] == log


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_young_server_is_given_as_many_numbers_as_the_log_needs(
    postgres_target: str, pooled: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_target
    if pooled:
        url = f"{request.getfixturevalue('pgbouncer').dsn_like(postgres_target)}?pooler=transaction"
    sent: list[str] = []
    execute = asyncpg.Connection.execute

    async def watched(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> str:
        sent.append(query)
        return await execute(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "execute", watched)
    async with opened(PostgresStore.from_url(url)) as target:
        now = _transactions(postgres_target)
        async with target.archive.restore(runs=now + 1500):
            pass
        assert now + 1500 < _transactions(postgres_target)
        assert sent.count(PASS) in (1, 2), "others may have used some up meanwhile"
        async with target.archive.restore(runs=5):
            pass
        assert sent.count(PASS) <= 2, "numbers are used up only where they are needed"


PASS = "call tenure.pass_transactions()"


def _transactions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        [number] = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone() or [0]
        return int(number)


async def test_a_tail_of_an_empty_log_returns_everything_imported_later(tmp_path: Path, postgres_target: str) -> None:
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(opened(SqliteStore(tmp_path / "origin.db")))
        target = await stack.enter_async_context(opened(PostgresStore.from_url(postgres_target)))
        await fill_database(origin)
        position = (await target.tail()).position
        read = await read_all(origin)
        await restore(target, read)
        assert len(await whole_tail(target, after=position, expected=len(read.log))) == len(read.log)


# What the databases themselves refuse.


async def test_the_import_key_is_refused_for_a_file_that_has_jobs(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        await Driver(store).add()
    refused = pytest.raises(sqlite3.IntegrityError, match="only an empty database can be imported into")
    with closing(sqlite3.connect(database.path)) as connection, refused:
        connection.execute("update tenure_writer set writer = 'import'")


async def test_an_import_writes_no_event_where_there_are_jobs_and_no_job_without_its_whole_log(
    postgres_target: str,
) -> None:
    async with opened(PostgresStore.from_url(postgres_target)) as store:
        drive = Driver(store)
        ended = await drive.apply(await drive.running(), Complete("1"))
    event = f"""
        insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor,
            request_id)
        select '{UUID(int=7)}', at, rev, attempt, version, commits, type, from_status, to_status, actor, request_id
        from tenure.events where job_id = '{ended.id}' and rev = 1
    """
    row = f"""
        insert into tenure.jobs select (jsonb_populate_record(null::tenure.jobs,
            to_jsonb(job) || '{{"id": "{UUID(int=7)}"}}')).* from tenure.jobs job where job.id = '{ended.id}'
    """
    for attack, expected_text in (
        (event, "there are jobs"),
        (row, "its log does not lead|its events do not lead to this row"),
    ):
        with psycopg.connect(postgres_target) as connection:
            connection.execute("select set_config('tenure.writer', 'import', true)")
            with pytest.raises(psycopg.Error, match=expected_text):
                connection.execute(attack.encode())


async def test_a_job_in_its_last_state_comes_in_by_an_import_alone(
    postgres_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, written as the store writes, are refused by the guards on births."""

    async def write_as_store(connection: Any) -> None:
        await connection.execute("select set_config('tenure.writer', 'store', true)")

    def set_store_as_writer(connection: sqlite3.Connection, writer: str | None) -> None:
        connection.execute("update tenure_writer set writer = 'store'")

    monkeypatch.setattr(postgres_archive, "_write_as_import", write_as_store)
    monkeypatch.setattr(sqlite_archive, "set_writer", set_store_as_writer)
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(opened(SqliteStore(tmp_path / "origin.db")))
        await fill_database(origin)
        read = await read_all(origin)
        for target in (PostgresStore.from_url(postgres_target), SqliteStore(tmp_path / "target.db")):
            store = await stack.enter_async_context(opened(target))
            with pytest.raises(NotRestored, match=r"begins queued|begins as queued"):
                await restore(store, read)
            assert (await seen(store))["jobs"] == []


async def test_a_database_in_memory_can_be_moved_too(tmp_path: Path) -> None:
    for inline in (True, False):
        origin, target = (SqliteStore(":memory:", inline=inline) for _ in range(2))
        async with opened(origin), opened(target):
            await fill_database(origin)
            file = tmp_path / f"{inline}.jsonl"
            lines = await export(origin, file)
            await check_and_import(target.archive, file)
            assert await export(target, file) == lines
            await check_store(target)
            with pytest.raises(StoreError, match="is not empty"):
                await check_and_import(target.archive, file)
