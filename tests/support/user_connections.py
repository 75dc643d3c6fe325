"""Users with a connection of each supported kind, in an open transaction that the user ends."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tenure.stores.user_connections import UserTransaction, run_sync

T = TypeVar("T")
Runner = asyncio.Runner


@dataclass(frozen=True, slots=True)
class ConnectionUser:
    """A user's connection, and what the user does with it. Awaitables are run on the runner."""

    connection: Any
    runner: Runner
    commits: Callable[[], Any]
    rolls_back: Callable[[], Any]
    runs: Callable[[str], Any]

    def execute(self, sql: str) -> None:
        """Run a statement of the user."""
        self.wait(self.runs(sql))

    def commit(self) -> None:
        self.wait(self.commits())

    def rollback(self) -> None:
        self.wait(self.rolls_back())

    def enqueue(self, job: Any, *args: Any) -> Any:
        """Enqueue a call of `job`, or of a job with options, in the transaction of the connection."""
        within = job.within(self.connection)
        if within._user.connection.is_async:
            return self.runner.run(within.enqueue(*args))
        return within.enqueue_sync(*args)

    def run(self, transaction: UserTransaction, work: Awaitable[T]) -> T:
        """Run a coroutine of `transaction`, without an event loop if its connection is synchronous."""
        return self.runner.run(_await(work)) if transaction.connection.is_async else run_without_loop(transaction, work)

    def wait(self, value: Any) -> Any:
        return self.runner.run(_await(value)) if inspect.isawaitable(value) else value


async def _await(value: Awaitable[T]) -> T:
    return await value


def run_without_loop(transaction: UserTransaction, work: Awaitable[T]) -> T:
    return run_sync(transaction.connection, work, instead="await")


OpenConnection = Callable[[str, Runner], AbstractContextManager[ConnectionUser]]
CONNECTION_KINDS: dict[str, OpenConnection] = {}
"""By name. The names of those on SQLite begin with `sqlite`."""


def connection_kind(open_connection: Callable[[str, Runner], Iterator[ConnectionUser]]) -> OpenConnection:
    CONNECTION_KINDS[open_connection.__name__] = contextmanager(open_connection)
    return CONNECTION_KINDS[open_connection.__name__]


@connection_kind
def psycopg_plain(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    with psycopg.connect(url) as connection:
        yield ConnectionUser(
            connection, runner, connection.commit, connection.rollback, lambda sql: _execute(connection, sql)
        )


@connection_kind
def psycopg_with_odd_factories(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    """The user has set every factory, and begun the transaction by hand."""
    with psycopg.connect(
        url, autocommit=True, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.execute("begin")
        yield ConnectionUser(
            connection, runner, connection.commit, connection.rollback, lambda sql: _execute(connection, sql)
        )


@connection_kind
def psycopg_block(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    with psycopg.connect(url, autocommit=True) as connection, ExitStack() as block:
        block.enter_context(connection.transaction())
        yield ConnectionUser(
            connection, runner, block.close, lambda: _abort(block), lambda sql: _execute(connection, sql)
        )


@connection_kind
def psycopg_async(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    connection = runner.run(psycopg.AsyncConnection.connect(url))
    yield ConnectionUser(connection, runner, connection.commit, connection.rollback, connection.execute)
    runner.run(connection.close())


@connection_kind
def asyncpg_plain(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    connection = runner.run(asyncpg.connect(url))
    transaction = connection.transaction()
    runner.run(transaction.start())
    yield ConnectionUser(connection, runner, transaction.commit, transaction.rollback, connection.execute)
    runner.run(connection.close())


@connection_kind
def asyncpg_pooled(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    pool = runner.run(_pool(url))
    connection = runner.run(_await(pool.acquire()))
    transaction = connection.transaction()
    runner.run(transaction.start())
    yield ConnectionUser(connection, runner, transaction.commit, transaction.rollback, connection.execute)
    runner.run(pool.close() if not connection._con else _release(pool, connection))


def _sqlalchemy(url: str, driver: str) -> str:
    return f"{url.partition('://')[0]}+{driver}://{url.partition('://')[2]}"


def _on_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = sqlalchemy.create_engine(url)
    with closing(engine.connect()) as connection:
        yield ConnectionUser(
            connection, runner, connection.commit, connection.rollback, lambda sql: _execute(connection, sql)
        )
    engine.dispose()


def _on_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = sqlalchemy.create_engine(url)
    with Session(engine) as session:
        yield ConnectionUser(session, runner, session.commit, session.rollback, lambda sql: _execute(session, sql))
    engine.dispose()


def _on_async_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = create_async_engine(url)
    connection = runner.run(_await(engine.connect()))
    yield ConnectionUser(
        connection, runner, connection.commit, connection.rollback, lambda sql: connection.execute(sqlalchemy.text(sql))
    )
    runner.run(connection.close())
    runner.run(engine.dispose())


def _on_async_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = create_async_engine(url)
    session = AsyncSession(engine)
    yield ConnectionUser(
        session, runner, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql))
    )
    runner.run(session.close())
    runner.run(engine.dispose())


@connection_kind
def sqlalchemy_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_connection(_sqlalchemy(url, "psycopg"), runner)


@connection_kind
def sqlalchemy_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_session(_sqlalchemy(url, "psycopg"), runner)


@connection_kind
def sqlalchemy_scoped_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = sqlalchemy.create_engine(_sqlalchemy(url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    yield ConnectionUser(session, runner, session.commit, session.rollback, lambda sql: _execute(session, sql))
    session.remove()
    engine.dispose()


@connection_kind
def sqlalchemy_async_connection_on_asyncpg(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_async_connection(_sqlalchemy(url, "asyncpg"), runner)


@connection_kind
def sqlalchemy_async_session_on_asyncpg(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_async_session(_sqlalchemy(url, "asyncpg"), runner)


@connection_kind
def sqlalchemy_async_session_on_psycopg(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_async_session(_sqlalchemy(url, "psycopg"), runner)


@connection_kind
def sqlalchemy_async_scoped_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    engine = create_async_engine(_sqlalchemy(url, "psycopg"))
    session = async_scoped_session(sessionmaker(engine, class_=AsyncSession), scopefunc=lambda: "the only one")  # type: ignore[call-overload]
    yield ConnectionUser(
        session, runner, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql))
    )
    runner.run(session.remove())
    runner.run(engine.dispose())


@connection_kind
def sqlite_sqlalchemy_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_connection(url, runner)


@connection_kind
def sqlite_sqlalchemy_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_session(url, runner)


@connection_kind
def sqlite_sqlalchemy_async_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_async_connection(_sqlalchemy(url, "aiosqlite"), runner)


@connection_kind
def sqlite_sqlalchemy_async_session(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_async_session(_sqlalchemy(url, "aiosqlite"), runner)


def _on_sqlite3(url: str, runner: Runner, **settings: Any) -> Iterator[ConnectionUser]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), **settings)) as connection:
        yield ConnectionUser(
            connection, runner, connection.commit, connection.rollback, lambda sql: _execute(connection, sql)
        )


@connection_kind
def sqlite_legacy(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    """Python begins a transaction with the first statement that writes."""
    yield from _on_sqlite3(url, runner)


@connection_kind
def sqlite_begun_by_hand(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    for user in _on_sqlite3(url, runner, isolation_level=None):
        user.connection.execute("begin")
        yield user


@connection_kind
def sqlite_with_odd_factories(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    for user in _on_sqlite3(url, runner, isolation_level="EXCLUSIVE", detect_types=sqlite3.PARSE_DECLTYPES):
        user.connection.row_factory = lambda cursor, row: {
            c[0]: v for c, v in zip(cursor.description, row, strict=True)
        }
        user.connection.text_factory = bytes
        yield user


if sys.version_info >= (3, 12):

    @connection_kind
    def sqlite_without_autocommit(url: str, runner: Runner) -> Iterator[ConnectionUser]:
        yield from _on_sqlite3(url, runner, autocommit=False)

    @connection_kind
    def sqlite_autocommit_begun_by_hand(url: str, runner: Runner) -> Iterator[ConnectionUser]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), autocommit=True)) as connection:
            connection.execute("begin")
            yield ConnectionUser(
                connection,
                runner,
                lambda: _execute(connection, "commit"),
                lambda: _execute(connection, "rollback"),
                lambda sql: _execute(connection, sql),
            )


@connection_kind
def sqlite_aiosqlite(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    connection = runner.run(_await(aiosqlite.connect(url.removeprefix("sqlite:///"))))
    yield ConnectionUser(connection, runner, connection.commit, connection.rollback, connection.execute)
    runner.run(connection.close())


def django_connections(url: str) -> Any:
    """Return a handler of Django's connections for one database."""
    import django
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    if url.startswith("sqlite"):
        facts = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    else:
        parts = urlsplit(url)
        facts = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.removeprefix("/"),
            "USER": parts.username or "",
            "HOST": parts.hostname or "",
            "PORT": str(parts.port),
        }
    return ConnectionHandler({"default": facts})


def _on_django(url: str, runner: Runner, *, proxy: bool) -> Iterator[ConnectionUser]:
    from django.db.transaction import Atomic
    from django.utils.connection import ConnectionProxy

    connections = django_connections(url)
    connection = connections["default"]
    connection.ensure_connection()
    # `atomic` looks its connection up in Django's settings; each of these tests has its own database.
    atomic = _AtomicOn(connection, Atomic)
    atomic.enter()
    given = ConnectionProxy(connections, "default") if proxy else connection
    yield ConnectionUser(given, runner, atomic.leave, atomic.abort, lambda sql: _execute_on_django(connection, sql))
    connections.close_all()


class _AtomicOn:
    """The outermost `atomic` block on a given connection."""

    def __init__(self, connection: Any, atomic: Any) -> None:
        self._connection = connection
        self._block = atomic(using="default", savepoint=True, durable=False)

    def enter(self) -> None:
        self._with(self._block.__enter__)

    def leave(self) -> None:
        self._with(lambda: self._block.__exit__(None, None, None))

    def abort(self) -> None:
        error = RuntimeError("aborted")
        self._with(lambda: self._block.__exit__(type(error), error, None))

    def _with(self, step: Callable[[], Any]) -> None:
        from django.db import transaction

        found = transaction.get_connection
        transaction.get_connection = lambda using=None: self._connection
        try:
            step()
        finally:
            transaction.get_connection = found


@connection_kind
def django_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_django(url, runner, proxy=False)


@connection_kind
def django_proxy(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_django(url, runner, proxy=True)


@connection_kind
def sqlite_django_connection(url: str, runner: Runner) -> Iterator[ConnectionUser]:
    yield from _on_django(url, runner, proxy=False)


def connection_kinds(*, sqlite: bool) -> list[str]:
    return [name for name in CONNECTION_KINDS if name.startswith("sqlite") is sqlite]


def _execute(connection: Any, sql: str) -> None:
    connection.execute(sqlalchemy.text(sql) if isinstance(connection, _OF_SQLALCHEMY) else sql)


_OF_SQLALCHEMY = (sqlalchemy.Connection, Session, scoped_session)


def _execute_on_django(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _abort(block: ExitStack) -> None:
    error = psycopg.Rollback()
    block.__exit__(type(error), error, None)


async def _pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=2)


async def _release(pool: Any, connection: Any) -> None:
    await pool.release(connection)
    await pool.close()
