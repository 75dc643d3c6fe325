"""Enqueue and commit mark on SQLite: the store's own functions, run on the user's `sqlite3.Connection`.

A failed call is rolled back to a savepoint. The user's transaction, factories and transaction mode stay as they were.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tenure.errors import GuardViolated, InvalidInput
from tenure.seams import Clock
from tenure.stores.contract import Applied, Artifact, EnqueueRequest, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.schema import require_fit
from tenure.stores.sqlite import apply as sqlite_apply
from tenure.stores.sqlite import artifacts as sqlite_artifacts
from tenure.stores.sqlite import enqueue as sqlite_enqueue
from tenure.stores.sqlite import messages as sqlite_messages
from tenure.stores.sqlite import migrate
from tenure.stores.sqlite.commit_block import BLOCK_SHARE
from tenure.stores.sqlite.connect import BUSY_SECONDS, MEMORY
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.session import Session, set_writer
from tenure.stores.user_connections.protocol import UserConnection

T = TypeVar("T")

DEADLINE_SECONDS_MAX = BLOCK_SHARE * BUSY_SECONDS
"""A transaction that holds the write lock for longer makes other writers fail, heartbeats among them."""


class SqliteDialect:
    """The SQLite file that the app's URL names."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._path, self._clock = url.partition("://")[2], clock

    async def enqueue(self, user: UserConnection, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """Add jobs; the results are in the order of the requests."""
        return await self._write(user, lambda session: sqlite_enqueue.enqueue(session, requests))

    async def apply(
        self, user: UserConnection, request: Request, messages: Sequence[OutboxMessage], artifacts: Sequence[Artifact]
    ) -> Outcome:
        """Apply one request. Messages and artifacts are written if it is applied."""

        def work(session: Session) -> Outcome:
            [outcome] = sqlite_apply.apply(session, [request])
            if isinstance(outcome, Applied):
                sqlite_artifacts.attach(session, outcome.job, artifacts)
                sqlite_messages.post(session, [(message, outcome.job) for message in messages])
            return outcome

        return await self._write(user, work)

    async def post(self, user: UserConnection, messages: Sequence[OutboxMessage]) -> None:
        """Write messages of no job."""
        await self._write(user, lambda session: sqlite_messages.post(session, [(one, None) for one in messages]))

    async def _write(self, user: UserConnection, work: Callable[[Session], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with self._writing(connection) as session:
                return work(session)

        return await user.run_on_sqlite(write)

    @contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[Session]:
        """The user's transaction, or else a new one, in which the guards of the schema admit the store's writes."""
        file = self.checked_file(connection)
        with _default_factories(connection):
            began = not connection.in_transaction
            connection.execute("begin immediate" if began else "savepoint tenure_user")
            try:
                _admit_writes(connection, file)
                # The clock is read under the write lock: waiting for the lock counts against the lease. Policies are
                # cached for this call only: the user may roll back.
                yield Session(connection, self._clock.now(), SqlitePolicies())
                set_writer(connection, None)
                if not began:
                    connection.execute("release tenure_user")
                elif _is_autocommit(connection):
                    connection.execute("commit")
            except BaseException as error:
                # SQLite itself rolls back the whole transaction on a full disk or an I/O error.
                if connection.in_transaction:
                    connection.execute("rollback" if began else "rollback to tenure_user")
                if connection.in_transaction:
                    connection.execute("release tenure_user")
                if isinstance(error, sqlite3.IntegrityError):
                    raise GuardViolated(f"{file} refused a write: {error}") from error
                raise

    def checked_file(self, connection: sqlite3.Connection) -> str:
        """Return the connection's file. InvalidInput: it is not the file of the app's store."""
        if self._path == MEMORY:
            raise InvalidInput("connection", "cannot reach the app's jobs, in the memory of its store; use a file")
        with _default_factories(connection):
            file = next((row[2] for row in connection.execute("pragma database_list") if row[1] == "main"), "")
        path = Path(self._path.removeprefix("/"))
        try:
            if file and path.samefile(file):
                return str(file)
        except OSError:
            pass  # One of them does not exist.
        problem = f"leads to {file or 'a database in memory'}, and the app's jobs are in {path.resolve()}"
        raise InvalidInput("connection", f"{problem}; one transaction cannot span both, so use one file for both")


def _admit_writes(connection: sqlite3.Connection, file: str) -> None:
    """Let the guards of the schema admit the store's writes. A new file is migrated in the user's transaction."""
    try:
        # Before any read: a transaction that has read may not be able to take the write lock later.
        set_writer(connection, "store")
        found = migrate.state(connection)
    except sqlite3.OperationalError:
        found = migrate.state(connection)
        if found.applied or found.unknown:
            require_fit(found, where=file, url=f"sqlite:///{file}")
            raise
        migrate.migrate(connection, where=file)
        set_writer(connection, "store")
        found = migrate.state(connection)
    require_fit(found, where=file, url=f"sqlite:///{file}")


@contextmanager
def _default_factories(connection: sqlite3.Connection) -> Iterator[None]:
    factories = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = factories


def _is_autocommit(connection: sqlite3.Connection) -> bool:
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)
