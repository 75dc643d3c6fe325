"""The commit block on a connection or session of the user: `ctx.commit(conn=session)`.

The user's statements run on that connection. Jobs, messages, artifacts and the commit mark are written into the same
transaction when the block is left, and then it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from tenure.seams import Seams
from tenure.stores.user_connections import UserTransaction, run_sync
from tenure.workers.commit.commit import CommitBlock, Committer, CommitTransaction
from tenure.workers.commit.portal import AsyncCall, BlockingPortal

UserTransactions = Callable[[Any], UserTransaction]
"""Returns the transaction of a user's connection. InvalidInput: it is of no supported library."""


class SameThreadPortal:
    """Enters a commit block on the calling thread. The connection must be synchronous."""

    def __init__(self, context: AbstractAsyncContextManager[CommitTransaction], user: UserTransaction) -> None:
        self._context, self._connection = context, user.connection

    def enter(self) -> CommitTransaction:
        tx: CommitTransaction = self.call(self._context.__aenter__)
        return tx

    def call(self, function: AsyncCall) -> Any:
        """Return the result of one function inside of the block."""
        return run_sync(self._connection, function(), instead="async with ctx.commit(conn=…)")

    def leave(self, error: BaseException | None) -> None:
        details = (type(error), error, error.__traceback__) if error else (None, None, None)
        self.call(lambda: self._context.__aexit__(*details))


def commit_block_for(
    committer: Committer,
    result: str,
    *,
    user: UserTransaction | None,
    deadline_seconds: float | None,
    loop: asyncio.AbstractEventLoop,
    seams: Seams,
) -> CommitBlock:
    """Return a commit block on the user's connection, or without one on a connection of the store."""
    opened = partial(committer.block, result, deadline_seconds=deadline_seconds, user=user)
    if user is None:
        return CommitBlock(opened, lambda: BlockingPortal(opened(), loop, seams.spawn))
    # Synchronous code cannot be interrupted: the committer checks the deadline when the block is left.
    return CommitBlock(opened, lambda: SameThreadPortal(opened(interrupt=lambda _seconds: nullcontext()), user))
