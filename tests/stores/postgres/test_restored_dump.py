"""A database restored into another cluster from a dump, whose log has positions that the cluster has not reached."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

import tenure
from tenure.errors import InvalidInput
from tenure.lifecycle.operations import Complete
from tenure.stores.postgres.grants import grants_sql
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver
from tenure.testing.store_check import whole_tail
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.pages import blocks, shell
from tests.support.postgres import Postgres, PostgresServer, database_of, find_install

JOBS = 12
AHEAD = 20
Place = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump of a database of another cluster, with the order of its log and the position of its end."""

    file: Path
    log: list[Place]
    position: str


def use_up_transactions(dsn: str, thousands: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(thousands):
            connection.execute("call tenure.pass_transactions()")


async def log_of(store: PostgresStore, *, after: str | None = None, expected: int = 0) -> list[Place]:
    """The tail from a position on. Other transactions of the server hold it back: an expected number is waited for."""
    return [(event.job_id, event.rev) for event in await whole_tail(store, after=after, expected=expected)]


@pytest.fixture(scope="module")
def dump(postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dump]:
    dsn = postgres_server.create_database()
    log, position = asyncio.run(_fill(dsn))
    file = tmp_path_factory.mktemp("dump") / "jobs.sql"
    programs = find_install().bin
    subprocess.run([programs / "pg_dump", "--no-owner", f"--file={file}", dsn], check=True, capture_output=True)
    yield Dump(file, log, position)
    postgres_server.drop_database(dsn)


async def _fill(dsn: str) -> tuple[list[Place], str]:
    """Jobs, half of them completed in another order, in a cluster that is far ahead of a new one."""
    store = PostgresStore.from_url(dsn)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    use_up_transactions(dsn, AHEAD)
    jobs = [await drive.running() for _ in range(JOBS)]
    use_up_transactions(dsn, AHEAD)
    for job in reversed(jobs[::2]):
        await drive.apply(job, Complete("1"))

    log = await log_of(store, expected=3 * JOBS + JOBS // 2)
    position = (await store.tail()).position
    await store.close()
    return log, position


@pytest.fixture(scope="module")
def young_cluster() -> Iterator[PostgresServer]:
    with PostgresServer(fsync=False) as server:
        yield server


@pytest.fixture
def restored(young_cluster: PostgresServer, dump: Dump) -> Iterator[str]:
    """The dump in a database of the younger cluster, whose owner has restored it."""
    with young_cluster.owned_database() as dsn:
        psql = [str(find_install().bin / "psql"), "--set=ON_ERROR_STOP=1", "--quiet", f"--file={dump.file}", dsn]
        subprocess.run(psql, check=True, capture_output=True)
        yield dsn


@pytest.fixture
async def store(restored: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore.from_url(restored)
    await store.open()
    yield store
    await store.close()


@pytest.mark.requirement("EH-09")
async def test_a_log_rebased_by_the_guide_is_read_in_the_order_that_it_had(
    restored: str, store: PostgresStore, dump: Dump, tmp_path: Path
) -> None:
    assert await log_of(store) == []
    rebase = blocks("operations.md", "sh")[0]
    assert shell(rebase, folder=tmp_path, TENURE_DATABASE=restored) == f"rebased {len(dump.log) - JOBS} events\n"
    assert await log_of(store, expected=len(dump.log)) == dump.log
    assert command("verify", "--database", restored).code == 0


async def test_doctor_reports_the_restored_log_until_it_is_rebased(restored: str) -> None:
    before = command("doctor", "--database", restored)
    assert before.code == 1
    assert "`tenure migrate rebase`" in before.out
    assert command("migrate", "rebase", "--database", restored).code == 0
    after = command("doctor", "--database", restored)
    assert (after.code, "rebase" in after.out) == (0, False)
    again = command("migrate", "rebase", "--json", "--database", restored)
    assert (again.code, again.json["events"]) == (0, 0)


async def test_events_written_before_the_rebase_come_after_the_restored_ones(
    restored: str, store: PostgresStore, dump: Dump
) -> None:
    drive = Driver(store)
    added = await drive.running()
    assert await log_of(store, expected=3) == [(added.id, 1), (added.id, 2), (added.id, 3)]
    seen = (await store.tail()).position
    assert command("migrate", "rebase", "--database", restored).code == 0
    expected = [*dump.log, (added.id, 1), (added.id, 2), (added.id, 3)]
    assert await log_of(store, expected=len(expected)) == expected
    # A reader that has seen the new events skips none of the restored ones.
    assert await log_of(store, after=seen, expected=len(expected)) == expected
    later = await drive.add()
    assert await log_of(store, expected=len(expected) + 1) == [*expected, (later.id, 1)]


async def test_a_position_of_the_other_cluster_is_refused(restored: str, store: PostgresStore, dump: Dump) -> None:
    assert command("migrate", "rebase", "--database", restored).code == 0
    with pytest.raises(InvalidInput, match="restored from a dump"):
        await store.tail(after=dump.position)
    answer = command("events", "--from", dump.position, "--database", restored)
    assert (answer.code, "read the log from its start" in answer.err) == (2, True)
    assert await log_of(store, after=await store.end()) == []


async def test_workers_continue_while_the_log_is_rebased(restored: str, store: PostgresStore, dump: Dump) -> None:
    app = tenure.App(restored)

    @app.job()
    async def pay(amount: int) -> int:
        return amount

    async with app, working(app):
        rebasing = asyncio.create_task(
            asyncio.to_thread(command, "migrate", "rebase", "--database", restored), name="rebase"
        )
        handles: list[tenure.Handle[int]] = []
        while not rebasing.done():
            handles.append(await pay.enqueue(len(handles)))
        assert (await rebasing).code == 0
        assert [await handle.result(timeout_seconds=60) for handle in handles] == list(range(len(handles)))
    log = await log_of(store, expected=len(dump.log) + len(handles))
    assert log[: len(dump.log)] == dump.log
    for job in {job for job, _ in log}:
        revs = [rev for one, rev in log if one == job]
        assert revs == sorted(revs)
    assert command("verify", "--database", restored).code == 0


async def test_the_log_is_guarded_again_after_a_rebase(restored: str) -> None:
    assert command("migrate", "rebase", "--database", restored).code == 0
    with psycopg.connect(restored, autocommit=True) as owner, pytest.raises(psycopg.Error, match="never changes"):
        owner.execute("update tenure.events set tx = '1'")


def test_only_the_owner_rebases(young_cluster: PostgresServer, restored: str) -> None:
    administrator = young_cluster.dsn(database_of(restored))
    with young_cluster.plain_role(administrator) as role:
        with psycopg.connect(restored, autocommit=True) as owner:
            owner.execute(grants_sql("worker", role).encode())
        worker = young_cluster.dsn(database_of(restored), role=role)
        answer = command("migrate", "rebase", "--database", worker)
    assert answer.code == 3
    assert f"role {role} lacks a privilege" in answer.err
    assert "as the owner" in answer.err


def test_a_database_of_the_same_cluster_needs_no_rebase(database: Database) -> None:
    assert command("migrate", "rebase", "--database", database.url).code == 3
    assert command("migrate", "--database", database.url).code == 0
    answer = command("migrate", "rebase", "--database", database.url)
    assert (answer.code, "has no positions of another cluster" in answer.out) == (0, True)


async def test_a_log_that_is_ahead_in_part_is_rebased_as_a_whole(
    restored: str, store: PostgresStore, dump: Dump
) -> None:
    reached = "select count(*) from tenure.events where tx < pg_snapshot_xmax(pg_current_snapshot())"
    with psycopg.connect(restored, autocommit=True) as owner:
        while owner.execute(reached).fetchall() == [(0,)]:
            owner.execute("call tenure.pass_transactions()")
    added = await Driver(store).add()
    assert 0 < len(await log_of(store)) < len(dump.log)
    assert command("migrate", "rebase", "--database", restored).code == 0
    assert await log_of(store) == [*dump.log, (added.id, 1)]
