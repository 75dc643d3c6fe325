"""Crash points: before and after each statement on SQLite, around each round trip to PostgreSQL. A process can kill
itself at any of them.

Nothing of the store is replaced. On SQLite the connection's class is a subclass that records; on PostgreSQL the
driver's protocol is a subclass that parses the messages, so that there is a crash point between request and reply.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

import asyncpg.protocol
import msgspec

When = Literal["before", "sent", "after", "acknowledge"]
IGNORED = ("select pg_notify($1, queue)", "typeinfo_tree", "set_config('jit'")
"""Parts of statements that do not belong to the operation: wake-ups are sent beside it, and the driver queries
types."""


class CrashPoint(msgspec.Struct, frozen=True):
    """A point in time relative to a statement."""

    when: When
    sql: str

    def __str__(self) -> str:
        return f"{self.when}: {' '.join(self.sql.split())[:100]}"


class CrashPointRecorder:
    """Records crash points once it is armed, and kills the process at the chosen one."""

    def __init__(self) -> None:
        self.armed = False
        self.crash_at: int | None = None
        self.points: list[CrashPoint] = []

    def reach(self, when: When, sql: str) -> None:
        if not self.armed or not sql or any(part in sql for part in IGNORED):
            return
        if len(self.points) == self.crash_at:
            kill_own_process()
        self.points.append(CrashPoint(when, sql))


RECORDER = CrashPointRecorder()
"""One per process."""


def kill_own_process() -> None:
    """No rollback, no close, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


class RecordedConnection(sqlite3.Connection):
    """SQLite's own connection, recorded."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        RECORDER.reach("before", sql)
        cursor = super().execute(sql, parameters)
        RECORDER.reach("after", sql)
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, _one_by_one(sql, parameters))

    def commit(self) -> None:
        RECORDER.reach("before", "commit")
        super().commit()
        RECORDER.reach("after", "commit")

    def rollback(self) -> None:
        RECORDER.reach("before", "rollback")
        super().rollback()
        RECORDER.reach("after", "rollback")


def _one_by_one(sql: str, rows: Iterable[Any]) -> Iterator[Any]:
    """SQLite takes the next row when it has executed the one before."""
    for row in rows:
        RECORDER.reach("before", sql)
        yield row
        RECORDER.reach("after", sql)


class RecordedProtocol(asyncpg.protocol.Protocol):
    """The driver's own protocol, recorded."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._statements: dict[bytes, str] = {}
        # What the server sends when a connection starts replies to no statement.
        self._statement = ""
        self._unread = b""

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write
        transport.write = self._request
        super().connection_made(transport)

    def _request(self, data: bytes) -> None:
        executes = self._note_request(bytes(data))
        if executes:
            RECORDER.reach("before", self._statement)
        self._write(data)
        if executes:
            # Written to the socket: from here on the server may execute it, whatever happens to this process.
            RECORDER.reach("sent", self._statement)

    def data_received(self, data: Any) -> None:
        self._unread += data
        while (size := 1 + int.from_bytes(self._unread[1:5], "big")) <= len(self._unread) and len(self._unread) >= 5:
            kind, self._unread = self._unread[:1], self._unread[size:]
            if kind == b"Z":
                # Ready for query: the server has executed it, and the process has not read the reply.
                RECORDER.reach("after", self._statement)
        super().data_received(data)

    def _note_request(self, data: bytes) -> bool:
        """Parse what is sent. Returns whether the server executes something now."""
        executes = False
        while len(data) >= 5 and data[:1] != b"\0":
            size = 1 + int.from_bytes(data[1:5], "big")
            kind, body, data = data[:1], data[5:size], data[size:]
            match kind:
                case b"Q":
                    self._statement = body.rstrip(b"\0").decode()
                case b"P":
                    name, sql = body.split(b"\0")[:2]
                    self._statement = self._statements[name] = sql.decode()
                case b"B":
                    self._statement = self._statements.get(body.split(b"\0")[1], self._statement)
            # A flush only prepares a statement; nothing is executed.
            executes = executes or kind in (b"Q", b"S")
        return executes


def install_recorders() -> None:
    """Record every connection that this process opens from now on."""
    sqlite3.connect = partial(sqlite3.connect, factory=RecordedConnection)  # type: ignore[assignment]
    asyncpg.protocol.Protocol = RecordedProtocol  # type: ignore[misc, assignment]
