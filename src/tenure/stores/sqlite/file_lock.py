"""Fair order among the writers of a file. SQLite's own lock is polled, so that a connection that writes without pause
starves the others; these locks are granted in the order of requests, and wake the next writer at once.

They are an optimisation. Only SQLite's own lock keeps transactions apart, and every writer takes it as well.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

from tenure.seams import Spawner

if sys.platform != "win32":
    import fcntl

WAIT_SECONDS = 30.0
"""Longer than any transaction of the store: a bound for the case of a fault elsewhere."""

_log = logging.getLogger("tenure.stores.sqlite")


class WriteLock:
    """A lock that is granted in the order of requests: first among the connections of one store, then among all stores
    on the file."""

    def __init__(self, file_lock: FairFileLock | None = None) -> None:
        self._file_lock = file_lock
        self._state_lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def acquire(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait for the lock. After the timeout it raises what SQLite raises for a lock of another process."""
        self._acquire_in_store(seconds)
        if self._file_lock is not None:
            self._file_lock.acquire()

    def release(self) -> None:
        """Wake the next waiter. Another connection of the store requests the file lock anew, so that no store keeps
        it."""
        if self._file_lock is not None:
            self._file_lock.release()
        with self._state_lock:
            if self._waiting:
                # The lock passes to the next waiter without being free in between.
                self._waiting.popleft().set()
            else:
                self._taken = False

    def close(self) -> None:
        """Release the file lock, also if a transaction ended with its connection and did not release it."""
        if self._file_lock is not None:
            self._file_lock.close()

    def _acquire_in_store(self, seconds: float) -> None:
        with self._state_lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if mine.wait(seconds):
            return
        with self._state_lock:
            if mine.is_set():
                return
            self._waiting.remove(mine)
        raise sqlite3.OperationalError("database is locked by another transaction of this process")


class FairFileLock:
    """The write lock among all stores on one file, in this process and in others.

    The writer holds the kernel's lock on the file `-lock`. The next writer holds the lock on `-next` while it waits for
    `-lock`; all others wait for `-next`, in the order of requests. So a writer that releases the lock and requests it
    again comes after those that wait, which one lock alone does not ensure.

    A process that dies releases its locks. A process that is stopped does not: after `seconds` a writer continues
    without the lock, and does not wait for it again until it was granted. If the files cannot be opened, or the kernel
    has no such locks for them, writers continue without. One thread requests at a time, and no method raises.
    """

    def __init__(self, path: str, *, seconds: float, spawn: Spawner) -> None:
        # SQLite, too, puts its files beside the one that a link leads to.
        self._path = os.path.realpath(path)
        self._seconds, self._spawn = seconds, spawn
        self._files: tuple[int, int] | None = None
        self._usable = sys.platform != "win32"
        self._held = False
        self._state_lock = threading.Lock()
        self._requests: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._request: threading.Event | None = None
        self._has_waiter = self._waiter_waits = False

    def acquire(self) -> None:
        """Wait for the lock, or continue without it."""
        if self._waiter_waits or not self._usable or not self._opened():
            return
        try:
            self._held = self._try() or self._wait()
        except (OSError, RuntimeError) as problem:
            # The kernel has no such locks, or the process no more threads.
            self._disable(problem)

    def release(self) -> None:
        if self._held:
            self._held = False
            assert self._files is not None
            try:
                fcntl.flock(self._files[1], fcntl.LOCK_UN)
            except OSError as problem:
                self._disable(problem)

    def close(self) -> None:
        """Release the lock and close the files. No request may follow."""
        self.release()
        self._usable = False
        if self._has_waiter:
            # It may be blocked in a call that only the kernel ends. It closes the files after that.
            self._requests.put(None)
        else:
            self.close_files()

    def close_files(self) -> None:
        files, self._files = self._files, None
        for file in files or ():
            os.close(file)

    def _opened(self) -> bool:
        if self._files is None:
            try:
                self._files = _open_both(self._path)
            except OSError as problem:
                self._disable(problem)
                return False
            _opened_here.add(self)
        return True

    def _try(self) -> bool:
        """Take the lock if it is free and no writer waits for it. With one writer this is all that happens, and takes a
        few microseconds."""
        assert self._files is not None
        next_, lock = self._files
        try:
            fcntl.flock(next_, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # If only `-lock` is taken, this writer is next, and the waiter thread goes on from there.
            return False
        fcntl.flock(next_, fcntl.LOCK_UN)
        return True

    def _wait(self) -> bool:
        """Wait for the lock with a timeout. The kernel wakes waiters at once and in order, but has no timeout, so a
        thread of its own waits there. Polling would be as slow as SQLite's, and in random order."""
        mine = threading.Event()
        self._request, self._waiter_waits = mine, True
        self._requests.put(mine)
        if not self._has_waiter:
            self._spawn.thread(self._serve_requests, name="tenure-sqlite-lock")
            self._has_waiter = True
        if mine.wait(self._seconds):
            return self._usable
        with self._state_lock:
            self._request = None
            return mine.is_set() and self._usable

    def _serve_requests(self) -> None:
        while (mine := self._requests.get()) is not None:
            try:
                self._wait_for(mine)
            except OSError as problem:
                self._disable(problem)
                mine.set()
        self.close_files()

    def _wait_for(self, mine: threading.Event) -> None:
        assert self._files is not None
        next_, lock = self._files
        fcntl.flock(next_, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(next_, fcntl.LOCK_UN)
        with self._state_lock:
            self._waiter_waits = False
            if self._request is mine:
                mine.set()
            else:
                # The writer has timed out and continued without the lock.
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _disable(self, problem: Exception) -> None:
        """No other writer may wait for this one either, so the files are closed, and their locks released."""
        self._usable = False
        self.close_files()
        _log.info("%s is written without a fair lock among processes: %s", self._path, problem)


def _open_both(path: str) -> tuple[int, int]:
    next_ = open_beside(path, "-next")
    try:
        return next_, open_beside(path, "-lock")
    except OSError:
        os.close(next_)
        raise


def open_beside(path: str, suffix: str) -> int:
    """Open the file `-next` or `-lock`, which stays empty and has the permissions of the database."""
    mode = Path(path).stat().st_mode & 0o666
    return os.open(f"{path}{suffix}", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, mode)


_opened_here: weakref.WeakSet[FairFileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    """A lock belongs to all processes that have the open file: a child would hold the lock of its dead parent."""
    for lock in list(_opened_here):
        with suppress(OSError):
            lock.close_files()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_child)
