"""Connections of every kind that a program may have, each in a transaction of its own, to be lent to tenure."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

Runner = asyncio.Runner


@dataclass(frozen=True, slots=True)
class Lent:
    """A connection, and what its owner does with it. Whatever must be waited for is waited for on the runner."""

    connection: Any
    runner: Runner
    owner_commits: Callable[[], Any]
    owner_rolls_back: Callable[[], Any]
    owner_runs: Callable[[str], Any]

    def execute(self, sql: str) -> None:
        """A statement of the owner's own."""
        self.wait(self.owner_runs(sql))

    def commit(self) -> None:
        self.wait(self.owner_commits())

    def rollback(self) -> None:
        self.wait(self.owner_rolls_back())

    def enqueue(self, job: Any, *args: Any) -> Any:
        """What `job` (a declared one, or its options) gives for a call within this connection's transaction."""
        within = job.within(self.connection)
        if within._caller.is_async:
            return self.runner.run(within.enqueue(*args))
        return within.enqueue_sync(*args)

    def wait(self, value: Any) -> Any:
        return self.runner.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


Lender = Callable[[str, Runner], AbstractContextManager[Lent]]
LENDERS: dict[str, Lender] = {}
"""By name. Those for SQLite begin with `sqlite`."""


def lender(lend: Callable[[str, Runner], Iterator[Lent]]) -> Lender:
    LENDERS[lend.__name__] = contextmanager(lend)
    return LENDERS[lend.__name__]


@lender
def psycopg_plain(url: str, runner: Runner) -> Iterator[Lent]:
    with psycopg.connect(url) as connection:
        yield Lent(connection, runner, connection.commit, connection.rollback, lambda sql: _done(connection, sql))


@lender
def psycopg_with_odd_factories(url: str, runner: Runner) -> Iterator[Lent]:
    """Its owner has set everything that can be set, and opened a transaction by hand."""
    with psycopg.connect(
        url, autocommit=True, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.execute("begin")
        yield Lent(connection, runner, connection.commit, connection.rollback, lambda sql: _done(connection, sql))


@lender
def psycopg_block(url: str, runner: Runner) -> Iterator[Lent]:
    with psycopg.connect(url, autocommit=True) as connection, ExitStack() as block:
        block.enter_context(connection.transaction())
        yield Lent(connection, runner, block.close, lambda: _broken_off(block), lambda sql: _done(connection, sql))


@lender
def psycopg_async(url: str, runner: Runner) -> Iterator[Lent]:
    connection = runner.run(psycopg.AsyncConnection.connect(url))
    yield Lent(connection, runner, connection.commit, connection.rollback, connection.execute)
    runner.run(connection.close())


@lender
def asyncpg_plain(url: str, runner: Runner) -> Iterator[Lent]:
    connection = runner.run(asyncpg.connect(url))
    transaction = connection.transaction()
    runner.run(transaction.start())
    yield Lent(connection, runner, transaction.commit, transaction.rollback, connection.execute)
    runner.run(connection.close())


@lender
def asyncpg_pooled(url: str, runner: Runner) -> Iterator[Lent]:
    pool = runner.run(_pool(url))
    connection = runner.run(_awaited(pool.acquire()))
    transaction = connection.transaction()
    runner.run(transaction.start())
    yield Lent(connection, runner, transaction.commit, transaction.rollback, connection.execute)
    runner.run(pool.close() if not connection._con else _given_back(pool, connection))


def _sqlalchemy(url: str, driver: str) -> str:
    return f"{url.partition('://')[0]}+{driver}://{url.partition('://')[2]}"


def _lend_connection(url: str, runner: Runner) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(url)
    with closing(engine.connect()) as connection:
        yield Lent(connection, runner, connection.commit, connection.rollback, lambda sql: _done(connection, sql))
    engine.dispose()


def _lend_session(url: str, runner: Runner) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(url)
    with Session(engine) as session:
        yield Lent(session, runner, session.commit, session.rollback, lambda sql: _done(session, sql))
    engine.dispose()


def _lend_async_connection(url: str, runner: Runner) -> Iterator[Lent]:
    engine = create_async_engine(url)
    connection = runner.run(_awaited(engine.connect()))
    yield Lent(
        connection, runner, connection.commit, connection.rollback, lambda sql: connection.execute(sqlalchemy.text(sql))
    )
    runner.run(connection.close())
    runner.run(engine.dispose())


def _lend_async_session(url: str, runner: Runner) -> Iterator[Lent]:
    engine = create_async_engine(url)
    session = AsyncSession(engine)
    yield Lent(session, runner, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql)))
    runner.run(session.close())
    runner.run(engine.dispose())


@lender
def sqlalchemy_connection(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_connection(_sqlalchemy(url, "psycopg"), runner)


@lender
def sqlalchemy_session(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_session(_sqlalchemy(url, "psycopg"), runner)


@lender
def sqlalchemy_scoped_session(url: str, runner: Runner) -> Iterator[Lent]:
    engine = sqlalchemy.create_engine(_sqlalchemy(url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    yield Lent(session, runner, session.commit, session.rollback, lambda sql: _done(session, sql))
    session.remove()
    engine.dispose()


@lender
def sqlalchemy_async_connection_on_asyncpg(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_async_connection(_sqlalchemy(url, "asyncpg"), runner)


@lender
def sqlalchemy_async_session_on_asyncpg(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_async_session(_sqlalchemy(url, "asyncpg"), runner)


@lender
def sqlalchemy_async_session_on_psycopg(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_async_session(_sqlalchemy(url, "psycopg"), runner)


@lender
def sqlalchemy_async_scoped_session(url: str, runner: Runner) -> Iterator[Lent]:
    engine = create_async_engine(_sqlalchemy(url, "psycopg"))
    session = async_scoped_session(sessionmaker(engine, class_=AsyncSession), scopefunc=lambda: "the only one")  # type: ignore[call-overload]
    yield Lent(session, runner, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql)))
    runner.run(session.remove())
    runner.run(engine.dispose())


@lender
def sqlite_sqlalchemy_connection(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_connection(url, runner)


@lender
def sqlite_sqlalchemy_session(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_session(url, runner)


@lender
def sqlite_sqlalchemy_async_connection(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_async_connection(_sqlalchemy(url, "aiosqlite"), runner)


@lender
def sqlite_sqlalchemy_async_session(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_async_session(_sqlalchemy(url, "aiosqlite"), runner)


def _lend_sqlite(url: str, runner: Runner, **settings: Any) -> Iterator[Lent]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), **settings)) as connection:
        yield Lent(connection, runner, connection.commit, connection.rollback, lambda sql: _done(connection, sql))


@lender
def sqlite_legacy(url: str, runner: Runner) -> Iterator[Lent]:
    """Python begins a transaction by itself with the first statement that writes."""
    yield from _lend_sqlite(url, runner)


@lender
def sqlite_begun_by_hand(url: str, runner: Runner) -> Iterator[Lent]:
    for lent in _lend_sqlite(url, runner, isolation_level=None):
        lent.connection.execute("begin")
        yield lent


@lender
def sqlite_with_odd_factories(url: str, runner: Runner) -> Iterator[Lent]:
    for lent in _lend_sqlite(url, runner, isolation_level="EXCLUSIVE", detect_types=sqlite3.PARSE_DECLTYPES):
        lent.connection.row_factory = lambda cursor, row: {
            c[0]: v for c, v in zip(cursor.description, row, strict=True)
        }
        lent.connection.text_factory = bytes
        yield lent


if sys.version_info >= (3, 12):

    @lender
    def sqlite_without_autocommit(url: str, runner: Runner) -> Iterator[Lent]:
        yield from _lend_sqlite(url, runner, autocommit=False)

    @lender
    def sqlite_autocommit_begun_by_hand(url: str, runner: Runner) -> Iterator[Lent]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), autocommit=True)) as connection:
            connection.execute("begin")
            yield Lent(
                connection,
                runner,
                lambda: _done(connection, "commit"),
                lambda: _done(connection, "rollback"),
                lambda sql: _done(connection, sql),
            )


@lender
def sqlite_aiosqlite(url: str, runner: Runner) -> Iterator[Lent]:
    connection = runner.run(_awaited(aiosqlite.connect(url.removeprefix("sqlite:///"))))
    yield Lent(connection, runner, connection.commit, connection.rollback, connection.execute)
    runner.run(connection.close())


def django_connections(url: str) -> Any:
    """Django's handler of connections, for this database alone."""
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


def _lend_django(url: str, runner: Runner, *, proxy: bool) -> Iterator[Lent]:
    from django.db.transaction import Atomic
    from django.utils.connection import ConnectionProxy

    connections = django_connections(url)
    connection = connections["default"]
    connection.ensure_connection()
    # `atomic` finds its connection in Django's own settings; these tests have a connection for each database instead.
    atomic = _AtomicOn(connection, Atomic)
    atomic.enter()
    lent = ConnectionProxy(connections, "default") if proxy else connection
    yield Lent(lent, runner, atomic.leave, atomic.break_off, lambda sql: _done_by_django(connection, sql))
    connections.close_all()


class _AtomicOn:
    """What `atomic` does at the outermost level, on a given connection."""

    def __init__(self, connection: Any, atomic: Any) -> None:
        self._connection = connection
        self._block = atomic(using="default", savepoint=True, durable=False)

    def enter(self) -> None:
        self._with(self._block.__enter__)

    def leave(self) -> None:
        self._with(lambda: self._block.__exit__(None, None, None))

    def break_off(self) -> None:
        error = RuntimeError("broken off")
        self._with(lambda: self._block.__exit__(type(error), error, None))

    def _with(self, step: Callable[[], Any]) -> None:
        from django.db import transaction

        found = transaction.get_connection
        transaction.get_connection = lambda using=None: self._connection
        try:
            step()
        finally:
            transaction.get_connection = found


@lender
def django_connection(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_django(url, runner, proxy=False)


@lender
def django_proxy(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_django(url, runner, proxy=True)


@lender
def sqlite_django_connection(url: str, runner: Runner) -> Iterator[Lent]:
    yield from _lend_django(url, runner, proxy=False)


def lenders(*, sqlite: bool) -> list[str]:
    return [name for name in LENDERS if name.startswith("sqlite") is sqlite]


def _done(connection: Any, sql: str) -> None:
    connection.execute(sqlalchemy.text(sql) if isinstance(connection, _OF_SQLALCHEMY) else sql)


_OF_SQLALCHEMY = (sqlalchemy.Connection, Session, scoped_session)


def _done_by_django(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _broken_off(block: ExitStack) -> None:
    error = psycopg.Rollback()
    block.__exit__(type(error), error, None)


async def _pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=2)


async def _given_back(pool: Any, connection: Any) -> None:
    await pool.release(connection)
    await pool.close()
