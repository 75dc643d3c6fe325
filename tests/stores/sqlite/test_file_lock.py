"""Stores on one SQLite file, in one process and in several, get the write lock in order; no guarantee depends on it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.errors import StoreUnavailable
from tenure.seams import SYSTEM, JoinHandle, Seams, SystemSpawner
from tenure.stores.contract import JobFilter
from tenure.stores.sqlite.file_lock import FairFileLock
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver
from tests.support.waiting import eventually

PLENTY_SECONDS = 30
FOR_EVER_SECONDS = 3600.0
"""Who waits as long as this was not woken."""

LOCKS = Path("/proc/locks")
pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="only Linux lists the waiters of a lock")

PREAMBLE = """
import asyncio, os, sys
from datetime import UTC, datetime
from tenure.seams import SYSTEM
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.sqlite.file_lock import FairFileLock
from tenure.testing.driver import Driver
path = sys.argv[1]
"""
TAKES_THE_TURN = """
lock = FairFileLock(path, seconds=3600, spawn=SYSTEM.spawn)
print("asking", flush=True)
lock.acquire()
print("has it", flush=True)
sys.stdin.readline()
lock.release()
print("gave it back", flush=True)
sys.stdin.readline()
"""


class Child:
    """Another process with the file's path as its argument. It prints a line, and continues after a line of input."""

    def __init__(self, script: str, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def expect(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, word: str = "go on") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PLENTY_SECONDS)


@contextmanager
def child(script: str, path: Path) -> Iterator[Child]:
    process = Child(script, path)
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@asynccontextmanager
async def opened(store: SqliteStore) -> AsyncIterator[SqliteStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """A lock that would wait for ever."""
    store = SqliteStore(path, busy_seconds=FOR_EVER_SECONDS)
    await store.migrate()
    async with opened(store):
        yield store


def lock_of(store: SqliteStore) -> FairFileLock:
    lock = store._connections._write_lock._file_lock
    assert lock is not None
    return lock


def is_held(lock: FairFileLock) -> bool:
    return lock._held


@contextmanager
def other_holds_lock(path: Path) -> Iterator[None]:
    lock = FairFileLock(str(path), seconds=FOR_EVER_SECONDS, spawn=SYSTEM.spawn)
    lock.acquire()
    try:
        assert is_held(lock)
        yield
    finally:
        lock.close()


def waiting(path: Path, ending: str = "-lock") -> int:
    """How many wait for the kernel's lock on the file beside this one."""
    beside = Path(f"{path}{ending}")
    number = f":{beside.stat().st_ino} " if beside.exists() else None
    return sum(1 for line in LOCKS.read_text().splitlines() if "->" in line and number is not None and number in line)


class Held:
    """A clock for a store, which asks for the time once it has a transaction: there it stays until it is let go."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def now(self) -> datetime:
        self.inside.set()
        assert self.go_on.wait(PLENTY_SECONDS)
        return datetime.now(UTC)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, PLENTY_SECONDS)


async def kinds(store: SqliteStore) -> list[str]:
    """In the order in which they were written."""
    written = [event.job_id for event in (await store.tail()).events]
    jobs = await store.read(written)
    return [jobs[job_id].kind for job_id in written]


# In order


async def test_a_store_that_has_more_to_write_lets_another_in_between(path: Path, store: SqliteStore) -> None:
    held = Held()
    async with opened(SqliteStore(path, database_clock=held.now)) as busy, asyncio.timeout(PLENTY_SECONDS):
        adding = [asyncio.create_task(Driver(busy).add("first"))]
        await held.entered()
        adding += [asyncio.create_task(Driver(busy).add("second")), asyncio.create_task(Driver(store).add("other"))]
        await eventually(lambda: waiting(path) == 1)
        held.go_on.set()
        await asyncio.gather(*adding)
    assert await kinds(store) == ["first", "other", "second"]


async def test_a_process_that_acquires_again_is_queued_behind_waiters(path: Path, store: SqliteStore) -> None:
    lock = FairFileLock(str(path), seconds=FOR_EVER_SECONDS, spawn=SYSTEM.spawn)
    lock.acquire()
    with child(TAKES_THE_TURN, path) as other:
        assert other.expect() == "asking"
        await eventually(lambda: waiting(path) == 1)
        lock.release()
        asking = asyncio.create_task(asyncio.to_thread(lock.acquire))
        assert await asyncio.to_thread(other.expect) == "has it"
        await eventually(lambda: waiting(path) == 1)
        assert not is_held(lock)
        other.send()
        await asyncio.wait_for(asking, PLENTY_SECONDS)
        assert is_held(lock)
    lock.close()


async def test_several_processes_that_write_without_pause_come_forward_together(path: Path, store: SqliteStore) -> None:
    script = """
async def main():
    store = SqliteStore(path)
    await store.open()
    drive = Driver(store)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(60):
        await drive.add(f"of-{os.getpid()}")
    print("done", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""
    children = [Child(script, path) for _ in range(4)]
    try:
        assert [one.expect() for one in children] == ["ready"] * 4
        for one in children:
            one.send()
        assert [await asyncio.to_thread(one.expect) for one in children] == ["done"] * 4
    finally:
        for one in children:
            one.end()
    written = await kinds(store)
    last = {kind: place for place, kind in enumerate(written)}
    until_first_was_done = written[: min(last.values()) + 1]
    assert len(last) == 4
    assert min(until_first_was_done.count(kind) for kind in last) >= 20


async def test_commit_blocks_and_writers_of_several_stores_share_the_lock_without_starvation(
    path: Path, store: SqliteStore
) -> None:
    async with (
        opened(SqliteStore(path, busy_seconds=FOR_EVER_SECONDS)) as other,
        opened(SqliteStore(path, busy_seconds=FOR_EVER_SECONDS)) as third,
        asyncio.timeout(PLENTY_SECONDS),
    ):

        async def blocks(one: SqliteStore) -> None:
            for _ in range(15):
                async with one.transaction(deadline_seconds=PLENTY_SECONDS) as tx:
                    await tx.enqueue([Driver(one).enqueue("block")])

        async def adds(one: SqliteStore) -> None:
            for _ in range(15):
                await Driver(one).add("added")

        await asyncio.gather(*(work(one) for one in (store, other, third) for work in (blocks, adds)))
    written = await kinds(store)
    assert (written.count("block"), written.count("added")) == (45, 45)


async def test_a_store_on_a_link_to_the_file_shares_its_lock(path: Path, store: SqliteStore) -> None:
    link = path.parent / "link.db"
    link.symlink_to(path)
    held = Held()
    async with opened(SqliteStore(link, database_clock=held.now)) as busy, asyncio.timeout(PLENTY_SECONDS):
        adding = [asyncio.create_task(Driver(busy).add())]
        await held.entered()
        adding.append(asyncio.create_task(Driver(store).add()))
        await eventually(lambda: waiting(path) == 1)
        held.go_on.set()
        await asyncio.gather(*adding)
        assert len(await kinds(store)) == 2


# Processes that die or stand still


async def test_the_lock_of_a_killed_process_goes_to_the_next_waiter(path: Path, store: SqliteStore) -> None:
    with child(TAKES_THE_TURN, path) as other:
        assert [other.expect(), other.expect()] == ["asking", "has it"]
        adding = asyncio.create_task(Driver(store).add())
        await eventually(lambda: waiting(path) == 1)
        assert not adding.done()
    await asyncio.wait_for(adding, PLENTY_SECONDS)


async def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(path: Path, store: SqliteStore) -> None:
    script = """
lock = FairFileLock(path, seconds=3600, spawn=SYSTEM.spawn)
lock.acquire()
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    with child(script, path) as parent:
        survivor = int(parent.expect())
        parent.process.wait(PLENTY_SECONDS)
        os.kill(survivor, 0)
        await asyncio.wait_for(Driver(store).add(), PLENTY_SECONDS)
        os.kill(survivor, 0)
        assert len(await kinds(store)) == 1


async def test_a_paused_lock_holder_does_not_block_others_for_ever(path: Path, store: SqliteStore) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.2)) as hasty, asyncio.timeout(PLENTY_SECONDS):
        with child(TAKES_THE_TURN, path) as other:
            assert [other.expect(), other.expect()] == ["asking", "has it"]
            other.stop()
            for _ in range(50):
                await Driver(hasty).add()
            assert waiting(path) == 1, "it was waited for once, and that goes on behind the writes"
            other.go_on()
            other.send()
            assert other.expect() == "gave it back"
            await eventually(lambda: waiting(path) == 0)
            with other_holds_lock(path):
                adding = asyncio.create_task(Driver(hasty).add())
                await eventually(lambda: waiting(path) == 1)
            await adding


async def test_a_paused_next_waiter_does_not_block_others_for_ever(path: Path, store: SqliteStore) -> None:
    async with opened(SqliteStore(path, busy_seconds=0.2)) as hasty, asyncio.timeout(PLENTY_SECONDS):
        with child(TAKES_THE_TURN, path) as other:
            with other_holds_lock(path):
                assert other.expect() == "asking"
                await eventually(lambda: waiting(path) == 1)
                other.stop()
            for _ in range(50):
                await Driver(hasty).add()
            assert waiting(path, "-next") == 1


async def test_a_process_that_is_paused_in_a_transaction_makes_the_file_unavailable(
    path: Path, store: SqliteStore
) -> None:
    script = """
def clock():
    print("inside", flush=True)
    sys.stdin.readline()
    return datetime.now(UTC)

async def main():
    store = SqliteStore(path, database_clock=clock)
    await store.open()
    await Driver(store).add("theirs")
    print("done", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""
    async with opened(SqliteStore(path, busy_seconds=0.05)) as hasty, asyncio.timeout(PLENTY_SECONDS):
        with child(script, path) as other:
            assert other.expect() == "inside"
            other.stop()
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"locked.*same id"):
                    await Driver(hasty).add()
            other.go_on()
            other.send()
            assert other.expect() == "done"
            await Driver(hasty).add("ours")
    assert await kinds(store) == ["theirs", "ours"]


async def test_closing_a_store_releases_the_lock_also_with_an_open_transaction(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path)
    await other.open()
    with pytest.raises(StoreUnavailable, match="closed"):  # noqa: PT012 - a transaction is one thing
        async with other.transaction(deadline_seconds=3) as tx:
            await tx.enqueue([Driver(other).enqueue()])
            assert is_held(lock_of(other))
            await other.close()
    await asyncio.wait_for(Driver(store).add(), PLENTY_SECONDS)
    assert not is_held(lock_of(store))


async def test_a_store_that_is_closed_while_it_waits_leaves_the_lock_queue(path: Path, store: SqliteStore) -> None:
    hasty = SqliteStore(path, busy_seconds=0.05)
    await hasty.open()
    with other_holds_lock(path):
        await Driver(hasty).add()
        await hasty.close()
        assert waiting(path) == 1
    await eventually(lambda: waiting(path) == 0)
    await asyncio.wait_for(Driver(store).add(), PLENTY_SECONDS)


# Without the lock


@pytest.mark.parametrize("ending", ["-next", "-lock"])
async def test_a_store_works_without_the_file_lock_if_its_files_cannot_be_opened(path: Path, ending: str) -> None:
    Path(f"{path}{ending}").mkdir()
    store, other = SqliteStore(path), SqliteStore(path)
    await store.migrate()
    async with opened(store), opened(other), asyncio.timeout(PLENTY_SECONDS):
        await asyncio.gather(*(Driver(one).add() for one in (store, other) for _ in range(10)))
        assert len((await store.find(JobFilter())).jobs) == 20


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "when it has to wait"])
async def test_a_store_works_without_the_file_lock_if_the_kernel_has_none(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    real = fcntl.flock

    def flock(file: int, operation: int) -> None:
        if not waits or operation == fcntl.LOCK_EX:
            raise OSError(errno.ENOLCK, "No locks available")
        real(file, operation)

    with other_holds_lock(path):
        monkeypatch.setattr(fcntl, "flock", flock)
        for _ in range(3):
            await asyncio.wait_for(Driver(store).add(), PLENTY_SECONDS)
        monkeypatch.undo()
        assert not is_held(lock_of(store))
    assert len(await kinds(store)) == 3


class NoWaiters(SystemSpawner):
    """There are threads for connections, but none to wait for the lock in."""

    def thread(self, body: Callable[[], None], *, name: str) -> JoinHandle:
        if name == "tenure-sqlite-lock":
            raise RuntimeError("can't start new thread")
        return super().thread(body, name=name)


async def test_a_store_works_without_the_file_lock_if_no_thread_can_be_started(path: Path, store: SqliteStore) -> None:
    poor = SqliteStore(path, seams=Seams(spawn=NoWaiters()), busy_seconds=FOR_EVER_SECONDS)
    async with opened(poor), asyncio.timeout(PLENTY_SECONDS):
        with other_holds_lock(path):
            await Driver(poor).add()
            await Driver(poor).add()
        await Driver(store).add()
        assert len(await kinds(store)) == 3


async def test_a_store_with_one_connection_has_no_file_lock(tmp_path: Path) -> None:
    for store in (SqliteStore(tmp_path / "jobs.db", inline=True), SqliteStore(":memory:")):
        await store.migrate()
        async with opened(store):
            await Driver(store).add()
    assert not list(tmp_path.glob("*-lock"))
    assert not list(Path.cwd().glob(":memory:*"))


async def test_who_alone_writes_a_file_needs_no_thread_to_wait_in(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path, seams=Seams(spawn=NoWaiters()))
    async with opened(other):
        for _ in range(5):
            await Driver(other).add()
            await Driver(store).add()
        assert lock_of(other)._usable
