"""Wake-ups between processes that use one file: sent by the kernel, and correct without it."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.lifecycle.operations import Complete
from tenure.stores.sqlite import file_signal, wakeups
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver

WAIT_SECONDS_MAX = 60
NEVER_SECONDS = 3600.0

signals = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports that a file was closed")

ENQUEUE = """
import asyncio, sys
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver
async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await Driver(store).add()
    await store.close()
asyncio.run(main())
"""


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
async def other(path: Path, store: SqliteStore) -> AsyncIterator[SqliteStore]:
    """A second store on the file, as another process has it."""
    other = SqliteStore(path)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
def without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "POLL_SECONDS_LEAST", NEVER_SECONDS)
    monkeypatch.setattr(wakeups, "POLL_SECONDS_MOST", NEVER_SECONDS)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@signals
@pytest.mark.requirement("WC-02")
@pytest.mark.usefixtures("without_polls")
async def test_work_of_another_process_wakes_a_subscription_without_a_poll(path: Path, store: SqliteStore) -> None:
    async with store.wakeups(["default"]) as subscription:
        with subprocess.Popen([sys.executable, "-c", ENQUEUE, str(path)]) as process:
            assert await subscription.wait(WAIT_SECONDS_MAX)
            assert process.wait(timeout=WAIT_SECONDS_MAX) == 0
    assert len(await Driver(store).claim()) == 1


@signals
@pytest.mark.usefixtures("without_polls")
async def test_every_subscription_to_the_file_is_woken(store: SqliteStore, other: SqliteStore, path: Path) -> None:
    third = SqliteStore(path)
    await third.open()
    async with store.wakeups(["default"]) as first, other.wakeups(["default"]) as second:
        await Driver(third).add()
        assert await first.wait(WAIT_SECONDS_MAX)
        assert await second.wait(WAIT_SECONDS_MAX)
    await third.close()


async def test_a_signal_of_its_own_process_ends_no_wait(store: SqliteStore) -> None:
    async with store.wakeups(["mail"]) as subscription:
        await Driver(store).add(queue="other")
        assert not await subscription.wait(0.05)


@pytest.mark.parametrize("problem", [OSError("too many watches"), AttributeError("no inotify"), ImportError("ctypes")])
async def test_without_signals_the_file_is_polled(
    store: SqliteStore, other: SqliteStore, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> int:
        raise problem

    monkeypatch.setattr(file_signal, "_watch", refuse)
    async with store.wakeups(["default"]) as subscription:
        await Driver(other).add()
        assert await subscription.wait(WAIT_SECONDS_MAX)


async def test_a_sender_that_cannot_open_the_lock_file_goes_on(path: Path, other: SqliteStore) -> None:
    lock = Path(f"{path}-lock")
    async with other.wakeups(["default"]):
        lock.unlink()
        lock.symlink_to(path)
        job = await Driver(other).add()
    assert (await other.read([job.id]))[job.id] == job
    lock.unlink()


@signals
async def test_a_subscription_leaves_no_file_and_no_descriptor(path: Path, store: SqliteStore) -> None:
    await Driver(store).add()
    before = open_files()
    for _ in range(3):
        async with store.wakeups(["default"]) as subscription:
            assert open_files() == before + 1
            await subscription.wait(0)
        assert open_files() == before
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {f"{path.name}{end}": 0o600 for end in ("", "-wal", "-shm", "-lock", "-next")}
    assert Path(f"{path}-lock").stat().st_size == 0


async def test_a_claim_that_finds_nothing_wakes_no_other_process(store: SqliteStore, other: SqliteStore) -> None:
    """Else two idle workers would wake each other without end."""
    drive = Driver(store)
    await drive.apply(await drive.running(), Complete("1"))
    async with other.wakeups(["default"]) as subscription:
        assert await drive.claim() == []
        assert not await subscription.wait(0)
        await drive.add()
        assert await subscription.wait(WAIT_SECONDS_MAX)
