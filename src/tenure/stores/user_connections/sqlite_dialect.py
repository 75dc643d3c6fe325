"""The caller's transaction on SQLite: the store's own functions on a connection that is lent to us.

The gate is open only while they write. What fails is undone to where the caller stood, and the caller's transaction,
factories and modes are as they were.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import GuardViolated, InvalidInput
from tenure.lifecycle.records import Policy
from tenure.seams import Clock
from tenure.stores.contract import Applied, Artifact, EnqueueRequest, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.schema import require_fit
from tenure.stores.sqlite import apply as sqlite_apply
from tenure.stores.sqlite import artifacts as sqlite_artifacts
from tenure.stores.sqlite import enqueue as sqlite_enqueue
from tenure.stores.sqlite import migrate, outbox
from tenure.stores.sqlite.commit_block import BLOCK_SHARE
from tenure.stores.sqlite.connect import BUSY_SECONDS, MEMORY
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import PolicyOf
from tenure.stores.sqlite.statements import sql
from tenure.stores.sqlite.transactions import open_gate
from tenure.stores.user_connections.protocol import Driver

DEADLINE_SECONDS_MAX = BLOCK_SHARE * BUSY_SECONDS
"""Whoever holds the write lock for longer makes others fail, heartbeats among them."""


async def enqueue(
    borrowed: Driver, requests: Sequence[EnqueueRequest], *, url: str, clock: Clock
) -> list[EnqueueResult]:
    """The jobs that the requests led to, in their order."""

    def work(connection: sqlite3.Connection) -> list[EnqueueResult]:
        # Nothing is remembered from one call to the next: the caller may roll back, and never tells us.
        policies = SqlitePolicies()
        policy_of = _policies_on(connection, policies)
        with _writing(connection, url):
            return sqlite_enqueue.enqueue(
                connection,
                requests,
                now=clock.now(),
                policies=policies,
                read=lambda job_id: sqlite_apply.read_one(connection, job_id, policy_of),
            )

    return await borrowed.run(work)


async def apply(
    borrowed: Driver,
    request: Request,
    *,
    messages: Sequence[OutboxMessage],
    artifacts: Sequence[Artifact],
    url: str,
    clock: Clock,
) -> Outcome:
    """The outcome of one request. Messages and artifacts are written once it is applied."""

    def work(connection: sqlite3.Connection) -> Outcome:
        policy_of = _policies_on(connection, SqlitePolicies())
        with _writing(connection, url):
            # The write lock is held by now: waiting for it must not stretch the lease.
            now = clock.now()
            [outcome] = sqlite_apply.apply(connection, [request], now=now, policy_of=policy_of)
            if isinstance(outcome, Applied):
                sqlite_artifacts.attach(connection, outcome.job, artifacts, now=now, policy_of=policy_of)
                in_order = sorted(messages, key=lambda message: message.aggregate)
                outbox.post(connection, [(message, outcome.job) for message in in_order], now=now)
            return outcome

    return await borrowed.run(work)


async def require_same_file(borrowed: Driver, *, url: str) -> None:
    """Refuse a connection to another file than the app's, before anything is done with it."""

    def look(connection: sqlite3.Connection) -> None:
        with _plain(connection):
            _require_same_file(connection, url)

    await borrowed.run(look)


def _policies_on(connection: sqlite3.Connection, policies: SqlitePolicies) -> PolicyOf:
    def policy_of(policy_id: int) -> Policy:
        return policies.read(connection, policy_id)

    return policy_of


@contextmanager
def _writing(connection: sqlite3.Connection, url: str) -> Iterator[None]:
    """The caller's transaction, with the gate open. In autocommit mode it is a transaction of our own."""
    with _plain(connection):
        file = _require_same_file(connection, url)
        began = not connection.in_transaction
        if began:
            connection.execute("begin immediate")
        try:
            with _undone_on_error(connection):
                _open_gate(connection, file)
                yield
                connection.execute(sql("close_gate"))
            if began and _commits_by_itself(connection):
                connection.execute("commit")
        except BaseException as problem:
            if began and connection.in_transaction:
                connection.execute("rollback")
            if isinstance(problem, sqlite3.IntegrityError):
                raise GuardViolated(f"{file} refused a write: {problem}") from problem
            raise


@contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Rows as tuples and text as text, and afterwards again as the caller wants them."""
    factories = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = factories


@contextmanager
def _undone_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, within a transaction that goes on. Undoing also closes the gate."""
    connection.execute("savepoint tenure_caller")
    try:
        yield
    except BaseException:
        # SQLite itself ends a transaction on a full disk or an I/O error: then there is nothing left to undo.
        if connection.in_transaction:
            connection.execute("rollback to tenure_caller")
            connection.execute("release tenure_caller")
        raise
    connection.execute("release tenure_caller")


def _open_gate(connection: sqlite3.Connection, file: str) -> None:
    """Writing comes before reading: a transaction that has read may find that it cannot write any more."""
    try:
        open_gate(connection, "store")
    except sqlite3.OperationalError:
        require_fit(migrate.state(connection), where=file)
        raise
    require_fit(migrate.state(connection), where=file)


def _require_same_file(connection: sqlite3.Connection, url: str) -> str:
    """The connection's file, once it is sure that the app's store writes to the same one."""
    file = next((row[2] for row in connection.execute("pragma database_list") if row[1] == "main"), "")
    path = url.partition("://")[2]
    if path == MEMORY:
        raise InvalidInput(
            "connection", "cannot reach the app's jobs, which are in the memory of its store; use a file"
        )
    path = path.removeprefix("/")
    if not file or not _same(file, path):
        where = file or "a database in memory"
        problem = f"leads to {where}, and the app's jobs are in {Path(path).resolve()}"
        raise InvalidInput("connection", f"{problem}; one transaction cannot span both, so use one file for both")
    return str(file)


def _same(file: str, path: str) -> bool:
    try:
        return Path(file).samefile(path)
    except OSError:
        return False


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether the caller expects each statement to be durable at once: nobody would commit for us."""
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)
