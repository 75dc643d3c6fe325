"""The caller's own transaction on PostgreSQL: one connection for as long as it is open, and limits that the server
itself keeps, so that also a process that was frozen lets go of its locks.

From version 17 on the server ends the whole transaction at its time. Before that it ends statements and pauses, whose
limits are set anew as time goes by: at worst a statement and the pause behind it take the time once each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from tenure.errors import GuardViolated, InvalidInput, JobNotFound, LeaseLost, StoreError, StoreUnavailable
from tenure.lifecycle.records import Job
from tenure.seams import Clock
from tenure.stores.commit_block import BaseCommitBlock, BlockedStore
from tenure.stores.contract import (
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    without_secret,
)
from tenure.stores.postgres.apply import Apply
from tenure.stores.postgres.apply_batch import Batches
from tenure.stores.postgres.connections import (
    GUARD_STATE,
    LOST,
    PASSING,
    Connections,
    Session,
    fetch,
    translated,
)
from tenure.stores.postgres.enqueue import enqueue
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import jobs_by_id
from tenure.stores.postgres.user_sql import check_statement

T = TypeVar("T")

GRACE_SECONDS = 0.25
"""How much later the server acts than we do: as long as we can, we say ourselves that the time is up."""
STALE_SHARE = 0.1
"""How much of the time may pass before a server without a limit for whole transactions is told what is left of it."""
TRANSACTION_TIMEOUT_VERSION = 17
ROLLBACK_SECONDS = 5.0


class PostgresCommitBlock(BaseCommitBlock):
    """One transaction on one connection of the pool."""

    def __init__(
        self,
        store: BlockedStore,
        connections: Connections,
        policies: PostgresPolicies,
        *,
        clock: Clock,
        deadline_seconds: float,
    ) -> None:
        super().__init__(store, deadline_seconds=deadline_seconds, clock=clock)
        self._connections = connections
        self._statements = _Statements(self._ask)
        self._known, self._policies = policies, policies.within(self._statements)
        self._performing = Apply(self._statements, self._policies, Batches(self._statements, in_block=True))
        self._stack = AsyncExitStack()
        self._held: Session | None = None
        self._limited_at_seconds = 0.0
        self._speaks_as_store = False

    @property
    def _connection(self) -> Session:
        if self._held is None:
            raise StoreError("this transaction has ended; open another one")
        return self._held

    # Beginning and ending.

    async def _begin(self) -> None:
        self._held = await self._stack.enter_async_context(self._connections.session())
        self._limited_at_seconds = self._clock.monotonic_seconds()
        try:
            async with self._ours():
                await self._connection.execute(f"begin isolation level read committed; {self._limits()}")
        except BaseException:
            await self._let_go()
            raise

    def _limits(self) -> str:
        """The settings that end this transaction from the server's side."""
        begun = self.is_open
        seconds = (self.seconds_left if begun else self.deadline_seconds) + GRACE_SECONDS
        names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
        if not begun and self._limits_whole_transactions():
            names.append("transaction_timeout")
        return "; ".join(f"set local {name} = {max(1, round(seconds * 1000))}" for name in names)

    def _limits_whole_transactions(self) -> bool:
        return self._connection.get_server_version().major >= TRANSACTION_TIMEOUT_VERSION

    async def _tell_what_is_left(self) -> None:
        now = self._clock.monotonic_seconds()
        if (
            now - self._limited_at_seconds > STALE_SHARE * self.deadline_seconds
            and not self._limits_whole_transactions()
        ):
            self._limited_at_seconds = now
            await self._connection.execute(self._limits())

    async def _commit(self) -> None:
        # A constraint of the caller's own tables that is checked only now stays as the driver raised it.
        async with self._ours():
            ended = await self._connection.execute("commit")
        if ended != "COMMIT":
            raise StoreError("the server rolled the transaction back at its end; nothing of it was kept")
        self._known.adopt(self._policies)

    async def _let_go(self) -> None:
        connection, self._held = self._held, None
        try:
            if connection is not None and not _is_closed(connection) and connection.is_in_transaction():
                await connection.execute("rollback", timeout=ROLLBACK_SECONDS)
        except (*LOST, asyncpg.PostgresError, TimeoutError):
            _cut(connection)
        except BaseException:
            _cut(connection)
            raise
        finally:
            await self._stack.aclose()

    def _abandon(self) -> None:
        # A closed connection is what ends a transaction soonest: also one that a statement holds up at this moment.
        _cut(self._held)

    # The caller's own statements.

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        async def send(connection: Session) -> str | None:
            if values:
                return await connection.execute(sql, *values)
            # Without values the driver would send it as a script, which may hold several statements.
            statement = await connection.prepare(sql, name="")
            await statement.fetch()
            return statement.get_statusmsg()

        said = (await self._callers(sql, send) or "").rpartition(" ")[2]
        return int(said) if said.isdecimal() else 0

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        rows = await self._callers(sql, lambda connection: connection.fetch(sql, *values))
        return [dict(row) for row in rows]

    async def _callers(self, sql: str, send: Callable[[Session], Awaitable[T]]) -> T:
        """Send a statement of the caller's, which does not speak in our name."""
        check_statement(sql)
        connection = self._connection
        async with self._ours():
            await self._tell_what_is_left()
            if self._speaks_as_store:
                await connection.execute("select set_config('tenure.writer', '', true)")
                self._speaks_as_store = False
        async with self._theirs():
            answer = await send(connection)
        if not connection.is_in_transaction():
            raise StoreError("the statement has ended the transaction; what it held before may have been kept")
        return answer

    @asynccontextmanager
    async def _theirs(self) -> AsyncIterator[None]:
        """What is wrong with the statement or its values stays as the driver raised it."""
        try:
            yield
        except asyncpg.PostgresError as problem:
            if problem.sqlstate == GUARD_STATE:
                raise GuardViolated(str(problem)) from problem
            if isinstance(problem, LOST):
                raise self._lost(problem) from problem
            raise
        except LOST as problem:
            if isinstance(problem, asyncpg.InterfaceError) and not _is_closed(self._connection):
                raise
            raise self._lost(problem) from problem

    # Our own.

    async def _add(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await enqueue(self._statements, self._policies, requests)

    async def _perform(self, request: Request) -> Outcome:
        [outcome] = await self._performing.apply([request])
        return outcome

    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        values = {
            "ids": [message.id for message, _ in messages],
            "aggregates": [message.aggregate for message, _ in messages],
            "topics": [message.topic for message, _ in messages],
            "bodies": [message.body for message, _ in messages],
            "headers": [message.headers for message, _ in messages],
            "job_ids": [None if job is None else job.id for _, job in messages],
        }
        written = {answer["id"] for answer in await self._statements.fetch("outbox/insert", values)}
        for message, _ in messages:
            if message.id not in written:
                raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
            written.discard(message.id)

    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        current = (await jobs_by_id(self._statements, self._policies, [job.id], with_token=True)).get(job.id)
        if current is None:
            raise JobNotFound(job.id)
        if job.token is None or current.token != job.token:
            raise LeaseLost(without_secret(current), "attach")
        values = {
            "job_id": job.id,
            "attempt": job.attempt,
            "names": [artifact.name for artifact in artifacts],
            "media_types": [artifact.media_type for artifact in artifacts],
            "bodies": [artifact.body for artifact in artifacts],
        }
        written = {answer["name"] for answer in await self._statements.fetch("artifacts/insert", values)}
        for artifact in artifacts:
            if artifact.name not in written:
                problem = f"job {job.id} has one named {artifact.name!r} already; take another name"
                raise InvalidInput("artifact", problem)
        return current

    async def _ask(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        async with self._ours():
            await self._tell_what_is_left()
            self._speaks_as_store = True
            return await fetch(self._connection, name, values)

    @asynccontextmanager
    async def _ours(self) -> AsyncIterator[None]:
        """What the driver raises for our own statements, as our errors."""
        try:
            async with translated(self._connections.address):
                yield
        except StoreUnavailable:
            _cut(self._held)
            raise
        except PASSING as problem:
            raise StoreUnavailable(
                f"the transaction met another one that was in its way, and was rolled back whole: {problem}; try again"
            ) from problem

    def _lost(self, problem: Exception) -> StoreUnavailable:
        _cut(self._held)
        return StoreUnavailable(
            f"{self._connections.address.shown} was lost in the middle of a transaction, of which nothing is kept: "
            f"{str(problem) or type(problem).__name__}; try again"
        )


class _Statements:
    """Statements by name, all of them inside the one transaction."""

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Awaitable[list[asyncpg.Record]]]) -> None:
        self._ask = ask

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        return await self._ask(name, values)


def _cut(connection: Session | None) -> None:
    if connection is not None and not _is_closed(connection):
        connection.terminate()


def _is_closed(connection: Session) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # It was terminated before, and the pool has taken it away from us.
        return True
