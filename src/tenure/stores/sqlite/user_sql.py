"""The user's own statements inside a commit block: forbidden actions are refused before they are executed.

SQLite reports each action of a statement before it runs (`set_authorizer`), so that no SQL is parsed here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tenure.errors import GuardViolated, InvalidInput, StoreError, TenureError
from tenure.stores.sqlite.connect import PRIMARY_CODE

READING = frozenset(
    {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    | {sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_REINDEX}
)
ENDING = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT})
OUTLASTING = frozenset({sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
"""Actions that change the connection, which outlives the transaction."""
OURS = "tenure_"
STEPS_BETWEEN_CHECKS = 20_000
"""How many instructions of SQLite's virtual machine, some milliseconds at most, run between two checks whether the
block was abandoned."""

ENVIRONMENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
    }
    | {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOTADB}
)
"""Errors of the file, not of the statement."""


class UserSqlError(Exception):
    """Carries an error of the user's own statement past the translation of the store's errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Result(msgspec.Struct, frozen=True):
    """The rows of a statement by column name, and how many rows it touched."""

    rows: list[dict[str, Any]]
    touched: int


def run(connection: sqlite3.Connection, sql: str, values: Sequence[Any], *, abandoned: Callable[[], bool]) -> Result:
    """Run one statement of the user's, whose parameters are `$1`, `$2`, … It is interrupted when the block is
    abandoned, also if that happens right before it begins."""
    before = connection.total_changes
    with _authorized(connection), _interrupted_when(connection, abandoned), user_sql_errors():
        cursor = connection.execute(sql, {str(number): value for number, value in enumerate(values, 1)})
        found = cursor.fetchall()
    if not connection.in_transaction:
        raise StoreError("the statement has ended the transaction, and everything before it was rolled back")
    names = [column[0] for column in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found]
    # SQLite counts for statements that begin with insert, update or delete; not for one that begins with `with`.
    counted = cursor.rowcount if cursor.rowcount >= 0 else max(connection.total_changes - before, len(rows))
    return Result(rows, counted)


@contextmanager
def user_sql_errors() -> Iterator[None]:
    """Errors of the user's statement or its values are raised to the user as SQLite raised them."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE in ENVIRONMENT:
            raise
        raise UserSqlError(error) from error
    except (sqlite3.Warning, ValueError, OverflowError, UnicodeError) as error:
        raise UserSqlError(error) from error


@contextmanager
def _interrupted_when(connection: sqlite3.Connection, abandoned: Callable[[], bool]) -> Iterator[None]:
    connection.set_progress_handler(abandoned, STEPS_BETWEEN_CHECKS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def _authorized(connection: sqlite3.Connection) -> Iterator[None]:
    """Refuse each forbidden action of a statement, with the reason."""
    refusals: list[TenureError] = []

    def may(action: int, one: str | None, other: str | None, _database: str | None, _by: str | None) -> int:
        refusal = _refusal(action, one, other)
        if refusal is None:
            return sqlite3.SQLITE_OK
        refusals.append(refusal)
        return sqlite3.SQLITE_DENY

    # Setting it makes SQLite prepare cached statements again, so that each is checked.
    connection.set_authorizer(may)
    try:
        yield
    except UserSqlError as error:
        if refusals:
            raise refusals[0] from error.error
        raise
    finally:
        connection.set_authorizer(None)


def _refusal(action: int, one: str | None, other: str | None) -> TenureError | None:
    if action in ENDING:
        what = "SAVEPOINT" if action == sqlite3.SQLITE_SAVEPOINT else one
        return InvalidInput(
            "sql", f"{what} is refused: the transaction begins and ends with its block; raise an error to roll it back"
        )
    if action in OUTLASTING:
        return InvalidInput("sql", f"what would outlive the transaction on its connection is refused ({one})")
    if action not in READING:
        for name in (one, other):
            if name is not None and name.lower().startswith(OURS):
                return GuardViolated(f"{name} is tenure's own: the caller's statements may read it, and not change it")
    return None
