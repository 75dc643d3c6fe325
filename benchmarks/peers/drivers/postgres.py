"""The records of a peer that stores its jobs in PostgreSQL, read over a separate connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.abc import Query


@dataclass(frozen=True)
class Books:
    """The statements that read a peer's records. Each returns one number; the last one seconds."""

    left: Query
    done: Query
    first_claim: Query | None = None


class PostgresLedger:
    """Answers the questions of `protocol.Ledger` by SQL."""

    def __init__(self, connection: psycopg.Connection[tuple[float | None]], books: Books) -> None:
        self._connection, self._books = connection, books

    def left(self) -> int:
        return int(self._number(self._books.left) or 0)

    def done(self) -> int:
        return int(self._number(self._books.done) or 0)

    def first_claim_ns(self) -> int | None:
        if self._books.first_claim is None:
            return None
        seconds = self._number(self._books.first_claim)
        return None if seconds is None else int(float(seconds) * 1e9)

    def wal_bytes(self) -> int:
        return int(self._number("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn") or 0)

    def settle(self) -> None:
        """Vacuum before the timed part, for every peer: autovacuum would start within a minute."""
        self._connection.execute("vacuum (analyze)")

    def _number(self, statement: Query) -> float | None:
        row = self._connection.execute(statement).fetchone()
        return None if row is None else row[0]


@contextmanager
def ledger(url: str, books: Books) -> Iterator[PostgresLedger]:
    connection: psycopg.Connection[tuple[float | None]]
    with psycopg.connect(url, autocommit=True) as connection:
        yield PostgresLedger(connection, books)
