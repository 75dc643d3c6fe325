"""The user's transaction as tenure uses it. Requests are validated here; the module of each dialect writes them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.errors import InvalidInput, JobNotFound
from tenure.lifecycle.content import ContentDigests
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Job
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import (
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    Failure,
    OutboxMessage,
    Outcome,
    Request,
    SaveStep,
    digest_artifacts,
    digest_messages,
    with_digests,
)
from tenure.stores.user_connections.detect import detect
from tenure.stores.user_connections.sqlite_dialect import DEADLINE_SECONDS_MAX, SqliteDialect
from tenure.stores.validation import validate_artifacts, validate_enqueue, validate_message, validate_request

if TYPE_CHECKING:
    from tenure.stores.user_connections.postgres_dialect import PostgresDialect

log = logging.getLogger("tenure.stores")


class UserTransaction:
    """The contract's Transaction on a user's connection to the database with this URL: new jobs, and the commit mark
    of one job. InvalidInput: the connection is of no supported library."""

    def __init__(self, connection: Any, database_url: str, *, seams: Seams = SYSTEM) -> None:
        self.connection = detect(connection)
        self.deadline_seconds_max = DEADLINE_SECONDS_MAX if database_url.startswith("sqlite") else float("inf")
        self._url, self._clock = database_url, seams.clock
        self._messages: list[OutboxMessage] = []
        self._artifacts: list[Artifact] = []
        self._digests = ContentDigests()

    async def execute(self, sql: str, *values: Any) -> NoReturn:
        raise InvalidInput("tx", "runs no statements in `ctx.commit(conn=…)`; run them on that connection")

    fetch = execute

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """Add jobs, all or none. Other transactions see them once the user's transaction is committed."""
        for request in requests:
            validate_enqueue(request)
        return await (await self._dialect()).enqueue(self.connection, requests)

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Write these messages with the commit mark."""
        for message in messages:
            validate_message(message)
        self._messages += messages
        self._digests.messages += digest_messages(messages)
        if len({message.id for message in self._messages}) < len(self._messages):
            raise InvalidInput("id", "two messages have the same id; make a new id for each message")

    async def write_messages(self, messages: Sequence[OutboxMessage]) -> None:
        """Write messages of no job, now. InvalidInput: a message id was used before."""
        for message in messages:
            validate_message(message)
        await self.connection.flush()
        await (await self._dialect()).post(self.connection, messages)

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Write these artifacts with the commit mark."""
        validate_artifacts([*self._artifacts, *artifacts])
        self._artifacts += artifacts
        self._digests.artifacts += digest_artifacts(artifacts, attempt=job.attempt)

    async def apply(self, request: Request) -> Outcome:
        """Write the commit mark of one job, as the owner of its lease, with the messages and artifacts. Unless the
        outcome is Applied, nothing was written. InvalidInput: a message id or an artifact name was used before."""
        validate_request(request)
        if [operation.type for operation in request.operations] != [OperationType.COMMIT]:
            operations = "+".join(operation.type for operation in request.operations)
            raise InvalidInput("operations", f"are {operations}; a user's transaction takes a single commit")
        dialect = await self._dialect()
        await self.connection.flush()
        request = with_digests(request, self._digests)
        outcome = await dialect.apply(self.connection, request, self._messages, self._artifacts)
        if isinstance(outcome, Failure) and isinstance(outcome.error, JobNotFound):
            problem = f"leads to a database that does not contain job {request.job_id}"
            raise InvalidInput("connection", f"{problem}; pass a connection to the app's own database")
        return outcome

    async def save_step(self, request: SaveStep) -> NoReturn:
        raise InvalidInput("tx", "saves no steps on a connection of the user; use the store's own transaction")

    async def begin(self) -> None:
        """Open a transaction unless one is open. InvalidInput: nothing was begun, for example on another database."""
        dialect = await self._dialect()
        if isinstance(dialect, SqliteDialect):
            await self.connection.run_on_sqlite(dialect.checked_file)
        await self.connection.begin()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[UserTransaction]:
        """Begin, and commit at the end, or roll back after an error."""
        begun = False
        try:
            await self.begin()
            begun = True
            yield self
            await self.connection.commit()
        except BaseException as error:
            # After a refusal of `begin`, a transaction that is open belongs to the user.
            if begun or not isinstance(error, InvalidInput):
                try:
                    await self.connection.rollback()
                except Exception:
                    log.warning("rollback failed, %s rolls back when closed", self.connection.name, exc_info=True)
            raise

    async def _dialect(self) -> SqliteDialect | PostgresDialect:
        scheme, dialect = self._url.partition("://")[0], await self.connection.dialect()
        if dialect == scheme == "sqlite":
            return SqliteDialect(self._url, self._clock)
        if dialect == "postgresql" and scheme in ("postgresql", "postgres"):
            # Imported here, because it imports asyncpg, which users of SQLite need not have installed.
            from tenure.stores.user_connections.postgres_dialect import PostgresDialect

            return PostgresDialect()
        problem = f"{self.connection.name} leads to {dialect}, and the app's jobs are in {scheme}://…"
        raise InvalidInput("connection", f"{problem}; pass a connection to the app's own database")
