"""Commit blocks on SQLite, for which all other writers wait."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import DeadlinePassed, GuardViolated, InvalidInput, StoreError, StoreUnavailable
from tenure.lifecycle.operations import Cancel, Commit, Complete
from tenure.seams import Seams
from tenure.stores.contract import worker_wakeup
from tenure.stores.sqlite import connect
from tenure.stores.sqlite.commit_block import BLOCK_SHARE
from tenure.stores.sqlite.connect import BUSY_SECONDS
from tenure.stores.sqlite.file_lock import WriteLock
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract.commit_blocks import until_late
from tenure.testing.driver import CLIENT, Driver
from tests.support.server_process import wait_until
from tests.support.waiting import eventually

FOR_EVER = "with recursive endless(n) as (select 1 union all select n + 1 from endless) select count(*) from endless"
PLENTY_SECONDS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@asynccontextmanager
async def opened(store: SqliteStore) -> AsyncIterator[SqliteStore]:
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(SqliteStore(path)) as store:
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("create table paid (id integer primary key, who text)")
        yield store


@pytest.fixture
def drive(store: SqliteStore) -> Driver:
    return Driver(store)


async def paid(store: SqliteStore) -> list[object]:
    async with store.transaction(deadline_seconds=1) as tx:
        return [row["id"] for row in await tx.fetch("select id from paid order by id")]


# Time


async def test_a_transaction_is_never_open_for_as_long_as_others_wait(path: Path) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.2)) as store:
        with pytest.raises(DeadlinePassed, match=r"0\.16 s"):
            async with store.transaction(deadline_seconds=3600) as tx:
                await until_late(tx)


async def test_another_program_that_writes_waits_for_a_commit_block_and_then_writes(
    path: Path, store: SqliteStore
) -> None:
    asked = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as other:
            asked.set()
            other.execute("insert into paid (id, who) values (2, 'other')")

    with pytest.raises(DeadlinePassed):
        async with store.transaction(deadline_seconds=3600) as tx:
            await tx.execute("insert into paid (id, who) values (1, 'ada')")
            other = asyncio.create_task(asyncio.to_thread(write))
            await asyncio.to_thread(asked.wait, PLENTY_SECONDS)
            await until_late(tx)
    await asyncio.wait_for(other, PLENTY_SECONDS)
    assert await paid(store) == [2]
    assert BLOCK_SHARE < 1


async def test_a_statement_that_runs_for_ever_is_broken_off(store: SqliteStore, drive: Driver) -> None:
    with pytest.raises(DeadlinePassed):
        async with store.transaction(deadline_seconds=0.1) as tx:
            await tx.execute("insert into paid (id, who) values (1, 'ada')")
            await tx.fetch(FOR_EVER)
    assert await paid(store) == []
    await drive.add()


async def test_a_task_that_is_cancelled_during_a_statement_lets_go_at_once(store: SqliteStore, drive: Driver) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        async with store.transaction(deadline_seconds=3600) as tx:
            await tx.execute("insert into paid (id, who) values (1, 'ada')")
            begun.set()
            await tx.fetch(FOR_EVER)

    task = asyncio.create_task(hang())
    await asyncio.wait_for(begun.wait(), PLENTY_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PLENTY_SECONDS)
    assert await paid(store) == []
    await drive.add()


async def test_a_statement_that_is_given_up_right_before_it_begins_does_not_run_for_ever(store: SqliteStore) -> None:
    async def hang(begun: asyncio.Event) -> None:
        async with store.transaction(deadline_seconds=3600) as tx:
            begun.set()
            await tx.fetch(FOR_EVER)

    for yields in range(20):
        begun = asyncio.Event()
        task = asyncio.create_task(hang(begun))
        await asyncio.wait_for(begun.wait(), PLENTY_SECONDS)
        for _ in range(yields % 4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PLENTY_SECONDS)


async def test_a_task_that_is_cancelled_while_it_waits_for_the_lock_leaves_no_lock(path: Path) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.5)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")

            async def wait() -> None:
                async with store.transaction(deadline_seconds=1):
                    raise AssertionError("another connection has the lock")

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            other.execute("commit")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PLENTY_SECONDS)
        await Driver(store).add()
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.enqueue([Driver(store).enqueue()])


async def test_blocks_and_the_store_get_the_write_lock_in_the_order_of_requests(
    store: SqliteStore, drive: Driver
) -> None:
    first_in, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with store.transaction(deadline_seconds=3) as tx:
            await tx.enqueue([drive.enqueue("first")])
            first_in.set()
            await leave.wait()

    async def block(kind: str) -> None:
        async with store.transaction(deadline_seconds=3) as tx:
            await tx.enqueue([drive.enqueue(kind)])

    holding = asyncio.create_task(hold())
    await asyncio.wait_for(first_in.wait(), PLENTY_SECONDS)
    added = asyncio.create_task(drive.add("second"))
    lock = store._connections._write_lock
    await eventually(lambda: len(lock._waiting) == 1)
    more = [asyncio.create_task(block(kind)) for kind in ("third", "fourth")]
    leave.set()
    await asyncio.wait_for(asyncio.gather(holding, added, *more), PLENTY_SECONDS)
    page = await store.tail()
    order = [(await drive.job(event.job_id)).kind for event in page.events]
    assert order == ["first", "second", "third", "fourth"]


async def test_a_block_without_the_lock_in_time_reports_that_the_file_is_busy(path: Path) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.05)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            with pytest.raises(StoreUnavailable, match="locked"):
                async with store.transaction(deadline_seconds=1):
                    pass
            other.execute("rollback")
    async with opened(SqliteStore(path)) as store, store.transaction(deadline_seconds=3) as tx:
        assert await tx.fetch("select 1 as one") == [{"one": 1}]


def test_the_write_lock_is_granted_in_the_order_of_requests() -> None:
    lock, order = WriteLock(), list[int]()
    lock.acquire()

    def take(number: int) -> None:
        lock.acquire()
        order.append(number)
        lock.release()

    def waiting(threads: int) -> bool:
        return len(lock._waiting) == threads

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        assert wait_until(partial(waiting, number + 1), seconds=PLENTY_SECONDS)
    lock.release()
    for thread in threads:
        thread.join(PLENTY_SECONDS)
    assert order == [0, 1, 2, 3]
    lock.acquire(0)
    with pytest.raises(sqlite3.OperationalError, match="locked by another transaction of this process"):
        lock.acquire(0.01)
    lock.release()
    lock.acquire(0)


# Statements


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("pragma writable_schema = on", InvalidInput),
        ("pragma synchronous = off", InvalidInput),
        ("attach ':memory:' as other", InvalidInput),
        ("/* a */ -- b\n rollback", InvalidInput),
        ("explain commit", InvalidInput),
        ("create temp table tenure_jobs (id)", GuardViolated),
        ("create temp view tenure_writer as select 1", GuardViolated),
        ("drop trigger tenure_events_delete", GuardViolated),
        ("drop table tenure_outbox", GuardViolated),
        ("alter table tenure_jobs add column mine", GuardViolated),
        ("create trigger mine after insert on tenure_jobs begin select 1; end", GuardViolated),
        ("create index mine on tenure_jobs (kind)", GuardViolated),
        ("insert or replace into tenure_writer (only, writer) values (1, 'store')", GuardViolated),
        ("update TENURE_WRITER set writer = 'store'", GuardViolated),
        ("insert into tenure_workers select * from tenure_workers", GuardViolated),
    ],
)
async def test_what_would_break_the_store_is_refused(
    store: SqliteStore, drive: Driver, statement: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("insert into paid (id, who) values (1, 'ada')")
            await tx.enqueue([drive.enqueue()])
            await tx.execute(statement)
    assert await paid(store) == []
    assert (await store.tail()).events == []


async def test_a_users_trigger_cannot_write_the_stores_tables_either(store: SqliteStore) -> None:
    async with store.transaction(deadline_seconds=1) as tx:
        await tx.execute("create trigger sly after insert on paid begin update tenure_writer set writer = 'store'; end")
    with pytest.raises(GuardViolated):
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("insert into paid (id, who) values (1, 'ada')")
    assert await paid(store) == []


@pytest.mark.parametrize("how", ["insert or rollback into paid (id) values (1)", "insert into paid (id) values (-1)"])
async def test_a_statement_that_makes_sqlite_roll_back_leaves_nothing_to_commit_by_itself(
    store: SqliteStore, drive: Driver, how: str
) -> None:
    async with store.transaction(deadline_seconds=1) as tx:
        rolls_back = "begin select raise(rollback, 'no debts'); end"
        await tx.execute(f"create trigger debts before insert on paid when new.id < 0 {rolls_back}")
    with pytest.raises(StoreError, match="nothing of this transaction is kept"):
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("insert into paid (id) values (1)")
            with pytest.raises(sqlite3.IntegrityError):
                await tx.execute(how)
            with pytest.raises(StoreError, match="nothing of this transaction is kept"):
                await tx.execute("insert into paid (id) values (2)")
    assert await paid(store) == []
    await drive.add()


async def test_the_users_foreign_keys_are_enforced_also_deferred_ones(
    store: SqliteStore,
) -> None:
    async with store.transaction(deadline_seconds=1) as tx:
        await tx.execute(
            "create table line (id integer, paid integer references paid(id) deferrable initially deferred)"
        )
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("insert into line values (1, 7)")
    async with store.transaction(deadline_seconds=1) as tx:
        assert await tx.fetch("select * from line") == []
        await tx.execute("insert into line values (1, 7)")
        await tx.execute("insert into paid (id) values (7)")
    assert await paid(store) == [7]


async def test_what_others_committed_before_is_seen_and_the_writer_is_cleared_outside(
    path: Path, store: SqliteStore, drive: Driver
) -> None:
    job = await drive.running()
    async with store.transaction(deadline_seconds=1) as tx:
        await tx.apply(drive.request(job, Commit("1"), fresh=True))
        assert await tx.fetch("select writer from tenure_writer") == [{"writer": None}]
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("select writer from tenure_writer").fetchall() == [(None,)]


# Hints


async def test_wakeups_are_sent_after_the_commit_and_not_after_a_rollback(drive: Driver) -> None:
    job = await drive.running()
    names = ["mail", worker_wakeup("worker-1")]
    async with drive.store.wakeups(names[:1]) as queue, drive.store.wakeups(names[1:]) as worker:
        with pytest.raises(KeyError):
            async with drive.store.transaction(deadline_seconds=1) as tx:
                await tx.enqueue([drive.enqueue(queue="mail")])
                raise KeyError
        assert not await queue.wait(0)
        async with drive.store.transaction(deadline_seconds=1) as tx:
            await tx.enqueue([drive.enqueue(queue="mail")])
            await tx.apply(drive.request(job.id, Cancel(), actor=CLIENT))
        assert await queue.wait(30)
        assert await worker.wait(30)


# One connection for everything


@pytest.mark.parametrize("inline", [True, False])
async def test_in_memory_a_block_keeps_other_work_out(inline: bool) -> None:
    async with opened(SqliteStore(":memory:", inline=inline)) as store:
        drive = Driver(store)
        job = await drive.running()
        inside, leave = asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            async with store.transaction(deadline_seconds=3) as tx:
                await tx.execute("create table mine (x)")
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                inside.set()
                await leave.wait()
                raise KeyError

        failing = asyncio.create_task(fail())
        await asyncio.wait_for(inside.wait(), PLENTY_SECONDS)
        others = [asyncio.create_task(drive.add()), asyncio.create_task(drive.job(job.id))]
        await asyncio.sleep(0)
        assert not any(task.done() for task in others)
        leave.set()
        with pytest.raises(KeyError):
            await asyncio.wait_for(failing, PLENTY_SECONDS)
        added, seen = await asyncio.wait_for(asyncio.gather(*others), PLENTY_SECONDS)
        assert await drive.job(added.id) == added
        assert seen.committed is False
        assert (await drive.apply(job, Complete("2"))).result == "2"


@pytest.mark.parametrize("inline", [True, False])
async def test_in_memory_a_read_inside_a_block_is_refused_and_names_tx(inline: bool) -> None:
    async with opened(SqliteStore(":memory:", inline=inline)) as store:
        job = await Driver(store).add()
        async with store.transaction(deadline_seconds=3):
            with pytest.raises(StoreError, match="use tx"):
                await store.read([job.id])
        assert await Driver(store).job(job.id) == job


async def test_without_threads_a_waiter_rolls_back_an_expired_block() -> None:
    """The clock is moved by its sleepers, as in a simulation, and by nothing else."""
    clock = ManualClock()
    async with opened(SqliteStore(":memory:", seams=Seams(clock=clock), inline=True)) as store:
        drive = Driver(store)
        inside, leave = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            async with store.transaction(deadline_seconds=3) as tx:
                await tx.enqueue([drive.enqueue("lost")])
                inside.set()
                await leave.wait()

        hanging = asyncio.create_task(hang())
        await asyncio.wait_for(inside.wait(), PLENTY_SECONDS)
        await asyncio.wait_for(drive.add(), PLENTY_SECONDS)
        async with store.transaction(deadline_seconds=3) as tx:
            await tx.enqueue([drive.enqueue()])
        leave.set()
        with pytest.raises(DeadlinePassed):
            await hanging
        assert [job.kind for job in (await store.read([e.job_id for e in (await store.tail()).events])).values()] == [
            "mail",
            "mail",
        ]


async def test_a_store_that_is_closed_takes_its_open_transaction_with_it(path: Path, store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable, match="closed"):
        async with store.transaction(deadline_seconds=1) as tx:
            await tx.execute("insert into paid (id) values (1)")
            await store.close()
    await store.open()
    assert await paid(store) == []


class Contended(sqlite3.Connection):
    """A connection whose first attempts to switch the file to WAL fail: another connection does it at the same time."""

    refusals = 0
    code = sqlite3.SQLITE_BUSY

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith("pragma journal_mode") and Contended.refusals > 0:
            Contended.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = Contended.code
            raise error
        return super().execute(sql, *arguments)


@pytest.fixture
def contended(monkeypatch: pytest.MonkeyPatch) -> type[Contended]:
    monkeypatch.setattr(Contended, "refusals", 2)
    monkeypatch.setattr(Contended, "code", sqlite3.SQLITE_BUSY)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Contended))
    return Contended


def test_a_conflict_while_a_new_file_is_switched_to_wal_is_retried(tmp_path: Path, contended: type[Contended]) -> None:
    with closing(connect.connect(str(tmp_path / "jobs.db"))) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    contended.refusals = connect.SWITCH_TRIES
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connect.connect(str(tmp_path / "other.db"))
    assert contended.refusals == 0


def test_a_file_that_cannot_be_switched_is_not_tried_again(tmp_path: Path, contended: type[Contended]) -> None:
    """A disk that is full or broken is reported, even if it would work again soon."""
    contended.code = sqlite3.SQLITE_FULL
    with pytest.raises(sqlite3.OperationalError):
        connect.connect(str(tmp_path / "jobs.db"))
    assert contended.refusals == 1
