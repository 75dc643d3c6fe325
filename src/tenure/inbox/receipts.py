"""One row per received message, written in the transaction of the receiver's own effect.

Effect and row are committed together, so a message that arrives again, after a lost response or a crash, finds its row
and is applied no second time. Two requests with the same message at once: the second waits for the first transaction to
end, and applies the message only if that was rolled back.
"""

from __future__ import annotations

from typing import Any

from tenure.errors import InvalidInput

CREATE_TABLE = """
create table if not exists webhook_receipts (
    message_id text primary key,
    received_at timestamp not null default current_timestamp
)
"""
_QMARK = "insert into webhook_receipts (message_id) values (?) on conflict (message_id) do nothing"
_FORMAT = "insert into webhook_receipts (message_id) values (%s) on conflict (message_id) do nothing"
_DOLLAR = "insert into webhook_receipts (message_id) values ($1) on conflict (message_id) do nothing"
_NAMED = "insert into webhook_receipts (message_id) values (:message_id) on conflict (message_id) do nothing"
_INSERT = {"sqlite3": _QMARK, "aiosqlite": _QMARK, "psycopg": _FORMAT}
_SYNC = ("sqlite3", "psycopg", "sqlalchemy")
_ASYNC = ("aiosqlite", "asyncpg", "psycopg", "sqlalchemy")


def record_receipt(connection: Any, message_id: str) -> bool:
    """Whether this message is received for the first time. Apply it only then, in the same transaction.

    `connection` is one of sqlite3 or psycopg, or a Connection or Session of SQLAlchemy. It must have a transaction, or
    begin one with the first statement.
    """
    driver = _driver(connection, _SYNC, "record_receipt")
    _require_transaction(connection, driver)
    if driver == "sqlalchemy":
        return bool(connection.execute(_text(), {"message_id": message_id}).rowcount == 1)
    return bool(connection.execute(_INSERT[driver], (message_id,)).rowcount == 1)


async def record_receipt_async(connection: Any, message_id: str) -> bool:
    """`record_receipt` for an async connection: asyncpg, aiosqlite, psycopg, or an AsyncConnection or AsyncSession of
    SQLAlchemy."""
    driver = _driver(connection, _ASYNC, "record_receipt_async")
    _require_transaction(connection, driver)
    if driver == "sqlalchemy":
        return bool((await connection.execute(_text(), {"message_id": message_id})).rowcount == 1)
    if driver == "asyncpg":
        return bool(await connection.execute(_DOLLAR, message_id) == "INSERT 0 1")
    return bool((await connection.execute(_INSERT[driver], (message_id,))).rowcount == 1)


def _driver(connection: Any, drivers: tuple[str, ...], function: str) -> str:
    modules = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    is_async = "Async" in type(connection).__name__ or bool(modules & {"asyncpg", "aiosqlite"})
    if is_async is (function == "record_receipt_async"):
        for driver in drivers:
            if driver in modules:
                return driver
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidInput("connection", f"{function} takes a connection of {', '.join(drivers)}, not {name}")


def _require_transaction(connection: Any, driver: str) -> None:
    """Refuse a connection that would commit the row by itself, before the effect."""
    if driver in {"sqlite3", "aiosqlite"}:
        commits = not connection.in_transaction and _commits_by_itself(connection)
    elif driver == "psycopg":
        commits = connection.autocommit and connection.info.transaction_status.name == "IDLE"
    elif driver == "asyncpg":
        commits = not connection.is_in_transaction()
    else:
        commits = False
    if commits:
        raise InvalidInput(
            "connection",
            "is in autocommit mode without a transaction, so the receipt would be kept if the effect "
            "failed; begin a transaction first",
        )


def _commits_by_itself(connection: Any) -> bool:
    autocommit = getattr(connection, "autocommit", None)
    # Python 3.11 has no such attribute, and later versions may defer to the isolation level.
    if isinstance(autocommit, bool):
        return autocommit
    return connection.isolation_level is None


def _text() -> Any:
    from sqlalchemy import text

    return text(_NAMED)
