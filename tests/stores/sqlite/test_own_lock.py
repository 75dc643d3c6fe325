"""A caller that enqueues while another connection of its process has the write lock may wait for itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from tenure.errors import StoreUnavailable
from tenure.lifecycle.statuses import Status
from tenure.stores.sqlite import own_lock
from tenure.stores.sqlite.own_lock import OwnLockWatch, process_has_write_lock
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.sqlite.transactions import WorkItem
from tenure.testing.driver import Driver

PLENTY_SECONDS = 60
OWN = "locked by an open transaction of this process.*within"

on_linux = pytest.mark.skipif(not own_lock.LOCKS_FILE.exists(), reason="only Linux lists locks with their process")

HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.migrate()
    await store.close()
    return path


@asynccontextmanager
async def opened(store: SqliteStore) -> AsyncIterator[SqliteStore]:
    await store.open()
    try:
        async with asyncio.timeout(PLENTY_SECONDS):
            yield store
    finally:
        await store.close()


@contextmanager
def locked_here(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield connection


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
    finally:
        process.kill()
        process.communicate(timeout=PLENTY_SECONDS)


def waiting_connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def item(*, waits_for_own_process: bool) -> WorkItem:
    return WorkItem(lambda _: None, in_transaction=True, waits_for_own_process=waits_for_own_process)


@on_linux
async def test_the_write_lock_is_recognised_only_in_the_process_that_has_it(path: Path) -> None:
    async with opened(SqliteStore(path)):
        assert not process_has_write_lock(str(path))
        with locked_here(path):
            assert process_has_write_lock(str(path))
        with locked_by_another_process(path):
            assert not process_has_write_lock(str(path))


@on_linux
async def test_an_enqueue_beside_an_open_transaction_of_the_process_names_within(path: Path) -> None:
    # Waiting for as long as for another process would take an hour.
    async with opened(SqliteStore(path, busy_seconds=1200)) as store:
        drive = Driver(store)
        with locked_here(path), pytest.raises(StoreUnavailable, match=OWN):
            await drive.add()
        assert (await drive.add()).status is Status.QUEUED


@on_linux
async def test_other_writes_of_the_batch_wait_for_the_transaction_of_the_process(path: Path) -> None:
    with locked_here(path) as own, closing(waiting_connection(path)) as connection:
        patient, hasty = (item(waits_for_own_process=waits) for waits in (True, False))
        items = [patient, hasty]
        watch = OwnLockWatch(str(path), items)
        for _ in range(2):
            watch.look(connection)
        with pytest.raises(StoreUnavailable, match=OWN):
            await hasty.future
        assert items == [patient]
        assert not patient.future.done()
        own.execute("rollback")


@on_linux
async def test_short_transactions_of_the_process_are_waited_for(path: Path) -> None:
    with locked_here(path) as own, closing(waiting_connection(path)) as connection:
        refused = item(waits_for_own_process=False)
        watch = OwnLockWatch(str(path), [refused])
        for number in range(3):
            watch.look(connection)
            own.execute(f"create table orders_{number} (id)")
            own.execute("commit")
            own.execute("begin immediate")
        watch.look(connection)
        with pytest.raises(StoreUnavailable, match=OWN):
            watch.look(connection)
        with pytest.raises(StoreUnavailable, match=OWN):
            await refused.future


async def test_an_enqueue_waits_for_the_transaction_of_another_process(path: Path) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.05)) as store:
        with locked_by_another_process(path), pytest.raises(StoreUnavailable, match=r"did not answer.*same id"):
            await Driver(store).add()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1: POSIX  ADVISORY  WRITE {pid} fe:00:{inode} 120 120", True),
        ("1: POSIX  ADVISORY  WRITE {pid} fe:00:{inode} 0 EOF", True),
        ("1: POSIX  ADVISORY  READ {pid} fe:00:{inode} 120 120", False),
        ("1: POSIX  ADVISORY  WRITE {pid} fe:00:{inode} 121 121", False),
        ("1: POSIX  ADVISORY  WRITE {pid} fe:00:1{inode} 120 120", False),
        ("1: POSIX  ADVISORY  WRITE 1{pid} fe:00:{inode} 120 120", False),
        ("1: FLOCK  ADVISORY  WRITE {pid} fe:00:{inode} 0 EOF", False),
        ("1: -> POSIX  ADVISORY  WRITE {pid} fe:00:{inode} 120 120", False),
        ("rubbish", False),
    ],
)
def test_a_lock_counts_if_process_file_and_byte_are_the_writers(tmp_path: Path, line: str, expected: bool) -> None:
    shm, locks = tmp_path / "jobs.db-shm", tmp_path / "locks"
    shm.touch()
    locks.write_text(line.format(pid=os.getpid(), inode=shm.stat().st_ino) + "\n")
    assert process_has_write_lock(str(tmp_path / "jobs.db"), locks) is expected


def test_without_a_list_of_locks_no_process_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "jobs.db-shm").touch()
    assert not process_has_write_lock(str(tmp_path / "jobs.db"), tmp_path / "missing")
