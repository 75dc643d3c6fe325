"""Recognises that another connection of this process has SQLite's write lock, which may be the caller's own.

A caller that enqueues while its own connection has a transaction open waits for itself. SQLite only reports that the
file is locked; Linux lists which process has a lock. On other systems nothing is recognised, and the wait is as long as
for another process.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tenure.errors import StoreUnavailable
from tenure.stores.sqlite.transactions import WorkItem, resolve

TRY_SECONDS = 1.0
"""How long the writer waits before it checks which process has the lock. At the second check the caller gets the
error."""
WRITE_LOCK_BYTE = 120
"""The byte of the file `-shm` that a writer locks (SQLite's WAL format, section 2.3)."""
LOCKS_FILE = Path("/proc/locks")


def process_has_write_lock(path: str, locks: Path = LOCKS_FILE) -> bool:
    """Whether this process has the write lock of the file. False where the system does not list its locks."""
    try:
        inode = str(Path(f"{Path(path).resolve()}-shm").stat().st_ino)
        lines = locks.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return any(_is_write_lock(line.split(), inode) for line in lines)


def _is_write_lock(fields: list[str], inode: str) -> bool:
    """A line is `1: POSIX ADVISORY WRITE <pid> <major>:<minor>:<inode> <first byte> <last byte>`."""
    if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE" or fields[4] != str(os.getpid()):
        return False
    first, last = fields[6], fields[7]
    if fields[5].rpartition(":")[2] != inode or not first.isdecimal() or int(first) > WRITE_LOCK_BYTE:
        return False
    return last == "EOF" or (last.isdecimal() and int(last) >= WRITE_LOCK_BYTE)


class OwnLockWatch:
    """Refuses items that do not wait for a transaction of this process, once one transaction was open for a whole try.

    A commit of another connection between two looks shows that the transactions are several, and short.
    """

    def __init__(self, path: str, items: list[WorkItem]) -> None:
        self._path, self._items = path, items
        self._version: int | None = None

    def look(self, connection: sqlite3.Connection) -> None:
        """Called after each try to begin a transaction. Removes the refused items; raises if none is left."""
        if all(item.waits_for_own_process for item in self._items):
            return
        before = self._version
        self._version = data_version(connection) if process_has_write_lock(self._path) else None
        if before is not None and before == self._version:
            self._refuse()

    def _refuse(self) -> None:
        error = StoreUnavailable(
            f"{self._path} is locked by an open transaction of this process, so nothing was written; enqueue in that "
            f"transaction, job.within(connection).enqueue(…), or end it first",
            where=self._path,
        )
        refused = [item for item in self._items if not item.waits_for_own_process]
        self._items[:] = [item for item in self._items if item.waits_for_own_process]
        for item in refused:
            item.error = error
        resolve(refused)
        if not self._items:
            raise error


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits to the file."""
    return int(connection.execute("pragma data_version").fetchone()[0])
