"""Who of one process writes a file next. SQLite's own lock is polled for and serves whoever happens to ask, so that a
lane that writes without pause would keep the other one out; among ourselves we wait in order and are woken at once."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque

WAIT_SECONDS = 30.0
"""Longer than any transaction of ours: this only keeps a fault elsewhere from holding a lane for ever."""


class Turns:
    """A lock that is given in the order of asking."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait for one's turn. Who waits in vain is told what SQLite would say of another process."""
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

    def give_back(self) -> None:
        """Let the next one in: the turn passes over without ever being free."""
        with self._door:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
