"""The records of a peer that stores its jobs in a SQLite file, read over a separate connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Books:
    """The statements that read a peer's records. Each returns one number, the last one nanoseconds."""

    left: str
    done: str | None = None
    first_claim: str | None = None


class SqliteLedger:
    """Answers the questions of `protocol.Ledger` by SQL."""

    def __init__(self, connection: sqlite3.Connection, books: Books) -> None:
        self._connection, self._books = connection, books

    def left(self) -> int:
        return self._number(self._books.left) or 0

    def done(self) -> int | None:
        return None if self._books.done is None else self._number(self._books.done)

    def first_claim_ns(self) -> int | None:
        return None if self._books.first_claim is None else self._number(self._books.first_claim)

    def wal_bytes(self) -> None:
        return None

    def settle(self) -> None:
        """SQLite does no work in the background."""

    def _number(self, statement: str) -> int | None:
        [number] = self._connection.execute(statement).fetchone()
        return None if number is None else int(number)


@contextmanager
def ledger(url: str, books: Books) -> Iterator[SqliteLedger]:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        yield SqliteLedger(connection, books)
