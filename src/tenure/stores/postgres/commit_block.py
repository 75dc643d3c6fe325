"""The commit block on PostgreSQL: one connection for as long as the transaction is open, and timeouts that the server
enforces, so that the locks of a frozen process are released too.

From version 17 on the server ends the whole transaction at its deadline. Older versions end statements and pauses;
their timeouts are set again as time passes: at worst a statement and the pause after it take the whole time each.

Statements of the user are sent one at a time in the extended protocol, which accepts no second statement after a
semicolon; functions and `do` blocks cannot end the transaction that they run in. So the first word of a statement is
enough to refuse those that would end or outlive the transaction.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from tenure.errors import GuardViolated, InvalidInput, StoreError, StoreUnavailable
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.seams import Clock
from tenure.stores.commit_block import BaseCommitBlock, WakingStore
from tenure.stores.contract import (
    Artifact,
    Busy,
    EnqueueRequest,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    SaveStep,
    StepOutcome,
)
from tenure.stores.postgres.apply import PostgresApplier
from tenure.stores.postgres.apply_batch import ChangeBatches
from tenure.stores.postgres.artifacts import insert_artifacts
from tenure.stores.postgres.connections import (
    CONFLICTS,
    GUARD_STATE,
    LOST,
    Connections,
    Session,
    fetch,
    translated,
)
from tenure.stores.postgres.enqueue import enqueue
from tenure.stores.postgres.messages import insert_messages
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.steps import PostgresSteps, copy_parameters

T = TypeVar("T")

GRACE_SECONDS = 0.25
"""How much later than this process the server acts, so that this process reports the deadline if it can."""
STALE_SHARE = 0.1
"""The share of the deadline after which a server without `transaction_timeout` gets the remaining time."""
TRANSACTION_TIMEOUT_VERSION = 17
ROLLBACK_SECONDS = 5.0

TRANSACTION_CONTROL = frozenset(
    {"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare"},
)
SESSION_STATEMENTS = frozenset({"reset", "discard", "listen", "unlisten", "load", "deallocate"})
"""Statements that change the session, which outlives the transaction."""
WRITER_SETTING = "tenure.writer"

_BLANK = re.compile(r"[\s;]+|--[^\n\r]*")
_WORDS = re.compile(r"([a-z_]+)(?:\s+([a-z_]+))?", re.IGNORECASE)
_BRACKET = re.compile(r"/\*|\*/")


class PostgresCommitBlock(BaseCommitBlock):
    """One transaction on one connection of the pool."""

    def __init__(
        self,
        store: WakingStore,
        connections: Connections,
        policies: PostgresPolicies,
        *,
        clock: Clock,
        deadline_seconds: float,
    ) -> None:
        super().__init__(store, deadline_seconds=deadline_seconds, clock=clock)
        self._connections = connections
        self._statements = _Statements(self._fetch_named)
        self._shared_policies, self._policies = policies, policies.within(self._statements)
        batches = ChangeBatches(self._statements, in_block=True)
        self._applier = PostgresApplier(self._statements, self._policies, batches)
        self._steps = PostgresSteps(self._statements, self._policies)
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._timeouts_set_at_seconds = 0.0
        self._writes_as_store = False

    @property
    def _connection(self) -> Session:
        if self._session is None:
            raise StoreError("this transaction has ended; open another one")
        return self._session

    # Beginning and ending.

    async def _begin(self) -> None:
        self._session = await self._stack.enter_async_context(self._connections.session())
        self._timeouts_set_at_seconds = self._clock.monotonic_seconds()
        try:
            async with self._store_errors():
                await self._connection.execute(f"begin isolation level read committed; {self._timeouts()}")
        except BaseException:
            await self._release()
            raise

    def _timeouts(self) -> str:
        """The settings that end this transaction from the server's side."""
        begun = self.is_open
        seconds = (self.seconds_left if begun else self.deadline_seconds) + GRACE_SECONDS
        names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
        if not begun and self._has_transaction_timeout():
            names.append("transaction_timeout")
        return "; ".join(f"set local {name} = {max(1, round(seconds * 1000))}" for name in names)

    def _has_transaction_timeout(self) -> bool:
        return self._connection.get_server_version().major >= TRANSACTION_TIMEOUT_VERSION

    async def _renew_timeouts(self) -> None:
        now = self._clock.monotonic_seconds()
        if (
            now - self._timeouts_set_at_seconds > STALE_SHARE * self.deadline_seconds
            and not self._has_transaction_timeout()
        ):
            self._timeouts_set_at_seconds = now
            await self._connection.execute(self._timeouts())

    async def _commit(self) -> None:
        # The violation of a deferred constraint of a user's table stays as the driver raised it.
        async with self._store_errors():
            ended = await self._connection.execute("commit")
        if ended != "COMMIT":
            raise StoreError("the server rolled the transaction back at its end; nothing of it was kept")
        self._shared_policies.adopt(self._policies)

    async def _release(self) -> None:
        connection, self._session = self._session, None
        try:
            if connection is not None and not _is_closed(connection) and connection.is_in_transaction():
                await connection.execute("rollback", timeout=ROLLBACK_SECONDS)
        except (*LOST, asyncpg.PostgresError, TimeoutError):
            _terminate(connection)
        except BaseException:
            _terminate(connection)
            raise
        finally:
            await self._stack.aclose()

    def _abandon(self) -> None:
        # Closing the connection ends the transaction soonest, also while a statement runs.
        _terminate(self._session)

    # Statements of the user.

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        async def send(connection: Session) -> str | None:
            if values:
                return await connection.execute(sql, *values)
            # Without values the driver would send it as a script, which may hold several statements.
            statement = await connection.prepare(sql, name="")
            await statement.fetch()
            return statement.get_statusmsg()

        message = await self._send_user_sql(sql, send) or ""
        count = message.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        rows = await self._send_user_sql(sql, lambda connection: connection.fetch(sql, *values))
        return [dict(row) for row in rows]

    async def _send_user_sql(self, sql: str, send: Callable[[Session], Awaitable[T]]) -> T:
        """Send a statement of the user, which the guards do not take for the store's."""
        check_statement(sql)
        connection = self._connection
        async with self._store_errors():
            await self._renew_timeouts()
            if self._writes_as_store:
                await connection.execute("select set_config('tenure.writer', '', true)")
                self._writes_as_store = False
        async with self._user_errors():
            answer = await send(connection)
        if not connection.is_in_transaction():
            raise StoreError("the statement has ended the transaction; what it held before may have been kept")
        return answer

    @asynccontextmanager
    async def _user_errors(self) -> AsyncIterator[None]:
        """An error about the statement or its values stays as the driver raised it."""
        try:
            yield
        except asyncpg.PostgresError as problem:
            if problem.sqlstate == GUARD_STATE:
                raise GuardViolated(str(problem)) from problem
            if isinstance(problem, LOST):
                raise self._connection_lost(problem) from problem
            raise
        except LOST as problem:
            if isinstance(problem, asyncpg.InterfaceError) and not _is_closed(self._connection):
                raise
            raise self._connection_lost(problem) from problem

    # Statements of the store.

    async def _enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await enqueue(self._statements, self._policies, requests)

    async def _apply(self, request: Request) -> Outcome:
        [outcome] = await self._applier.apply([request])
        if isinstance(outcome, Busy):
            # A batch skips a locked row; a commit block has nothing else to write, so it waits within its deadline.
            await self._statements.fetch("jobs/lock", {"id": request.job_id})
            [outcome] = await self._applier.apply([request])
        return outcome

    async def _save_step(self, request: SaveStep) -> StepOutcome:
        [outcome] = await self._steps.save([request])
        if isinstance(outcome, Busy):
            # As for `_apply`: it waits within the deadline.
            await self._statements.fetch("steps/lock_job", {"id": request.job.id})
            [outcome] = await self._steps.save([request])
        return outcome

    async def _write_steps(self, job: Job, steps: Sequence[StepRecord]) -> int:
        return len(await self._statements.fetch("steps/insert_copies", copy_parameters(job.id, steps)))

    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        await insert_messages(self._statements, messages)

    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        return await insert_artifacts(self._statements, self._policies, job, artifacts)

    async def _fetch_named(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        async with self._store_errors():
            await self._renew_timeouts()
            self._writes_as_store = True
            return await fetch(self._connection, name, values)

    @asynccontextmanager
    async def _store_errors(self) -> AsyncIterator[None]:
        """Translates what the driver raises for the store's statements."""
        try:
            async with translated(self._connections.address):
                yield
        except StoreUnavailable:
            _terminate(self._session)
            raise
        except CONFLICTS as problem:
            raise StoreUnavailable(
                f"the transaction conflicted with another one, and was rolled back: {problem}; try again",
                where=self._connections.address.shown,
            ) from problem

    def _connection_lost(self, problem: Exception) -> StoreUnavailable:
        _terminate(self._session)
        return StoreUnavailable(
            f"{self._connections.address.shown} was lost in the middle of a transaction, of which nothing is kept: "
            f"{str(problem) or type(problem).__name__}; try again",
            where=self._connections.address.shown,
        )


class _Statements:
    """Sends statements by name, all of them in one transaction."""

    def __init__(self, fetch: Callable[[str, Mapping[str, Any]], Awaitable[list[asyncpg.Record]]]) -> None:
        self._fetch = fetch

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        return await self._fetch(name, values)


def _terminate(connection: Session | None) -> None:
    if connection is not None and not _is_closed(connection):
        connection.terminate()


def _is_closed(connection: Session) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # It was terminated before, and the pool has taken it back.
        return True


def check_statement(sql: str) -> str:
    """Refuse a statement that would end the transaction, outlive it, or write as the store."""
    first, second = _first_words(sql)
    if first in TRANSACTION_CONTROL:
        raise InvalidInput(
            "sql",
            f"{first.upper()} is refused: the transaction begins and ends with its block; "
            f"raise an error to roll it back",
        )
    if first in SESSION_STATEMENTS or (first == "set" and second not in ("local", "constraints")):
        raise InvalidInput(
            "sql",
            f"{first.upper()} is refused: it would outlive the transaction on its connection; "
            f"settings are set with SET LOCAL",
        )
    if WRITER_SETTING in sql.lower():
        raise InvalidInput("sql", f"{WRITER_SETTING} is refused: it is how tenure's guards know tenure")
    return sql


def _first_words(sql: str) -> tuple[str, str]:
    """The first two words in lower case, past blanks, semicolons and comments, which PostgreSQL nests."""
    place = 0
    while True:
        if blank := _BLANK.match(sql, place):
            place = blank.end()
        elif sql.startswith("/*", place):
            place = _skip_comment(sql, place)
        else:
            break
    words = _WORDS.match(sql, place)
    return (words[1].lower(), (words[2] or "").lower()) if words else ("", "")


def _skip_comment(sql: str, place: int) -> int:
    depth = 0
    for bracket in _BRACKET.finditer(sql, place):
        depth += 1 if bracket[0] == "/*" else -1
        if depth == 0:
            return bracket.end()
    return len(sql)
