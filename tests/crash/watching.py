"""The places that an operation passes: each statement on SQLite, each round trip to PostgreSQL. A process that watches
itself can die at any of them.

Nothing of the store is replaced. On SQLite the connection's class is one that looks on; on PostgreSQL the driver's
protocol is one that reads the messages as they go by, so that it also knows the moment between request and reply.
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
ASIDE = ("select pg_notify($1, queue)", "typeinfo_tree", "set_config('jit'")
"""Parts of statements that are not the operation's: hints go their own way beside it, and the driver asks for
types, which it does without compiling its own question."""


class Crossing(msgspec.Struct, frozen=True):
    """One place, and the statement that is on its way there."""

    when: When
    sql: str

    def __str__(self) -> str:
        return f"{self.when}: {' '.join(self.sql.split())[:100]}"


class Watch:
    """Notes the places that are passed, once it is armed, and dies at the chosen one."""

    def __init__(self) -> None:
        self.armed = False
        self.dies_at: int | None = None
        self.crossed: list[Crossing] = []

    def cross(self, when: When, sql: str) -> None:
        if not self.armed or not sql or any(part in sql for part in ASIDE):
            return
        if len(self.crossed) == self.dies_at:
            die()
        self.crossed.append(Crossing(when, sql))


WATCH = Watch()
"""One per process, since a process has one life."""


def die() -> None:
    """Nobody gets to say goodbye: no rollback, no close, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


class WatchedConnection(sqlite3.Connection):
    """SQLite's own connection, which looks on."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        WATCH.cross("before", sql)
        cursor = super().execute(sql, parameters)
        WATCH.cross("after", sql)
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, _one_by_one(sql, parameters))

    def commit(self) -> None:
        WATCH.cross("before", "commit")
        super().commit()
        WATCH.cross("after", "commit")

    def rollback(self) -> None:
        WATCH.cross("before", "rollback")
        super().rollback()
        WATCH.cross("after", "rollback")


def _one_by_one(sql: str, rows: Iterable[Any]) -> Iterator[Any]:
    """SQLite asks for the next row when it is done with the one before."""
    for row in rows:
        WATCH.cross("before", sql)
        yield row
        WATCH.cross("after", sql)


class WatchedProtocol(asyncpg.protocol.Protocol):
    """The driver's own protocol, which looks on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._statements: dict[bytes, str] = {}
        # Nothing yet: what a server says to greet a new connection answers no statement.
        self._asked = ""
        self._unread = b""

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write
        transport.write = self._request
        super().connection_made(transport)

    def _request(self, data: bytes) -> None:
        asks = self._understood(bytes(data))
        if asks:
            WATCH.cross("before", self._asked)
        self._write(data)
        if asks:
            # Written to the socket: from here on the server may do it, whatever becomes of us.
            WATCH.cross("sent", self._asked)

    def data_received(self, data: Any) -> None:
        self._unread += data
        while (size := 1 + int.from_bytes(self._unread[1:5], "big")) <= len(self._unread) and len(self._unread) >= 5:
            kind, self._unread = self._unread[:1], self._unread[size:]
            if kind == b"Z":
                # Ready for the next query: the server has done it, and we have not heard of it yet.
                WATCH.cross("after", self._asked)
        super().data_received(data)

    def _understood(self, data: bytes) -> bool:
        """Read what is sent, and say whether the server is to act upon it now."""
        asks = False
        while len(data) >= 5 and data[:1] != b"\0":
            size = 1 + int.from_bytes(data[1:5], "big")
            kind, body, data = data[:1], data[5:size], data[size:]
            match kind:
                case b"Q":
                    self._asked = body.rstrip(b"\0").decode()
                case b"P":
                    name, sql = body.split(b"\0")[:2]
                    self._asked = self._statements[name] = sql.decode()
                case b"B":
                    self._asked = self._statements.get(body.split(b"\0")[1], self._asked)
            # A flush only has a statement prepared, and the server does nothing yet.
            asks = asks or kind in (b"Q", b"S")
        return asks


def watch_drivers() -> None:
    """From now on every connection of this process is watched."""
    sqlite3.connect = partial(sqlite3.connect, factory=WatchedConnection)  # type: ignore[assignment]
    asyncpg.protocol.Protocol = WatchedProtocol  # type: ignore[misc, assignment]
