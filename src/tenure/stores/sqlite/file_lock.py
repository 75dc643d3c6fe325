"""Who writes a file next. SQLite's own lock is polled for and serves whoever happens to ask, so that one who writes
without pause would keep the others out; among ourselves we wait in order and are woken at once.

All of this is a courtesy. What is written is kept apart by SQLite's lock alone, which everybody takes in their turn.
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
"""Longer than any transaction of ours: this only keeps a fault elsewhere from holding a lane for ever."""

_log = logging.getLogger("tenure.stores.sqlite")


class FileLocks:
    """A lock that is given in the order of asking: first among the lanes of one store, then among all stores."""

    def __init__(self, among_all: FairFileLock | None = None) -> None:
        self._among_all = among_all
        self._door = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait for one's turn. Who waits in vain is told what SQLite would say of another process."""
        self._take_here(seconds)
        if self._among_all is not None:
            self._among_all.take()

    def give_back(self) -> None:
        """Let the next one in. Another lane of the store asks anew among all, so that no store keeps the turn."""
        if self._among_all is not None:
            self._among_all.give_back()
        with self._door:
            if self._waiting:
                # The turn passes over without ever being free.
                self._waiting.popleft().set()
            else:
                self._taken = False

    def close(self) -> None:
        """Let go of the turn, also where a transaction ended with its connection and nobody gave it back."""
        if self._among_all is not None:
            self._among_all.close()

    def _take_here(self, seconds: float) -> None:
        with self._door:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if mine.wait(seconds):
            return
        with self._door:
            if mine.is_set():
                return
            self._waiting.remove(mine)
        raise sqlite3.OperationalError("database is locked by another transaction of this process")


class FairFileLock:
    """The turn among all stores on one file, of this process and of others.

    Whoever writes has the kernel's lock on the file `-turn`. Whoever is next has the one on `-next` and waits for the
    turn with it; all others wait for `-next`, in the order of asking. So one who gives the turn back and asks again at
    once comes after those who waited, which one lock alone would not see to: it goes to whoever is fastest.

    A process that dies gives back what it has. One that is stopped does not: after `seconds` one goes on without the
    turn, and does not wait for it again until it could be had. Where the files cannot be opened, or the kernel has no
    such locks for them, one goes on without from the first. One asks at a time, and nothing here raises.
    """

    def __init__(self, path: str, *, seconds: float, spawn: Spawner) -> None:
        # SQLite, too, puts its files beside the one that a link leads to.
        self._path = os.path.realpath(path)
        self._seconds, self._spawn = seconds, spawn
        self._files: tuple[int, int] | None = None
        self._usable = sys.platform != "win32"
        self._mine = False
        self._door = threading.Lock()
        self._asks: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._asked: threading.Event | None = None
        self._has_waiter = self._waiter_waits = False

    def take(self) -> None:
        """Have the turn, or go on without it."""
        if self._waiter_waits or not self._usable or not self._opened():
            return
        try:
            self._mine = self._is_free() or self._wait()
        except (OSError, RuntimeError) as problem:
            # There are no such locks here, or no thread to wait in.
            self._do_without(problem)

    def give_back(self) -> None:
        if self._mine:
            self._mine = False
            assert self._files is not None
            try:
                fcntl.flock(self._files[1], fcntl.LOCK_UN)
            except OSError as problem:
                self._do_without(problem)

    def close(self) -> None:
        """Give back, and let go of the files. Only where nobody takes a turn any more."""
        self.give_back()
        self._usable = False
        if self._has_waiter:
            # It may be waiting in a call that only the kernel ends, and lets go of the files after that.
            self._asks.put(None)
        else:
            self.let_go()

    def let_go(self) -> None:
        files, self._files = self._files, None
        for file in files or ():
            os.close(file)

    def _opened(self) -> bool:
        if self._files is None:
            try:
                self._files = _open_beside(self._path)
            except OSError as problem:
                self._do_without(problem)
                return False
            _opened_here.add(self)
        return True

    def _is_free(self) -> bool:
        """Take the turn if nobody has it and nobody waits for it: this is all that is done where there is one writer,
        and takes a few microseconds."""
        assert self._files is not None
        ahead, turn = self._files
        try:
            fcntl.flock(ahead, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # If it is only the turn that is taken, we are next, and the waiter goes on from there.
            return False
        fcntl.flock(ahead, fcntl.LOCK_UN)
        return True

    def _wait(self) -> bool:
        """Wait for the turn, for as long as one may. The kernel wakes whoever waits for such a lock at once and in
        order, but knows no limit, so that a thread of its own waits there: trying again and again would be as slow
        as SQLite is, and would leave it to chance who comes next."""
        mine = threading.Event()
        self._asked, self._waiter_waits = mine, True
        self._asks.put(mine)
        if not self._has_waiter:
            self._spawn.thread(self._wait_in_line, name="tenure-sqlite-turn")
            self._has_waiter = True
        if mine.wait(self._seconds):
            return self._usable
        with self._door:
            self._asked = None
            return mine.is_set() and self._usable

    def _wait_in_line(self) -> None:
        while (mine := self._asks.get()) is not None:
            try:
                self._stand_in_line(mine)
            except OSError as problem:
                self._do_without(problem)
                mine.set()
        self.let_go()

    def _stand_in_line(self, mine: threading.Event) -> None:
        assert self._files is not None
        ahead, turn = self._files
        fcntl.flock(ahead, fcntl.LOCK_EX)
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(ahead, fcntl.LOCK_UN)
        with self._door:
            self._waiter_waits = False
            if self._asked is mine:
                mine.set()
            else:
                # Whoever asked has gone on without.
                fcntl.flock(turn, fcntl.LOCK_UN)

    def _do_without(self, problem: Exception) -> None:
        """Nobody may be kept waiting for us either, so the files are let go of, and with them what we have."""
        self._usable = False
        self.let_go()
        _log.info("%s is written without turns among processes: %s", self._path, problem)


def _open_beside(path: str) -> tuple[int, int]:
    """The files `-next` and `-turn`, which nobody reads or writes, for all who may open the database."""
    mode = Path(path).stat().st_mode & 0o666
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW
    ahead = os.open(f"{path}-next", flags, mode)
    try:
        return ahead, os.open(f"{path}-turn", flags, mode)
    except OSError:
        os.close(ahead)
        raise


_opened_here: weakref.WeakSet[FairFileLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A lock belongs to all processes that have the open file, and a child would keep what its parent died with."""
    for turn in list(_opened_here):
        with suppress(OSError):
            turn.let_go()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go_in_child)
