"""The caller's own connection: new jobs, and the mark of a commit, inside a transaction that is not ours.

    caller = caller_for(connection, "postgresql://…")
    await caller.add(requests)            # or caller.add_sync(requests), where nothing needs to be waited for
    outcome = await caller.apply(request, messages=messages, artifacts=artifacts)
    await caller.commit()

Nothing here begins, commits or rolls back a transaction unless `begin`, `commit` or `rollback` is asked for; a
connection in autocommit mode makes each call a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import Artifact, EnqueueRequest, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.user_connections.connection import BorrowedCaller
from tenure.stores.user_connections.detect import borrow
from tenure.stores.user_connections.protocol import Driver

__all__ = ["Caller", "Driver", "caller_for"]


class Caller(Protocol):
    """What may be asked of a connection that belongs to somebody else.

    The forms with `_sync` do the same on a connection that is not asynchronous, and refuse one that is.
    """

    @property
    def is_async(self) -> bool:
        """Whether the connection must be waited for, so that only the async forms can use it."""
        ...

    @property
    def deadline_seconds_max(self) -> float:
        """How long a transaction of such a connection may be open at most, before it is in everybody's way."""
        ...

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """Add jobs, all or none. They are there for others once the caller's transaction commits."""
        ...

    async def apply(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome:
        """Mark one job as committed, as its owner. What is not Applied should make the caller roll back.

        Messages and artifacts are written with the mark, and only with it. A name or an id that was used before is
        InvalidInput, and nothing is written.
        """
        ...

    async def begin(self) -> None:
        """Make sure that what follows belongs to one transaction, which `commit` or `rollback` ends. A connection to
        another database is refused, and one in a transaction that only its owner can end."""
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def enqueue_sync(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    def apply_sync(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome: ...

    def begin_sync(self) -> None: ...

    def commit_sync(self) -> None: ...

    def rollback_sync(self) -> None: ...


def caller_for(connection: Any, database_url: str, *, seams: Seams = SYSTEM) -> Caller:
    """The caller behind a connection of any kind that is known; InvalidInput says which these are.

    The URL is that of tenure's own store: the connection must lead to the same database.
    """
    return BorrowedCaller(borrow(connection), database_url, clock=seams.clock)
