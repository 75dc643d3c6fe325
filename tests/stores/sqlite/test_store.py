"""What only SQLite has to show: one writer, one file, several processes, and the places where it must not be put."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from tenure.errors import (
    InvalidInput,
    RequestIdReused,
    RowPoisoned,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from tenure.lifecycle.decide import decide_chain, expand
from tenure.lifecycle.operations import Cancel, Claim, Complete, Heartbeat, Progress, RequestCancel, Signal, Start
from tenure.lifecycle.records import EventType, Job, Policy
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import JoinHandle, Seams, SystemSpawner
from tenure.stores import store_for
from tenure.stores.contract import Applied, EventFilter, Failure, JobFilter, JobPage
from tenure.stores.sqlite import transactions
from tenure.stores.sqlite.connect import connect
from tenure.stores.sqlite.statements import sql
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.sqlite.transactions import SerialConnection
from tenure.stores.sqlite.writer_thread import ConnectionThread
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver, errors_of, prune_finished, runner

CHILD_SECONDS_MAX = 60

PREAMBLE = """
import asyncio, json, os, sys
from datetime import UTC, datetime
from tenure.errors import TenureError
from tenure.lifecycle.operations import Complete
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver
path = sys.argv[1]
"""


def child(script: str, path: Path) -> subprocess.Popen[str]:
    """Another process that has the file's path as its argument."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(children: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Their output, once all have ended without error."""
    try:
        outputs = [process.communicate(timeout=CHILD_SECONDS_MAX) for process in children]
    finally:
        for process in children:
            if process.poll() is None:
                process.kill()
                process.wait()
    assert [process.returncode for process in children] == [0] * len(children), outputs
    return [out.strip() for out, _ in outputs]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def drive(store: SqliteStore) -> Driver:
    return Driver(store)


def commits_in(path: Path) -> int:
    """How many transactions the WAL holds: the frames that end one have the size of the file."""
    wal = Path(f"{path}-wal").read_bytes()
    page_bytes, salts = struct.unpack(">I", wal[8:12])[0], wal[16:24]
    frames = range(32, len(wal) - 23, 24 + page_bytes)
    return sum(
        1 for at in frames if wal[at + 8 : at + 16] == salts and struct.unpack(">I", wal[at + 4 : at + 8])[0] > 0
    )


# One writer


async def test_what_waits_together_is_committed_together(path: Path, drive: Driver) -> None:
    await drive.add()
    before = commits_in(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        waiting = [asyncio.create_task(drive.add()) for _ in range(50)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        other.execute("rollback")
    jobs = await asyncio.gather(*waiting)
    # The first may have been on its way alone; all that waited behind it went together.
    assert commits_in(path) - before <= 2
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select count(*) from tenure_jobs").fetchone() == (51,)
    assert len({job.id for job in jobs}) == 50


async def test_nothing_is_answered_before_it_is_durable(path: Path, drive: Driver) -> None:
    job = await drive.add()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select id from tenure_jobs").fetchall() == [(str(job.id),)]


async def test_an_error_of_one_call_does_not_affect_another_in_the_same_transaction(drive: Driver) -> None:
    await drive.add(request_id="once", payload="1")
    results = await asyncio.gather(
        drive.add(), drive.add(request_id="once", payload="2"), drive.add(), return_exceptions=True
    )
    assert [type(result).__name__ for result in results] == ["Job", "RequestIdReused", "Job"]


async def test_a_policy_that_was_rolled_back_is_kept_with_the_next_job(path: Path, drive: Driver) -> None:
    await drive.add(request_id="once", payload="1")
    unusual = {"max_attempts": 17, "on_exhausted": "fail"}
    with pytest.raises(RequestIdReused):
        await drive.store.enqueue([drive.enqueue(policy=unusual), drive.enqueue(request_id="once", payload="2")])
    job = await drive.add(policy=unusual)
    other = SqliteStore(path)
    await other.open()
    assert (await other.read([job.id]))[job.id].policy == Policy(max_attempts=17, on_exhausted="fail")
    await other.close()


async def test_loops_of_several_threads_share_one_store(store: SqliteStore) -> None:
    def in_a_loop_of_its_own() -> list[UUID]:
        async def add_some() -> list[UUID]:
            return [(await Driver(store).add()).id for _ in range(10)]

        return asyncio.run(add_some())

    ids = await asyncio.gather(*(asyncio.to_thread(in_a_loop_of_its_own) for _ in range(4)))
    assert len(await store.read([id_ for some in ids for id_ in some])) == 40


async def test_a_cancelled_caller_does_not_disturb_the_writer_thread(path: Path, drive: Driver) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        task = asyncio.create_task(drive.add())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.execute("rollback")
    assert (await drive.add()).status is Status.QUEUED


async def test_a_closed_store_is_an_error(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    await store.open()
    await store.close()
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.read([])
    await store.open()
    assert await store.read([]) == {}
    await store.close()


async def test_the_wal_is_written_back_when_it_has_grown(path: Path) -> None:
    store = SqliteStore(path, wal_bytes_max=200_000)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    for _ in range(20):
        await store.enqueue([drive.enqueue(payload=json.dumps("x" * 1000)) for _ in range(20)])
        assert transactions.wal_bytes(str(path)) < 1_000_000
    await store.close()
    assert transactions.wal_bytes(str(path)) == 0


async def test_a_checkpoint_that_a_reader_holds_up_loses_nothing(path: Path, drive: Driver) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, closing(connect(str(path))) as writer:
        reader.execute("begin")
        assert reader.execute("select count(*) from tenure_jobs").fetchone() == (0,)
        job = await drive.add()
        assert not transactions.checkpoint(writer)
        reader.execute("commit")
        assert transactions.checkpoint(writer)
    assert await drive.job(job.id) == job


async def test_a_reader_that_stays_does_not_make_each_write_wait_for_a_checkpoint(path: Path, drive: Driver) -> None:
    """After one that was held up, the next is tried when the WAL has grown by as much again."""
    wal_bytes_max = 100_000
    tries: list[int] = []

    def note(statement: str) -> None:
        if "wal_checkpoint" in statement:
            tries.append(transactions.wal_bytes(str(path)))

    writing = transactions.WriteTransactions(
        str(path), wal_bytes_max=wal_bytes_max, has_schema=lambda: True, rolled_back=lambda: None
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, closing(connect(str(path))) as writer:
        writer.set_trace_callback(note)
        reader.execute("begin")
        reader.execute("select count(*) from tenure_jobs").fetchone()
        for _ in range(60):
            await drive.add(payload=json.dumps("x" * 10_000))
            writing.committed(writer)
        grown = transactions.wal_bytes(str(path))
        assert 2 <= len(tries) <= grown // wal_bytes_max
        assert all(later - earlier > wal_bytes_max for earlier, later in itertools.pairwise([0, *tries]))
        reader.execute("commit")
        while transactions.wal_bytes(str(path)) >= grown:
            await drive.add(payload=json.dumps("x" * 10_000))
            writing.committed(writer)
            assert transactions.wal_bytes(str(path)) < grown + 2 * wal_bytes_max
        # No reader prevents the checkpoint any more.
        tries.clear()
        while not tries:
            await drive.add(payload=json.dumps("x" * 10_000))
            writing.committed(writer)
        assert tries[0] < 2 * wal_bytes_max


class CountingSpawner(SystemSpawner):
    """Starts threads, and remembers the name of each. The first few it cannot start."""

    def __init__(self, *, failures: int = 0) -> None:
        self.names: list[str] = []
        self.failures = failures

    def thread(self, body: Callable[[], None], *, name: str) -> JoinHandle:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("can't start new thread")
        self.names.append(name)
        return super().thread(body, name=name)


async def test_a_store_that_several_open_at_once_has_one_writer(path: Path, store: SqliteStore) -> None:
    spawn = CountingSpawner()
    other = SqliteStore(path, seams=Seams(spawn=spawn))
    await asyncio.gather(*(other.open() for _ in range(8)))
    assert sorted(spawn.names) == ["tenure-sqlite-reader", "tenure-sqlite-writer"]
    await Driver(other).add()
    await other.close()
    await other.open()
    assert len(spawn.names) == 4
    await other.close()


async def test_loops_of_several_threads_open_one_store(path: Path, store: SqliteStore) -> None:
    spawn = CountingSpawner()
    other = SqliteStore(path, seams=Seams(spawn=spawn))
    await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(other.open())) for _ in range(4)))
    assert sorted(spawn.names) == ["tenure-sqlite-reader", "tenure-sqlite-writer"]
    await other.close()


async def test_a_store_that_got_no_thread_can_be_opened_later(path: Path, store: SqliteStore) -> None:
    spawn = CountingSpawner(failures=1)
    other = SqliteStore(path, seams=Seams(spawn=spawn))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await other.open()
    await other.close()
    await other.open()
    assert sorted(spawn.names) == ["tenure-sqlite-reader", "tenure-sqlite-writer"]
    await other.close()


async def test_a_thread_that_was_stopped_before_it_began_does_not_begin(path: Path) -> None:
    """A store that is closed while it opens must not leave a thread behind."""
    spawn = CountingSpawner()
    thread = ConnectionThread(
        SerialConnection(lambda: connect(str(path)), transactions.ReadTransactions(), where=str(path)),
        spawn=spawn,
        name="thread",
    )
    await thread.stop()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await thread.start()
    assert spawn.names == []


async def test_a_store_that_several_open_in_vain_can_be_opened_once_the_trouble_is_over(path: Path) -> None:
    path.write_bytes(b"This is a letter, and not a database at all." * 100)
    store = SqliteStore(path)
    results = await asyncio.gather(*(store.open() for _ in range(4)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 4
    await store.close()
    path.unlink()
    await store.migrate()
    await store.open()
    await Driver(store).add()
    await store.close()


# Processes


def test_a_store_used_after_a_fork_is_an_error(path: Path) -> None:
    script = """
async def main():
    store = SqliteStore(path)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    child = os.fork()
    if child == 0:
        outputs = []
        for call in (drive.add, store.close, store.now, store.schema):
            try:
                await call()
            except TenureError as error:
                outputs.append(type(error).__name__)
        print(json.dumps(outputs), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    await drive.add()
    await store.close()
asyncio.run(main())
"""
    [outputs] = answers([child(script, path)])
    assert json.loads(outputs) == ["UsedAfterFork"] * 4


async def test_a_process_killed_inside_a_transaction_leaves_nothing_behind(path: Path, drive: Driver) -> None:
    script = """
def clock():
    # The store asks for the time once it has the lock: from here on it holds a transaction.
    print("holding", flush=True)
    sys.stdin.read()
    return datetime.now(UTC)

async def main():
    store = SqliteStore(path, database_clock=clock)
    await store.open()
    await Driver(store).add()
asyncio.run(main())
"""
    process = child(script, path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        waiting = asyncio.create_task(drive.add())
        await asyncio.sleep(0)
        assert not waiting.done()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=CHILD_SECONDS_MAX)
    job = await waiting
    assert [found.id for found in (await drive.store.find(JobFilter())).jobs] == [job.id]
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("select writer from tenure_writer").fetchone() == (None,)
        assert shell.execute("select count(*) from tenure_events").fetchone() == (1,)


async def test_two_processes_write_one_file(path: Path, store: SqliteStore) -> None:
    script = """
async def main():
    store = SqliteStore(path)
    await store.open()
    drive = Driver(store)
    done = 0
    for _ in range(20):
        await store.enqueue([drive.enqueue() for _ in range(5)])
        for job in await drive.claim(limit=5):
            await drive.apply(job, Complete("1"))
            done += 1
    print(done)
    await store.close()
asyncio.run(main())
"""
    done = answers([child(script, path) for _ in range(2)])
    assert [int(count) for count in done] == [100, 100]
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("select status, rev, count(*) from tenure_jobs group by 1, 2").fetchall() == [
            ("succeeded", 4, 200)
        ]
        assert shell.execute("select count(*), count(distinct job_id) from tenure_log").fetchone() == (800, 200)


def test_of_several_processes_that_migrate_at_once_one_does_it(path: Path) -> None:
    script = """
async def main():
    store = SqliteStore(path)
    sys.stdin.readline()
    print(len(await store.migrate()))
    await store.open()
    await store.close()
asyncio.run(main())
"""
    children = [child(script, path) for _ in range(4)]
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(answers(children)) == ["0", "0", "0", "1"]


async def test_work_that_another_process_added_wakes_a_subscription(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path)
    await other.open()
    async with store.wakeups(["default"]) as wakeups:
        assert not await wakeups.wait(0)
        await Driver(other).add()
        assert await wakeups.wait(30)
        assert not await wakeups.wait(0)
    await other.close()


async def test_an_enqueue_in_the_same_process_wakes_subscriptions_by_queue(drive: Driver) -> None:
    async with drive.store.wakeups(["mail"]) as wakeups:
        await drive.add(queue="other")
        await asyncio.sleep(0)
        assert not await wakeups.wait(0)
        await drive.add(queue="mail")
        assert await wakeups.wait(30)
        assert not await wakeups.wait(0)


# Schema


async def test_a_file_that_is_not_there_is_neither_opened_nor_made(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(SchemaMismatch, match="tenure migrate"):
        await store.open()
    assert [finding.level for finding in await store.doctor()] == ["error"]
    assert not path.exists()


async def test_a_file_of_another_program_is_not_changed_until_it_is_migrated(path: Path) -> None:
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("create table mine (x)")
    store = SqliteStore(path)
    with pytest.raises(SchemaMismatch, match="has no tenure schema"):
        await store.open()
    await store.migrate()
    await store.open()
    await Driver(store).add()
    await store.close()
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("select count(*) from mine").fetchone() == (0,)


async def test_a_file_that_needs_newer_code_is_refused(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("update tenure_meta set value = 99 where name = 'min_code_version'")
        shell.commit()
    newer = SqliteStore(path)
    with pytest.raises(SchemaMismatch, match=r"needs code that knows schema 99.*upgrade tenure"):
        await newer.open()


async def test_a_newer_file_that_still_admits_this_code_is_opened(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("insert into tenure_migrations values (99, 'later', 'x', 1)")
        shell.commit()
    newer = SqliteStore(path)
    await newer.open()
    assert (await newer.schema()).unknown == [99]
    await newer.close()


async def test_a_migration_that_was_changed_afterwards_is_refused(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("update tenure_migrations set checksum = 'x'")
        shell.commit()
    other = SqliteStore(path)
    with pytest.raises(SchemaMismatch, match="migration 1 differs"):
        await other.open()


# Trouble


async def test_a_file_that_stays_locked_is_unavailable(path: Path, store: SqliteStore) -> None:
    hasty = SqliteStore(path, busy_seconds=0.01)
    await hasty.open()
    drive = Driver(hasty)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="locked"):
            await drive.add()
        assert await hasty.read([]) == {}
        other.execute("rollback")
    assert (await drive.add()).status is Status.QUEUED
    await hasty.close()


async def test_something_that_is_no_database_is_unavailable(path: Path) -> None:
    path.write_bytes(b"This is a letter, and not a database at all." * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await SqliteStore(path).open()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
async def test_a_network_file_system_is_refused(path: Path, kind: str) -> None:
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/jobs {path.parent} {kind} rw 0 0\n"
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*local disk"):
        await SqliteStore(path, mounts=lambda: mounts).migrate()
    assert not path.exists()


async def test_a_local_file_below_a_network_mount_is_not_refused(path: Path) -> None:
    mounts = f"server:/ / nfs4 rw 0 0\n/dev/vdb {path.parent} ext4 rw 0 0\n"
    store = SqliteStore(path, mounts=lambda: mounts)
    await store.migrate()
    await store.close()
    assert path.exists()


def add_stray_event(path: Path, job_id: UUID, *, rev: int) -> None:
    """What the guards refuse, done by taking one of them away: it poisons the job's next change."""
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        [guard] = shell.execute("select sql from sqlite_master where name = 'tenure_events_insert'").fetchone()
        shell.execute("begin")
        shell.execute("drop trigger tenure_events_insert")
        shell.execute(
            "insert into tenure_events (job_id, rev, type, from_status, to_status, at, attempt, actor, request_id,"
            " version) values (?, ?, 'signalled', 'queued', 'queued', 1, 0, 'hand', 'hand', 1)",
            (str(job_id), rev),
        )
        shell.execute(guard)
        shell.execute("commit")


async def test_one_poisoned_row_is_quarantined_and_the_rest_of_the_batch_applied(path: Path, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue() for _ in range(20)])
    jobs = await drive.claim(limit=20)
    add_stray_event(path, jobs[7].id, rev=4)
    requests = [drive.request(job, Complete("1"), fresh=True) for job in jobs]
    outcomes = await drive.store.apply(requests)
    assert errors_of(outcomes) == [RowPoisoned if place == 7 else None for place in range(20)]
    poisoned = outcomes[7]
    assert isinstance(poisoned, Failure)
    assert str(jobs[7].id) in str(poisoned.error)
    stored = await drive.store.read([job.id for job in jobs])
    assert [stored[job.id].status for job in jobs].count(Status.SUCCEEDED) == 19
    assert stored[jobs[7].id].rev == 3


async def test_a_poisoned_row_does_not_wedge_its_queue(path: Path, drive: Driver) -> None:
    poisoned = [await drive.add(priority=9) for _ in range(3)]
    sound = [await drive.add() for _ in range(3)]
    for job in poisoned:
        add_stray_event(path, job.id, rev=2)
    won = await drive.claim(limit=2)
    assert [job.id for job in won] == [job.id for job in sound[:2]]
    assert [job.id for job in await drive.claim(limit=2)] == [sound[2].id]
    assert await drive.claim(limit=2) == []
    findings = [finding for finding in await drive.store.doctor() if finding.about == "poisoned row"]
    assert len(findings) == 3
    assert {finding.level for finding in findings} == {"error"}


async def test_an_unreadable_row_does_not_wedge_its_queue(path: Path, drive: Driver) -> None:
    poisoned, sound = await drive.add(priority=9), await drive.add()
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("drop trigger tenure_jobs_payload")
        shell.execute("drop trigger tenure_jobs_change")
        shell.execute("update tenure_jobs set tags = 'no json' where id = ?", (str(poisoned.id),))
    assert [job.id for job in await drive.claim(limit=5)] == [sound.id]
    with pytest.raises(RowPoisoned, match="cannot be read"):
        await drive.store.read([poisoned.id])


async def test_an_unreadable_row_does_not_keep_the_others_from_recovery(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, database_clock=clock.now)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    poisoned, sound = await drive.running(), await drive.running()
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("drop trigger tenure_jobs_payload")
        shell.execute("drop trigger tenure_jobs_change")
        shell.execute("update tenure_jobs set tags = 'no json' where id = ?", (str(poisoned.id),))
    clock.advance(600)
    assert [job.id for job in await store.recoverable(limit=10)] == [sound.id]
    assert "poisoned row" in {finding.about for finding in await store.doctor()}
    await store.close()


def poison(path: Path, jobs: Sequence[Job]) -> None:
    """Make these rows unreadable, by taking the guards away."""
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("drop trigger if exists tenure_jobs_payload")
        shell.execute("drop trigger if exists tenure_jobs_change")
        shell.executemany("update tenure_jobs set tags = 'no json' where id = ?", [(str(job.id),) for job in jobs])


async def test_a_claim_reads_on_behind_unreadable_rows_until_it_has_what_it_wants(path: Path, drive: Driver) -> None:
    jobs = [await drive.add() for _ in range(8)]
    poison(path, [jobs[0], jobs[1], jobs[2], jobs[4]])
    assert [job.id for job in await drive.claim(limit=1)] == [jobs[3].id]
    assert [job.id for job in await drive.claim(limit=2)] == [jobs[5].id, jobs[6].id]
    assert [job.id for job in await drive.claim(limit=2)] == [jobs[7].id]
    assert await drive.claim(limit=1) == []


async def test_recovery_reads_on_behind_unreadable_rows_until_it_has_what_it_wants(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, database_clock=clock.now)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    jobs = sorted([await drive.running() for _ in range(7)], key=lambda job: str(job.id))
    poison(path, [jobs[0], jobs[1], jobs[2], jobs[4]])
    clock.advance(600)
    first = await store.recoverable(limit=2)
    assert [job.id for job in first] == [jobs[3].id, jobs[5].id]
    assert [job.id for job in await store.recoverable(limit=2, after=first[-1].id)] == [jobs[6].id]
    assert await store.recoverable(limit=1, after=jobs[6].id) == []
    await store.close()


@pytest.mark.requirement("LC-08")
async def test_jobs_claimed_in_one_statement_are_as_decide_would_make_them(path: Path) -> None:
    """The store decides one job of a homogeneous batch; here each is decided again, and rows and log are compared."""
    clock = ManualClock()
    store = SqliteStore(path, database_clock=clock.now)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    for number in range(12):
        policy = {"lease_seconds": 30.0 + number % 3, "timeouts": Timeouts(queued_seconds=900 if number % 2 else None)}
        await drive.add(delay_ms=number % 4 * 1000, policy=policy, payload=f"{number}", correlation_id=f"c{number}")
        clock.advance(1)
    signalled = await drive.add()
    await drive.apply(signalled.id, Signal("go"), actor=CLIENT)
    clock.advance(60)
    before = {job.id: job for job in (await store.find(JobFilter())).jobs}
    request = drive.claim_request(limit=20)
    won = await store.claim(request)
    assert len(won) == 13
    histories = await store.history([job.id for job in won])
    for job in won:
        operations = (Claim(request.token), Start())
        change = decide_chain(before[job.id], operations, request.actor, request_id=request.request_id)
        events, after = expand(change, clock.now())
        assert job == after
        assert [replace(event, position=None) for event in histories[job.id]][-2:] == list(events)
    assert {job.id: replace(job, token=None) for job in won} == await store.read([job.id for job in won])
    await store.close()


async def test_several_requests_for_one_job_follow_each_other(drive: Driver) -> None:
    job = await drive.running()
    requests = [
        drive.request(job, Progress(10)),
        drive.request(job.id, Heartbeat(), actor=runner(job)),
        drive.request(job.id, Complete("1"), actor=runner(job)),
    ]
    outcomes = await drive.store.apply(requests)
    assert [type(outcome) for outcome in outcomes] == [Applied] * 3
    assert await drive.types_of(job.id) == ["enqueued", "claimed", "started", "progress", "heartbeat", "succeeded"]


async def test_the_doctor_names_what_it_looked_at(path: Path, store: SqliteStore) -> None:
    findings = {finding.about: finding for finding in await store.doctor()}
    assert set(findings) == {"version", "journal", "synchronous", "place", "integrity", "wal", "schema"}
    assert not [finding for finding in findings.values() if finding.level == "error"]
    safe = sqlite3.sqlite_version_info >= (3, 51, 3)
    assert findings["version"].level == ("ok" if safe else "warning")
    assert findings["journal"].message == "journal mode wal"


# Variants


async def test_a_store_in_memory_lives_as_long_as_it_is_open() -> None:
    store = SqliteStore.from_url("sqlite://:memory:")
    await store.migrate()
    await store.open()
    drive = Driver(store)
    job = await drive.apply(await drive.running(), Complete("1"))
    assert await drive.job(job.id) == job
    await store.close()
    with pytest.raises(SchemaMismatch):
        await store.open()


async def test_without_threads_it_does_the_same(path: Path) -> None:
    store = SqliteStore(path, inline=True)
    await store.migrate()
    await store.open()
    drive = Driver(store)
    job = await drive.apply(await drive.running(), Complete("1"))
    assert await drive.job(job.id) == job
    await store.close()


def test_a_url_names_a_file() -> None:
    assert repr(store_for("sqlite:///jobs.db")) == "SqliteStore('jobs.db')"
    assert repr(store_for("sqlite:////srv/jobs.db")) == "SqliteStore('/srv/jobs.db')"
    assert repr(store_for("sqlite://:memory:")) == "SqliteStore(':memory:')"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://jobs.db", "sqlite:jobs.db"])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        SqliteStore.from_url(url)


# ModelRetention


async def test_retention_removes_everything_of_a_job_and_the_claims_that_nothing_is_left_of(
    path: Path, drive: Driver
) -> None:
    await drive.store.enqueue([drive.enqueue() for _ in range(2)])
    first, second = await drive.claim(limit=2)
    await drive.apply(first, Complete("1"))
    assert await prune_finished(drive.store, older_than_seconds=0) == 1
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("select id from tenure_jobs").fetchall() == [(str(second.id),)]
        assert shell.execute("select distinct job_id from tenure_events").fetchall() == [(str(second.id),)]
        assert shell.execute("select count(*) from tenure_claims").fetchone() == (1,)
        await drive.apply(second, Complete("1"))
        assert await prune_finished(drive.store, older_than_seconds=0) == 1
        assert shell.execute("select count(*) from tenure_claims").fetchone() == (0,)
        log = shell.execute("select actor, action from tenure_operator_log").fetchall()
    assert log == [("client:operator", "prune")] * 2


# Answers


@pytest.mark.parametrize("named", [True, False], ids=["by its request id", "by its job id"])
async def test_an_enqueue_that_a_dedupe_key_answered_is_answered_alike_for_ever(drive: Driver, *, named: bool) -> None:
    job = await drive.running(dedupe_key="only")
    again = drive.enqueue(dedupe_key="only", payload="2", request_id="again" if named else None)
    for _ in range(2):
        [added] = await drive.store.enqueue([again])
        assert (added.job.id, added.created) == (job.id, False)
    done = await drive.apply(job, Complete("1"))
    [added] = await drive.store.enqueue([again])
    assert (added.job, added.created) == (done, False)
    successor = await drive.add(dedupe_key="only")
    assert successor.id != job.id
    results = await drive.store.enqueue([drive.enqueue(), again])
    assert [(added.job.id == job.id, added.created) for added in results] == [(False, True), (True, False)]


async def test_another_enqueue_under_an_answered_request_id_is_refused_whole(drive: Driver) -> None:
    job = await drive.running(dedupe_key="only")
    again = drive.enqueue(dedupe_key="only", request_id="again", payload="2")
    await drive.store.enqueue([again])
    others = [
        drive.enqueue(id=again.origin.id, dedupe_key="only", request_id="again", payload="3"),
        drive.enqueue(id=again.origin.id, dedupe_key="only", request_id="again", payload="2", delay_ms=5),
        drive.enqueue(id=again.origin.id, request_id="again", payload="2"),
    ]
    for _ in range(2):
        for other in others:
            with pytest.raises(RequestIdReused):
                await drive.store.enqueue([drive.enqueue(), other])
        if (await drive.job(job.id)).live:
            await drive.apply(job, Complete("1"))
    assert [found.id for found in (await drive.store.find(JobFilter())).jobs] == [job.id]


async def test_two_of_one_batch_under_one_dedupe_key_are_answered_alike_later(drive: Driver) -> None:
    batch = [drive.enqueue(dedupe_key="only", payload=str(number)) for number in range(2)]
    first = await drive.store.enqueue(batch)
    assert [added.created for added in first] == [True, False]
    await drive.apply(first[0].job.id, Cancel("no longer wanted"), actor=CLIENT)
    assert [(added.job.id, added.created) for added in await drive.store.enqueue(batch)] == [
        (batch[0].origin.id, False),
        (batch[0].origin.id, False),
    ]


async def test_an_answer_goes_with_its_job(path: Path, drive: Driver) -> None:
    job, other = await drive.running(dedupe_key="only"), await drive.add(dedupe_key="other")
    again = drive.enqueue(dedupe_key="only", request_id="again")
    await drive.store.enqueue([again, drive.enqueue(dedupe_key="other", request_id="stays")])
    await drive.apply(job, Complete("1"))
    assert await prune_finished(drive.store, older_than_seconds=0) == 1
    with closing(sqlite3.connect(path)) as shell:
        found = shell.execute("select request_id, job_id from tenure_deduplicated_requests").fetchall()
    assert found == [("stays", str(other.id))]
    [added] = await drive.store.enqueue([again])
    assert (added.job.id, added.created) == (again.origin.id, True)


# Pages


async def test_a_page_names_a_cursor_exactly_when_something_follows(drive: Driver) -> None:
    ids = sorted([(await drive.add(correlation_id="c")).id for _ in range(4)], key=str)
    for wanted in (JobFilter(), JobFilter(correlation_id="c")):
        first = await drive.store.find(wanted, limit=2)
        assert first.after == ids[1]
        second = await drive.store.find(wanted, after=first.after, limit=2)
        assert [job.id for job in second.jobs] == ids[2:]
        assert second.after is None
        assert (await drive.store.find(wanted, limit=4)).after is None
        assert (await drive.store.find(wanted, limit=3)).after == ids[2]
        assert await drive.store.find(wanted, after=ids[3]) == JobPage([], None)


async def test_a_history_has_a_key_for_every_id(drive: Driver) -> None:
    job, stranger = await drive.add(), drive.random.job_id()
    found = await drive.store.history([stranger, job.id, stranger])
    assert set(found) == {stranger, job.id}
    assert found[stranger] == []
    assert [event.rev for event in found[job.id]] == [1]
    assert await drive.store.executions(stranger) == []


# Plans


def plan_of(path: Path, name: str, **parameters: object) -> str:
    with closing(sqlite3.connect(path)) as shell:
        rows = shell.execute(f"explain query plan {sql(name)}", parameters).fetchall()
    return "\n".join(row[3] for row in rows)


@pytest.mark.requirement("WC-02")
async def test_a_claim_walks_its_index_in_order(path: Path, store: SqliteStore) -> None:
    plan = plan_of(path, "jobs/select_due", queue="q", priority=0, now=1, kinds='["mail"]', quarantined="[]")
    assert "USING INDEX tenure_jobs_ready (queue=? AND priority=? AND due_at<?)" in plan
    assert "TEMP B-TREE" not in plan
    levels = plan_of(path, "jobs/select_next_priority", queues='["q"]', below=9)
    assert re.search(r"USING (COVERING )?INDEX tenure_jobs_ready \(queue=\? AND priority", levels)
    assert "TEMP B-TREE" not in levels


@pytest.mark.requirement("SM-12")
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("events/select_by_job", "tenure_events_job (job_id=?)"),
        ("events/select_by_type", "tenure_events_type (type=? AND at>? AND at<?)"),
        ("events/select_by_correlation", "tenure_jobs_correlation (correlation_id=?)"),
        ("events/select_by_request", "tenure_events_job (job_id=?)"),
        ("jobs/select_recoverable", "leased USING INDEX tenure_jobs_leased"),
        (
            "jobs/select_page_by_unsuccessful_status",
            "ended USING COVERING INDEX tenure_jobs_unsuccessful (status=? AND id>?)",
        ),
        ("jobs/select_page_by_correlation", "tenure_jobs_correlation (correlation_id=?)"),
        ("events/select_history", "tenure_events_job (job_id=?)"),
        ("jobs/select_leases", "sqlite_autoindex_tenure_jobs_1 (id=?)"),
        ("deduplicated_requests/delete", "tenure_deduplicated_requests_job (job_id=?)"),
        ("jobs/select_finished", "tenure_jobs_finished (status=? AND kind=? AND finished_at>? AND finished_at<?)"),
        ("events/select_blankable", "tenure_events_verbose (at>"),
        ("events/select_claim_requests", "tenure_events_job (job_id=?)"),
    ],
)
async def test_a_look_up_uses_its_index(path: Path, store: SqliteStore, statement: str, index: str) -> None:
    plan = plan_of(path, statement, **dict.fromkeys(re.findall(r":([a-z_]+)", sql(statement))))
    assert index in plan
    assert not re.search(r"SCAN (?!leased USING INDEX)(job|event|leased|overdue|typed|tenure_\w+)\b", plan), plan


async def test_events_are_listed_by_type_and_time(drive: Driver) -> None:
    job = await drive.running()
    await drive.apply(job, Complete("1"))
    other = await drive.add()
    page = await drive.store.events(EventFilter(types=(EventType.ENQUEUED, EventType.SUCCEEDED)))
    assert [(event.job_id, event.type.value) for event in page.events] == [
        (job.id, "enqueued"),
        (job.id, "succeeded"),
        (other.id, "enqueued"),
    ]
    rest = await drive.store.events(EventFilter(types=(EventType.ENQUEUED,)), after=page.events[0].position)
    assert [event.job_id for event in rest.events] == [other.id]


async def test_a_position_that_no_page_returned_is_refused(store: SqliteStore) -> None:
    for after in ("-1", "x", "1.5", str(2**63), "٣"):
        with pytest.raises(InvalidInput, match="not a position"):
            await store.tail(after=after)


async def test_the_token_of_another_worker_is_never_returned(drive: Driver) -> None:
    job = await drive.running()
    for operation in (Signal("go"), RequestCancel()):
        [outcome] = await drive.store.apply([drive.request(job.id, operation, actor=CLIENT)])
        assert isinstance(outcome, Applied)
        assert outcome.job.token is None
        assert outcome.change.before.token is None
