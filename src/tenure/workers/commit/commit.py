"""The commit block: the user's SQL, the result, artifacts, messages and further jobs in one transaction.

The mark is the last statement before COMMIT, so that the job's row is locked briefly, and it is fenced like every
write of an owner: under a lease that was lost, nothing inside takes effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from tenure.errors import (
    AlreadyCommitted,
    DeadlinePassed,
    InvalidInput,
    LeaseLost,
    RevisionConflict,
    StoreError,
    StoreUnavailable,
)
from tenure.jobs.context import inside_commit
from tenure.jobs.message import new_message
from tenure.lifecycle.content import ContentDigests
from tenure.lifecycle.json_text import check_seconds
from tenure.lifecycle.operations import Commit, Complete, Operation
from tenure.lifecycle.records import Job
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import Seams
from tenure.stores.contract import (
    Applied,
    Artifact,
    Busy,
    EnqueueRequest,
    Failure,
    OutboxMessage,
    Outcome,
    Repeated,
    Request,
    StoreTransaction,
    Transaction,
    TransactionStore,
    digest_artifacts,
)
from tenure.stores.user_connections import UserTransaction
from tenure.stores.validation import validate_artifacts
from tenure.workers.commit.portal import AsyncCall, BlockingPortal
from tenure.workers.leases import Lease
from tenure.workers.reconnect import ReconnectBackoff

if TYPE_CHECKING:
    from tenure.workers.commit.user_connection import SameThreadPortal

RACES_MAX = 20
MARGIN = 0.1
"""The share of the lease's remaining time that a block may not use, so that the block ends before its lease."""


class PreparedEnqueue(Protocol):
    """A validated call that is not enqueued yet: what `job.request(…)` returns."""

    @property
    def enqueue(self) -> EnqueueRequest: ...


class CommitContent:
    """The jobs, messages and artifacts of a commit. They are written when the block is left."""

    def __init__(self, job: Job, seams: Seams, artifacts: Sequence[Artifact]) -> None:
        self._job, self._seams = job, seams
        self.enqueues: list[EnqueueRequest] = []
        self.messages: list[OutboxMessage] = []
        self.artifacts = list(artifacts)

    def enqueue(self, prepared: PreparedEnqueue) -> UUID:
        """Enqueue a call with the commit: `tx.enqueue(send.request("ada"))`. Returns the id of the job."""
        request = prepared.enqueue
        self.enqueues.append(request)
        return request.origin.id

    def outbox(
        self, topic: str, body: Any, *, aggregate: str | None = None, headers: Mapping[str, str] | None = None
    ) -> UUID:
        """Send a message with the commit. Messages of one aggregate are delivered in the order of their commits; a
        message without an aggregate is delivered in any order."""
        message = new_message(topic, body, aggregate=aggregate, headers=headers, id=self._seams.random.job_id())
        self.messages.append(message)
        return message.id

    def attach(self, name: str, body: bytes, *, media_type: str = "application/octet-stream") -> None:
        """Store a named artifact with the commit."""
        self.artifacts.append(Artifact(name=name, media_type=media_type, body=body))


class CommitTransaction(CommitContent):
    """The transaction of `async with ctx.commit()`: the user's statements, and the content of the commit."""

    def __init__(self, inner: Transaction, job: Job, seams: Seams, artifacts: Sequence[Artifact]) -> None:
        super().__init__(job, seams, artifacts)
        self._inner = inner

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement; values are `$1`, `$2`, … on every database. Returns the number of affected rows."""
        return await self._inner.execute(sql, *values)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query, by column name."""
        return await self._inner.fetch(sql, *values)


class SyncCommitTransaction:
    """The transaction of `with ctx.commit()` in synchronous functions."""

    def __init__(self, tx: CommitTransaction, call: Callable[[AsyncCall], Any]) -> None:
        self._tx, self._call = tx, call
        self.enqueue = tx.enqueue
        self.outbox = tx.outbox
        self.attach = tx.attach

    def execute(self, sql: str, *values: Any) -> int:
        touched: int = self._call(lambda: self._tx.execute(sql, *values))
        return touched

    def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._call(lambda: self._tx.fetch(sql, *values))
        return rows


class CommitBlock:
    """A commit block. Enter it with `async with`, or in a synchronous function with `with`."""

    def __init__(
        self,
        open_transaction: Callable[[], AbstractAsyncContextManager[CommitTransaction]],
        portal: Callable[[], BlockingPortal[CommitTransaction] | SameThreadPortal],
    ) -> None:
        self._open_transaction, self._new_portal = open_transaction, portal

    async def __aenter__(self) -> CommitTransaction:
        self._context = self._open_transaction()
        tx = await self._context.__aenter__()
        self._inside = inside_commit.set(self)
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        inside_commit.reset(self._inside)
        await self._context.__aexit__(kind, error, at)

    def __enter__(self) -> SyncCommitTransaction:
        refuse_inside_loop()
        self._portal = self._new_portal()
        tx = SyncCommitTransaction(self._portal.enter(), self._portal.call)
        self._inside = inside_commit.set(self)
        return tx

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        inside_commit.reset(self._inside)
        self._portal.leave(error)


class BlockDeadline:
    """How long a block may be open. Synchronous code cannot be interrupted, so `check` reads the clock as well."""

    def __init__(self, seconds: float, job: Job, seams: Seams) -> None:
        self._seconds, self._job, self._clock = seconds, job, seams.clock
        self._ends_at_seconds = self._clock.monotonic_seconds() + seconds

    @property
    def _left_seconds(self) -> float:
        return self._ends_at_seconds - self._clock.monotonic_seconds()

    def check(self) -> None:
        if self._left_seconds <= 0:
            raise self._passed()

    @asynccontextmanager
    async def limited(self, limit: Callable[[float], AbstractAsyncContextManager[Any]]) -> AsyncIterator[None]:
        timeout = limit(self._left_seconds)
        try:
            async with timeout:
                yield
        except TimeoutError as late:
            if isinstance(timeout, asyncio.Timeout) and timeout.expired():
                raise self._passed() from late
            raise

    def _passed(self) -> DeadlinePassed:
        return DeadlinePassed(
            f"job {self._job.id}: the commit block was open for more than {self._seconds:.3g} s and was rolled back; "
            f"do slow work before the block, or give the job a longer lease"
        )


class Overtaken(Exception):
    """Rolls back a completion: what was read for it has changed meanwhile. It is prepared again."""


class Continuation(Protocol):
    """What is written in the transaction that completes a job: the successor of a run."""

    async def prepare(self) -> None:
        """Read what is to be written."""
        ...

    async def write(self, inner: StoreTransaction, before: Job) -> None:
        """Write it, after the completion. `before` is the record that was completed. Raises Overtaken if that record is
        not the one that was prepared for."""
        ...


class _NotWritten(Exception):
    """Rolls back a write that was only made to check whether it had been made before."""


class Committer:
    """Commits one leased job. `store` returns the store of the running event loop."""

    def __init__(self, lease: Lease, seams: Seams, store: Callable[[], Awaitable[TransactionStore]]) -> None:
        self._lease, self._seams, self._store = lease, seams, store
        self.artifacts: list[Artifact] = []
        self.continuation: Continuation | None = None
        self._block_error: BaseException | None = None

    def raised(self, error: BaseException) -> bool:
        """Whether a commit block raised this error, or one that it was raised from."""
        found: BaseException | None = error
        while found is not None and found is not self._block_error:
            found = found.__cause__ or found.__context__
        return found is not None

    def attach(self, artifact: Artifact) -> None:
        """Keep an artifact for the commit. InvalidInput: the artifact is refused here, and not at the commit."""
        if self._lease.job.committed:
            raise self._committed("attach", "artifacts go along with the commit")
        validate_artifacts([*self.artifacts, artifact])
        self.artifacts.append(artifact)

    @asynccontextmanager
    async def block(
        self,
        result: str,
        *,
        deadline_seconds: float | None,
        user: UserTransaction | None = None,
        interrupt: Callable[[float], AbstractAsyncContextManager[Any]] = asyncio.timeout,
    ) -> AsyncIterator[CommitTransaction]:
        """Open a transaction of the store or of the user's connection, and commit it with the mark at the end."""
        try:
            async with self._block(result, deadline_seconds=deadline_seconds, user=user, interrupt=interrupt) as tx:
                yield tx
        except BaseException as error:
            self._block_error = error
            raise

    @asynccontextmanager
    async def _block(
        self,
        result: str,
        *,
        deadline_seconds: float | None,
        user: UserTransaction | None,
        interrupt: Callable[[float], AbstractAsyncContextManager[Any]],
    ) -> AsyncIterator[CommitTransaction]:
        limit_seconds = self.limit_seconds_for(deadline_seconds)
        open_transaction: AbstractAsyncContextManager[Transaction]
        if user is None:
            open_transaction = (await self._store()).transaction(deadline_seconds=limit_seconds)
        else:
            limit_seconds = min(limit_seconds, user.deadline_seconds_max)
            open_transaction = user.opened()
        time = BlockDeadline(limit_seconds, self._lease.job, self._seams)
        # The COMMIT is outside of the timeout: if it were interrupted, its outcome would be unknown.
        async with open_transaction as inner, time.limited(interrupt):
            tx = CommitTransaction(inner, self._lease.job, self._seams, self.artifacts)
            yield tx
            time.check()
            job = await self.write(inner, tx, result)
            time.check()
        self.done(job)

    async def write(self, inner: Transaction, content: CommitContent, result: str) -> Job:
        """Write the content, then the mark. Returns the record."""
        if content.enqueues:
            await inner.enqueue(content.enqueues)
        if content.artifacts:
            await inner.attach(self._lease.job, content.artifacts)
        if content.messages:
            await inner.post(content.messages, job=self._lease.job)
        return (await self.mark(inner.apply, Commit(result), self._lease.request_id("commit"))).job

    async def complete(self, result: str) -> Job:
        """Complete a job that has artifacts or a continuation, and no commit block: all in one transaction. While the
        database is unavailable it is retried; before each retry, the log shows whether it was written."""
        digests = ContentDigests(artifacts=digest_artifacts(self.artifacts, attempt=self._lease.job.attempt))
        operation = Complete(result, written=digests.detail())
        request_id = self._lease.request_id("complete")
        backoff = ReconnectBackoff(self._seams)
        try:
            return await self._complete(operation, request_id)
        except StoreUnavailable:
            await backoff.wait()
        while True:
            try:
                done = await self._already_written(operation, request_id)
                return done or await self._complete(operation, request_id)
            except StoreUnavailable:
                await backoff.wait()

    async def _complete(self, operation: Complete, request_id: str) -> Job:
        for _ in range(RACES_MAX):
            if self.continuation is not None:
                await self.continuation.prepare()
            try:
                return await self._try_to_complete(operation, request_id)
            except Overtaken:
                continue
        raise self._changed()

    async def _try_to_complete(self, operation: Complete, request_id: str) -> Job:
        store = await self._store()
        async with store.transaction(deadline_seconds=self.limit_seconds_for(None)) as inner:
            await inner.attach(self._lease.job, self.artifacts)
            written = await self.mark(inner.apply, operation, request_id)
            if self.continuation is not None and isinstance(written, Applied):
                await self.continuation.write(inner, written.change.before)
            return written.job

    async def _already_written(self, operation: Complete, request_id: str) -> Job | None:
        """The record, if this request was written before. If it was not, nothing is written."""
        store = await self._store()
        try:
            async with store.transaction(deadline_seconds=self.limit_seconds_for(None)) as inner:
                written = await self.mark(inner.apply, operation, request_id)
                if isinstance(written, Applied):
                    raise _NotWritten
        except _NotWritten:
            return None
        return written.job

    async def mark(
        self, apply: Callable[[Request], Awaitable[Outcome]], operation: Operation, request_id: str
    ) -> Applied | Repeated:
        """Write the mark, or raise the refusal. A heartbeat or cancel request in between is adopted."""
        lease = self._lease
        for _ in range(RACES_MAX):
            match await apply(lease.request(operation, request_id)):
                case Applied() | Repeated() as written:
                    return written
                case Failure(RevisionConflict(current=Job() as current)) if lease.adopt(current):
                    continue
                case Busy():
                    continue
                case Failure(LeaseLost() as refusal):
                    lease.lose()
                    raise refusal
                case Failure(error):
                    raise error
        raise self._changed()

    def _changed(self) -> StoreError:
        return StoreError(f"job {self._lease.job.id} changed {RACES_MAX} times during its commit; try again later")

    def done(self, job: Job) -> None:
        self._lease.adopt(job)
        self.artifacts = []

    def limit_seconds_for(self, requested_seconds: float | None) -> float:
        """How long a block may be open: less than the lease is certain for, and no longer than requested."""
        lease = self._lease
        if lease.job.committed:
            raise self._committed("commit", "it has one commit, ever")
        left = lease.local_deadline_seconds - self._seams.clock.monotonic_seconds()
        if lease.lost or left <= 0:
            raise LeaseLost(lease.job, "commit")
        if requested_seconds is not None:
            check_seconds(requested_seconds, "deadline_seconds", least=0.001)
        return min(left * (1 - MARGIN), float("inf") if requested_seconds is None else requested_seconds)

    def _committed(self, asked: str, why: str) -> AlreadyCommitted:
        job = self._lease.job
        return AlreadyCommitted(job, asked, allowed=allowed_from(job.status, committed=True), why=why)


def refuse_inside_loop() -> None:
    """Refuse `with` on the event loop's thread, where it would wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput("ctx.commit", "`with` would block the running event loop here; write `async with ctx.commit(…)`")
