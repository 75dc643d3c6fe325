"""Connections to PostgreSQL: the pool, statements by name, and what its errors mean to us.

Behind PgBouncer in transaction mode (`?pooler=transaction` in the URL) nothing is prepared on the server, and each
statement runs in a transaction of its own, so that all of its messages reach the same backend.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar
from urllib.parse import urlencode, urlsplit

import asyncpg
import msgspec

from tenure.errors import (
    GuardViolated,
    InvalidInput,
    PrivilegeMissing,
    StoreError,
    StoreUnavailable,
    TooManyConnections,
    UsedAfterFork,
)
from tenure.stores.database_url import parse_postgres_url, url_options
from tenure.stores.postgres.connection_pool import Connection, ConnectionPool
from tenure.stores.postgres.grants import OWNER, grants_for
from tenure.stores.sql_files import numbered

PACKAGE = "tenure.stores.postgres"
GUARD_STATE = "TN002"
REUSED_STATE = "TN001"
LATE_STATE = "TN003"
DEDUPE_STATE = "TN004"

LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
ABOUT_A_ROW = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)
CONFLICTS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)

PLANNED_ONCE = frozenset(
    {
        "artifacts/insert", "budgets/insert", "budgets/lock", "budgets/select", "budgets/settle",
        "events/select_history", "events/select_tail", "jobs/apply", "jobs/claim", "jobs/claim_lane", "jobs/complete",
        "jobs/count_leased_by_partition", "jobs/enqueue", "jobs/enqueue_homogeneous", "jobs/enqueue_one",
        "jobs/enqueue_one_now", "jobs/renew_leases", "jobs/select", "jobs/signal", "jobs/select_due_candidates",
        "jobs/select_due_of_partitions", "jobs/select_due_pinned", "jobs/select_partitions", "jobs/select_recoverable",
        "jobs/select_wakeable", "jobs/select_with_clock", "jobs/select_with_events", "jobs/select_with_token",
        "outbox/insert", "policies/insert", "policies/select", "queues/delete", "queues/lock_limited", "queues/pause",
        "queues/put", "queues/resume", "queues/select", "queues/update_usage", "rate_usage/select",
        "reservations/insert", "reservations/select", "signals/select", "steps/insert", "steps/insert_one",
        "steps/select", "steps/select_recorded", "workers/stop", "workers/upsert",
    }
)  # fmt: skip
"""Statements for which one plan is right whatever they are given. Others have filters that may be left out, and are
planned for what is asked."""

ISOLATION: Final = "read_committed"
"""Every statement must see what was committed before it."""
WRITES = "select set_config('tenure.writer', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)"
IDLE_MAX = "10s"
"""How long a transaction of several statements may be idle before the server ends it."""

AS_USUAL = "set local plan_cache_mode = force_custom_plan; set local enable_seqscan = on"

GIVEN_UP = (*LOST, asyncio.CancelledError)

CONFLICTS_MAX = 5
COMMAND_SECONDS_MAX = 60.0
CLOSE_SECONDS_MAX = 5.0

Session: TypeAlias = Connection
A = ParamSpec("A")
T = TypeVar("T")


class Address(msgspec.Struct, frozen=True):
    """Where the database is, and how it is reached."""

    dsn: str
    pooled: bool = False
    listen_dsn: str | None = None

    @classmethod
    def from_url(cls, url: str) -> Address:
        """`pooler=transaction` is for PgBouncer in between; `listen=URL` is a direct connection for wake-ups."""
        parsed = parse_postgres_url(url)
        options = url_options(parsed)
        pooler = options.pop("pooler", "")
        if pooler not in ("", "none", "transaction"):
            raise InvalidInput("database", "the option pooler is neither none nor transaction")
        listen = options.pop("listen", None)
        if listen:
            parse_postgres_url(listen)
        dsn = url.partition("?")[0] + (f"?{urlencode(options)}" if options else "")
        pooled = pooler == "transaction"
        return cls(dsn, pooled, listen or (None if pooled else dsn))

    @property
    def role(self) -> str | None:
        """The role that logs in, if it is known."""
        return urlsplit(self.dsn).username or os.environ.get("PGUSER")

    @property
    def shown(self) -> str:
        """The address without its password."""
        return parse_postgres_url(self.dsn).place


class Fetches(Protocol):
    """Sends statements by name: each in a transaction of its own, or all in one."""

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]: ...


class Connections:
    """A pool of connections that belongs to one process and one event loop."""

    def __init__(self, address: Address, *, size: int = 10) -> None:
        self.address, self.size = address, size
        self._pool: ConnectionPool | None = None
        self._pid = os.getpid()
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if self._pool is not None:
                return
            pool = ConnectionPool(self._connect, size=self.size)
            # The first connect reports an unreachable server here, and not at the first statement.
            pool.release(await pool.acquire())
            self._pool = pool

    async def _connect(self) -> Connection:
        try:
            return await asyncpg.connect(self.address.dsn, command_timeout=COMMAND_SECONDS_MAX, **self._settings())
        except Exception as problem:
            if (ours := translation(self.address, problem, sent=False)) is None:
                raise
            raise ours from problem

    async def close(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            pool, self._pool = self._pool, None
            try:
                await asyncio.wait_for(pool.close(), CLOSE_SECONDS_MAX)
            except TimeoutError:
                # The server does not answer, or a statement still waits for it: close without waiting.
                pool.terminate()

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A connection, with the driver's errors turned into ours."""
        if self._pid != os.getpid():
            raise UsedAfterFork("this store was opened before a fork; open a new one in the child process")
        if self._pool is None:
            raise StoreError("the store is not open; call `await store.open()` first")
        return _PooledSession(self._pool, self.address)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """A read-committed transaction, whatever the database's default."""
        async with self.session() as connection, connection.transaction(isolation=ISOLATION):
            yield connection

    async def write(self, writer: str, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run `work` in one transaction, with its writer set for the guards.

        If this process freezes between two statements, the server ends the transaction and releases its locks.
        """

        async def once() -> T:
            async with self.transaction() as connection:
                await connection.execute(WRITES, writer, IDLE_MAX)
                return await work(connection)

        return await self._retry_conflicts(once)

    async def fetch(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        """The rows of a named statement, in one round trip once it is prepared."""
        return await self._retry_conflicts(self._fetch_once, name, values)

    async def _retry_conflicts(self, attempt: Callable[A, Awaitable[T]], *args: A.args, **kwargs: A.kwargs) -> T:
        """Repeat what a deadlock or a serialization failure rolled back."""
        problem: BaseException | None = None
        for _ in range(CONFLICTS_MAX):
            try:
                return await attempt(*args, **kwargs)
            except CONFLICTS as conflict:
                problem = conflict
        raise StoreUnavailable(
            f"{self.address.shown} refused a transaction repeatedly for conflicts with others, retry later: {problem}",
            where=self.address.shown,
        ) from problem

    async def _fetch_once(self, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        planned_once = name in PLANNED_ONCE
        if planned_once and not self.address.pooled:
            async with self.session() as connection:
                return await fetch(connection, name, values)
        async with self.transaction() as connection:
            if not (planned_once or self.address.pooled):
                await connection.execute(AS_USUAL)
            return await fetch(connection, name, values)

    def _settings(self) -> dict[str, Any]:
        if self.address.pooled:
            return {"statement_cache_size": 0}
        # The statements of the hot path are short and always meant for the same indexes: compiling one, or planning it
        # anew for each batch, costs more than running it. The tables may still be empty when they are planned, which
        # must not lead to plans that read all of them later.
        planning = {"jit": "off", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
        usual = {"default_transaction_isolation": "read committed", "application_name": "tenure"}
        return {"server_settings": {**planning, **usual}}


async def fetch(connection: Session, name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
    """The rows of a named statement on this connection."""
    statement = numbered(PACKAGE, name)
    arguments = [values[parameter] for parameter in statement.parameters]
    try:
        return await connection.fetch(statement.sql, *arguments)
    except asyncpg.InsufficientPrivilegeError as problem:
        raise _StatementDenied(str(problem), needs=grants_for(name)) from problem
    except OverflowError:
        if name.partition("/")[2].partition("_")[0] not in REPEATABLE:
            raise
        return await fetch_any_time(connection, statement.sql, *arguments)


REPEATABLE = frozenset({"claim", "count", "estimate", "lock", "select"})
"""The verbs of statements that may be sent again after their rows could not be decoded. A claim that is sent again
under its request id takes no more jobs."""


class UnreadableTime:
    """A time before the year 1, after 9999, or infinite, which Python cannot represent."""

    tzinfo = None
    """As in the naive times that the driver returns for infinite ones: `is_unreadable` tests both."""


async def fetch_any_time(connection: Session, sql: str, *arguments: Any) -> list[asyncpg.Record]:
    """The rows of a statement, with UnreadableTime for times out of range, at which the driver fails."""
    codec: dict[str, Any] = {"schema": "pg_catalog", "format": "tuple"}
    await connection.set_type_codec("timestamptz", encoder=_encode_time, decoder=_decode_time, **codec)
    try:
        return await connection.fetch(sql, *arguments)
    finally:
        await connection.reset_type_codec("timestamptz", schema="pg_catalog")


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _encode_time(at: datetime) -> tuple[int]:
    return ((at - _EPOCH) // _MICROSECOND,)


def _decode_time(microseconds: tuple[int]) -> datetime | UnreadableTime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds[0])
    except OverflowError:
        return UnreadableTime()


def is_unreadable(at: datetime | UnreadableTime | None) -> bool:
    """Whether a column has a time that is infinite or out of range. All others have a time zone."""
    return at is not None and at.tzinfo is None


class _StatementDenied(Exception):
    """A statement was refused for want of privileges, which these grants include."""

    def __init__(self, problem: str, *, needs: str) -> None:
        super().__init__(problem)
        self.needs = needs


class _PooledSession:
    """A connection for as long as the context lasts. The store leaves no session state, so that its release needs no
    round trip."""

    __slots__ = ("_address", "_connection", "_pool")

    _connection: Session

    def __init__(self, pool: ConnectionPool, address: Address) -> None:
        self._pool, self._address = pool, address

    async def __aenter__(self) -> Session:
        self._connection = await self._pool.acquire()
        return self._connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, GIVEN_UP):
            # The state of the connection is unknown, so that it is not used again. After an abandoned query the next
            # one would wait until the server has answered.
            self._connection.terminate()
        self._pool.release(self._connection)
        if error is not None and (ours := translation(self._address, error)) is not None:
            raise ours from error


@asynccontextmanager
async def translated(address: Address) -> AsyncIterator[None]:
    """Translates the driver's errors into tenure's."""
    try:
        yield
    except Exception as problem:
        ours = translation(address, problem)
        if ours is None:
            raise
        raise ours from problem


def translation(address: Address, problem: BaseException, *, sent: bool = True) -> Exception | None:
    """The error of tenure for one of the driver. None where it stays as it is: it is not the driver's, or it is about a
    row, which is isolated in its batch. `sent`: something may have reached the server."""
    if isinstance(problem, asyncpg.InvalidCatalogNameError):
        return StoreError(f"{address.shown} does not exist: {problem}; create it, or correct the URL")
    if isinstance(problem, asyncpg.InvalidAuthorizationSpecificationError):
        return StoreError(f"{address.shown} refuses the login: {problem}; check user and password")
    if isinstance(problem, _StatementDenied):
        return PrivilegeMissing(str(problem), needs=problem.needs, role=address.role)
    if isinstance(problem, asyncpg.InsufficientPrivilegeError):
        # Every kind of grant includes the use of the schema; a reader's is the least.
        needs = "reader" if "for schema tenure" in str(problem) else OWNER
        return PrivilegeMissing(str(problem), needs=needs, role=address.role)
    if isinstance(problem, asyncpg.TooManyConnectionsError):
        advice = "raise the limit, or run fewer worker processes"
        return TooManyConnections(
            f"{address.shown} accepts no further connection: {problem}; {advice}", where=address.shown
        )
    if isinstance(problem, LOST):
        unknown = "; whether the last write took effect is unknown, so repeat it with the same request id"
        message = str(problem) or type(problem).__name__
        return StoreUnavailable(
            f"{address.shown} cannot be reached: {message}{unknown if sent else ''}", where=address.shown
        )
    if not isinstance(problem, asyncpg.PostgresError):
        return None
    if problem.sqlstate == GUARD_STATE:
        return GuardViolated(str(problem))
    if problem.sqlstate in (REUSED_STATE, DEDUPE_STATE) or isinstance(problem, (*CONFLICTS, *ABOUT_A_ROW)):
        return None
    if isinstance(problem, asyncpg.ReadOnlySQLTransactionError) or problem.sqlstate == LATE_STATE:
        return StoreUnavailable(f"{address.shown} takes no writes at present: {problem}", where=address.shown)
    return StoreError(f"{address.shown} refused: {problem}")
