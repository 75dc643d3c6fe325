"""A store that kills its own process at a named point, or makes it wait for the others there.

It delegates to a real store and changes no request and no result: the points lie between two calls of the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from tenure.lifecycle.operations import Commit, Complete, Stall
from tenure.lifecycle.records import Job
from tenure.stores.contract import ClaimRequest, Outcome, Request, Store, StoreTransaction
from tests.chaos.process_options import Point, ProcessOptions

AMID_SECONDS = 0.01


def die() -> None:
    """At once, with nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    """Everything that is not named here is delegated to the real store."""

    def __init__(self, store: Store, options: ProcessOptions) -> None:
        self._store, self._options = store, options
        self._won = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> list[Job]:
        if not self._may_claim():
            return []
        if self._options.killed_at is Point.AFTER_CLAIM:
            # The pool claims and starts in one statement. This one only claims.
            request = msgspec.structs.replace(request, start=False)
        jobs = await self._store.claim(request)
        self._won += len(jobs)
        if jobs and self._options.killed_at in (Point.AFTER_CLAIM, Point.AFTER_START):
            die()
        return jobs

    def _may_claim(self) -> bool:
        options = self._options
        if options.claims_after_note is not None and not options.notes.are_there(options.claims_after_note):
            return False
        return options.claims_most is None or self._won < options.claims_most

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        completes = any(isinstance(request.operations[0], Complete) for request in requests)
        stalls = any(isinstance(request.operations[0], Stall) for request in requests)
        if completes and self._options.killed_at is Point.BEFORE_COMPLETION:
            die()
        if stalls and self._options.killed_at is Point.AMID_RECOVERY:
            threading.Timer(AMID_SECONDS, die).start()
        outcomes = await self._store.apply(requests)
        if (completes and self._options.killed_at is Point.AFTER_COMPLETION) or (
            stalls and self._options.killed_at is Point.AFTER_FIRST_RECOVERY
        ):
            die()
        if stalls:
            self._options.notes.leave(f"{self._options.name}-has-written")
        return outcomes

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        if not self._options.recovers:
            return []
        jobs = await self._store.recoverable(limit=limit, after=after)
        if jobs and after is None and self._options.recovers_after_readers:
            await self._wait_for_other_readers()
        return jobs

    async def _wait_for_other_readers(self) -> None:
        notes = self._options.notes
        if not notes.are_there(f"read-by-{self._options.name}"):
            notes.leave(f"read-by-{self._options.name}")
            await asyncio.to_thread(notes.wait_for, "read-by-", count=self._options.recovers_after_readers)

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[StoreTransaction]:
        return self._transaction(deadline_seconds)

    @asynccontextmanager
    async def _transaction(self, deadline_seconds: float) -> AsyncIterator[StoreTransaction]:
        async with self._store.transaction(deadline_seconds=deadline_seconds) as inner:
            yield FaultyTransaction(inner, self._options)
        if self._options.killed_at is Point.AFTER_COMMIT:
            die()


class FaultyTransaction:
    """The same for the points inside a commit block."""

    def __init__(self, inner: StoreTransaction, options: ProcessOptions) -> None:
        self._inner, self._options = inner, options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._inner.apply(request)
        if isinstance(request.operations[0], Commit) and self._options.killed_at is Point.INSIDE_COMMIT:
            # The user's rows and the mark are written, and not committed.
            die()
        return outcome
