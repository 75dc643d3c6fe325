"""The commit boundary on a connection of the user's own: `ctx.commit(conn=session)`.

The user's statements go through their session; jobs, messages, artifacts and the mark are written into the same
transaction when the block is left, and then it is committed. A plain connection is used on the user's own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, Protocol

from tenure.errors import InvalidInput, JobNotFound
from tenure.jobs.context import inside_commit
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Artifact, EnqueueRequest, EnqueueResult, Failure, OutboxMessage, Outcome, Request
from tenure.stores.user_connections.sync import run_synchronously
from tenure.workers.commit.commit import (
    BlockTime,
    CommitBlock,
    Committer,
    CommitTransaction,
    PlainTransaction,
    refuse_inside_loop,
)
from tenure.workers.commit.portal import Step

log = logging.getLogger("tenure.workers")


class Lent(Protocol):
    """A connection that a user lends us for one commit. The forms with `_sync` refuse one that is asynchronous."""

    @property
    def deadline_seconds_max(self) -> float: ...

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    async def apply(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome: ...

    async def begin(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def enqueue_sync(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    def apply_sync(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome: ...

    def begin_sync(self) -> None: ...

    def commit_sync(self) -> None: ...

    def rollback_sync(self) -> None: ...


Borrow = Callable[[Any], Lent]
"""Makes something that can be used of a connection that a user has. InvalidInput says which kinds are known."""


class _Used(Protocol):
    """What a block asks of the connection, on whichever thread it runs."""

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    async def apply(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome: ...

    async def begin(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class _Here:
    """The connection on the thread that we are on: nothing in it waits for an event loop."""

    def __init__(self, lent: Lent) -> None:
        self._lent = lent

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return self._lent.enqueue_sync(requests)

    async def apply(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome:
        return self._lent.apply_sync(request, messages=messages, artifacts=artifacts)

    async def begin(self) -> None:
        self._lent.begin_sync()

    async def commit(self) -> None:
        self._lent.commit_sync()

    async def rollback(self) -> None:
        self._lent.rollback_sync()


class _UsersTransaction:
    """The user's transaction as the committer sees it. Messages and artifacts are written with the mark."""

    def __init__(self, used: _Used) -> None:
        self._used = used
        self._messages: list[OutboxMessage] = []
        self._artifacts: list[Artifact] = []

    async def execute(self, sql: str, *values: Any) -> int:
        _use_your_own("execute")

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        _use_your_own("fetch")

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._used.enqueue(requests)

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        self._messages += messages

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        self._artifacts += artifacts

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._used.apply(request, messages=self._messages, artifacts=self._artifacts)
        if isinstance(outcome, Failure) and isinstance(outcome.error, JobNotFound):
            problem = f"leads to a database that does not know job {request.job_id}, which is run from another one"
            raise InvalidInput("conn", f"{problem}; pass a connection to the app's own database")
        return outcome


class BorrowedBlock(CommitBlock):
    """A commit on the user's own connection: `async with` waits for it, `with` uses a plain one where it stands."""

    def __init__(
        self,
        lent: Lent,
        committer: Committer,
        *,
        job: Job,
        result: str,
        deadline_seconds: float | None,
        loop: asyncio.AbstractEventLoop,
        seams: Seams,
    ) -> None:
        super().__init__(lambda: self._open(lent, asyncio.timeout), loop, seams)
        self._lent, self._committer, self._job, self._result = lent, committer, job, result
        self._deadline_seconds = deadline_seconds

    def __enter__(self) -> PlainTransaction:
        refuse_inside_loop()
        self._context = self._open(_Here(self._lent), _uninterrupted)
        tx = PlainTransaction(run_synchronously(self._context.__aenter__()), _done_here)
        self._inside = inside_commit.set(self)
        return tx

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        inside_commit.reset(self._inside)
        run_synchronously(self._context.__aexit__(kind, error, at))

    @asynccontextmanager
    async def _open(
        self, used: _Used, limit: Callable[[float], AbstractAsyncContextManager[Any]]
    ) -> AsyncIterator[CommitTransaction]:
        """The transaction, committed with the mark when it is left normally, and otherwise rolled back."""
        seconds = min(self._committer.seconds_left(self._deadline_seconds), self._lent.deadline_seconds_max)
        time = BlockTime(seconds, self._job, self._seams)
        await self._begin(used)
        try:
            # The COMMIT is outside of the limit: interrupted there, nobody could say that it was rolled back.
            async with time.limited(limit):
                inner = _UsersTransaction(used)
                tx = CommitTransaction(inner, self._job, self._seams, self._committer.artifacts)
                yield tx
                time.check()
                job = await self._committer.write(inner, tx, self._result)
                time.check()
            await used.commit()
        except BaseException:
            await self._roll_back(used)
            raise
        self._committer.done(job)

    async def _begin(self, used: _Used) -> None:
        try:
            await used.begin()
        except InvalidInput:
            # Nothing was begun: whatever transaction the connection is in is not ours to end.
            raise
        except BaseException:
            await self._roll_back(used)
            raise

    async def _roll_back(self, used: _Used) -> None:
        """Undo everything. An error of this is told, but does not take the place of what led to it."""
        try:
            await used.rollback()
        except Exception as problem:  # noqa: BLE001 - what a user's driver raises can be anything
            log.warning(
                "job %s: the connection of its commit block could not be rolled back, so that its server does it when "
                "the connection ends: %r",
                self._job.id,
                problem,
            )


def block_for(
    committer: Committer,
    result: str,
    *,
    lent: Lent | None,
    job: Job,
    deadline_seconds: float | None,
    loop: asyncio.AbstractEventLoop,
    seams: Seams,
) -> CommitBlock:
    """The block of one commit: on the connection that was lent for it, or else on one of the store's own."""
    if lent is None:
        return CommitBlock(lambda: committer.block(result, deadline_seconds=deadline_seconds), loop, seams)
    return BorrowedBlock(
        lent, committer, job=job, result=result, deadline_seconds=deadline_seconds, loop=loop, seams=seams
    )


def _uninterrupted(_seconds: float) -> AbstractAsyncContextManager[None]:
    return nullcontext()


def _done_here(step: Step) -> Any:
    async def done() -> Any:
        return await step()

    return run_synchronously(done())


def _use_your_own(called: str) -> NoReturn:
    raise InvalidInput(
        f"tx.{called}", "with `ctx.commit(conn=…)` your statements go through that connection; run them there"
    )
