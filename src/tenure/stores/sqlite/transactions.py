"""What surrounds the work in each lane: how a transaction begins and ends, and when the WAL is emptied."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from tenure.stores.sqlite.connect import MEMORY
from tenure.stores.sqlite.statements import sql

WAL_BYTES_MAX = 32 * 1024 * 1024
"""Beyond this the WAL is written back into the file and truncated."""
CHECKPOINT_WAIT_MS = 50
"""How long a checkpoint waits for readers; what it could not do, the next one does."""


class Writing:
    """Takes the write lock at once, opens the gate for the store, and closes it before the commit."""

    def __init__(
        self, path: str, *, wal_bytes_max: int, has_gate: Callable[[], bool], rolled_back: Callable[[], None]
    ) -> None:
        self._path = path
        self._wal_bytes_max = wal_bytes_max
        self._wal_bytes_next = wal_bytes_max
        self._has_gate = has_gate
        self._rolled_back = rolled_back

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin immediate")
        if self._has_gate():
            open_gate(connection, "store")

    def finish(self, connection: sqlite3.Connection) -> None:
        if self._has_gate():
            connection.execute(sql("close_gate"))

    def rolled_back(self) -> None:
        self._rolled_back()

    def idle(self, connection: sqlite3.Connection) -> None:
        """Empty the WAL when it has grown. A reader that stays in the way is not waited for after each write, but only
        once there is as much again to be gained."""
        size = wal_bytes(self._path)
        if size <= self._wal_bytes_max:
            self._wal_bytes_next = self._wal_bytes_max
        elif size > self._wal_bytes_next:
            done = checkpoint(connection)
            self._wal_bytes_next = self._wal_bytes_max + (0 if done else size)


class Reading:
    """One snapshot for everything that waits. Whoever asked sees all that was committed before."""

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin")

    def finish(self, connection: sqlite3.Connection) -> None:
        return None

    def rolled_back(self) -> None:
        return None

    def idle(self, connection: sqlite3.Connection) -> None:
        return None


def open_gate(connection: sqlite3.Connection, writer: str) -> None:
    """Say who writes: the guards let pass what this writer may do."""
    connection.execute(sql("open_gate"), {"writer": writer})


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Write the WAL back into the file and truncate it. False when readers were in the way: a later one does it."""
    usual_ms = connection.execute("pragma busy_timeout").fetchone()[0]
    connection.execute(f"pragma busy_timeout = {CHECKPOINT_WAIT_MS}")
    try:
        busy = connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        return bool(busy == 0)
    except sqlite3.OperationalError:
        # Somebody else writes or checkpoints just now. Nothing is lost: what is in the WAL is durable there.
        return False
    finally:
        connection.execute(f"pragma busy_timeout = {usual_ms}")


def wal_bytes(path: str) -> int:
    """How large the WAL is."""
    if path == MEMORY:
        return 0
    try:
        return Path(f"{path}-wal").stat().st_size
    except OSError:
        return 0
