"""A store that kills its own process at a named point, or makes it wait for the others there.

It stands in front of a real one, changes nothing of what is asked and answered, and is only as clever as it must be:
the points lie between two calls that the worker makes.
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
from tenure.stores.contract import ClaimRequest, Outcome, Request, Store, Transaction
from tests.chaos.program import Point, Program

AMID_SECONDS = 0.01


def die() -> None:
    """At once, with nothing flushed and nobody told."""
    os.kill(os.getpid(), signal.SIGKILL)


class TroubledStore:
    """Everything that is not named here goes to the real store as it is."""

    def __init__(self, store: Store, program: Program) -> None:
        self._store, self._program = store, program
        self._won = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> list[Job]:
        if not self._may_claim():
            return []
        if self._program.dies_at is Point.AFTER_CLAIM:
            # The pool claims and starts in one statement. This one comes no further than the claim.
            request = msgspec.structs.replace(request, start=False)
        jobs = await self._store.claim(request)
        self._won += len(jobs)
        if jobs and self._program.dies_at in (Point.AFTER_CLAIM, Point.AFTER_START):
            die()
        return jobs

    def _may_claim(self) -> bool:
        program = self._program
        if program.claims_after_note is not None and not program.notes.are_there(program.claims_after_note):
            return False
        return program.claims_most is None or self._won < program.claims_most

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        completes = any(isinstance(request.operations[0], Complete) for request in requests)
        stalls = any(isinstance(request.operations[0], Stall) for request in requests)
        if completes and self._program.dies_at is Point.BEFORE_COMPLETION:
            die()
        if stalls and self._program.dies_at is Point.AMID_RECOVERY:
            threading.Timer(AMID_SECONDS, die).start()
        outcomes = await self._store.apply(requests)
        if (completes and self._program.dies_at is Point.AFTER_COMPLETION) or (
            stalls and self._program.dies_at is Point.AFTER_FIRST_RECOVERY
        ):
            die()
        if stalls:
            self._program.notes.leave(f"{self._program.name}-has-written")
        return outcomes

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        if not self._program.recovers:
            return []
        jobs = await self._store.recoverable(limit=limit, after=after)
        if jobs and after is None and self._program.recovers_after_readers:
            await self._wait_for_other_readers()
        return jobs

    async def _wait_for_other_readers(self) -> None:
        notes = self._program.notes
        if not notes.are_there(f"read-by-{self._program.name}"):
            notes.leave(f"read-by-{self._program.name}")
            await asyncio.to_thread(notes.wait_for, "read-by-", count=self._program.recovers_after_readers)

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction(deadline_seconds)

    @asynccontextmanager
    async def _transaction(self, deadline_seconds: float) -> AsyncIterator[Transaction]:
        async with self._store.transaction(deadline_seconds=deadline_seconds) as inner:
            yield TroubledTransaction(inner, self._program)
        if self._program.dies_at is Point.AFTER_COMMIT:
            die()


class TroubledTransaction:
    """The same for what happens inside a commit block."""

    def __init__(self, inner: Transaction, program: Program) -> None:
        self._inner, self._program = inner, program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, request: Request) -> Outcome:
        outcome = await self._inner.apply(request)
        if isinstance(request.operations[0], Commit) and self._program.dies_at is Point.INSIDE_COMMIT:
            # The user's rows and the mark are written, and not committed.
            die()
        return outcome
