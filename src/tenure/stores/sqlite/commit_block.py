"""Commit blocks on SQLite: a connection of their own, which takes the write lock when the block begins. The writer is
set only around the store's own statements.

All other writers of the file wait meanwhile, for the busy timeout of their connections. So a block is never open for
longer than a share of the store's busy timeout, whatever its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from tenure.errors import StoreError, TenureError
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.seams import Seams
from tenure.stores.commit_block import BaseCommitBlock, WakingStore
from tenure.stores.contract import (
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    SaveStep,
    StepOutcome,
)
from tenure.stores.sqlite.apply import apply
from tenure.stores.sqlite.artifacts import attach
from tenure.stores.sqlite.connect import OpenedFile
from tenure.stores.sqlite.enqueue import enqueue
from tenure.stores.sqlite.file_lock import WriteLock
from tenure.stores.sqlite.messages import post
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.steps import save_steps, write_copies
from tenure.stores.sqlite.transactions import Work, begin_with_retries
from tenure.stores.sqlite.user_sql import Result, UserSqlError, run, user_sql_errors
from tenure.stores.sqlite.writer_thread import ConnectionRunner

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("tenure.stores.sqlite")

BLOCK_SHARE = 0.8
"""A block is open for at most this share of the busy timeout. A process with the same timeout that begins to wait when
the block begins still gets the lock; only one with a shorter timeout can time out."""


class WriterPause:
    """Keeps other work away while a block uses the only connection."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._block: BaseCommitBlock | None = None
        self._end = asyncio.Event()

    def begin(self, block: BaseCommitBlock) -> None:
        self._block, self._end = block, asyncio.Event()

    def end(self, block: BaseCommitBlock) -> None:
        """Work that is submitted from now on runs after the end of the block."""
        if self._block is block:
            self._block = None
            self._end.set()

    async def ended(self) -> None:
        """Wait until no block is open. A block whose deadline has passed is expired here."""
        while (block := self._block) is not None:
            if block.is_open and block.seconds_left <= 0:
                block.expire()
            elif block.is_open:
                await self._wait(self._end, block.seconds_left)
            else:
                await self._end.wait()

    async def _wait(self, end: asyncio.Event, seconds: float) -> None:
        spawn, clock = self._seams.spawn, self._seams.clock
        tasks = [spawn.task(end.wait(), name="tenure-pause"), spawn.task(clock.sleep(seconds), name="tenure-deadline")]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class BlockContext(msgspec.Struct, frozen=True):
    """What the blocks of one store share. One block is open at a time, in the order of requests. `pause` is for a
    store with a single connection."""

    runner: ConnectionRunner
    write_lock: WriteLock
    order: asyncio.Lock
    pause: WriterPause | None
    busy_seconds: float
    clock: Callable[[], datetime]
    policies: SqlitePolicies
    seams: Seams
    file: OpenedFile


class SqliteCommitBlock(BaseCommitBlock):
    """One transaction on the connection of commit blocks."""

    def __init__(self, store: WakingStore, context: BlockContext, *, deadline_seconds: float) -> None:
        super().__init__(store, deadline_seconds=deadline_seconds, clock=context.seams.clock)
        self.deadline_seconds = min(self.deadline_seconds, BLOCK_SHARE * context.busy_seconds)
        self._context = context
        self._ending: asyncio.Future[None] | None = None
        self._in_order = False
        self._begun = False
        self._abandoned = False
        self._ended = False

    async def _begin(self) -> None:
        context = self._context
        if context.pause is not None:
            await context.pause.ended()
        await context.order.acquire()
        self._in_order = True
        if context.pause is not None:
            context.pause.begin(self)
        try:
            await context.runner.call(self._take_write_lock)
        except BaseException:
            # Also after a cancellation while it waited: then the transaction begins all the same, and must end.
            await self._release()
            raise

    def _take_write_lock(self, connection: sqlite3.Connection) -> None:
        self._context.write_lock.acquire()
        self._begun = True
        begin_with_retries(lambda: connection.execute("begin immediate"), connection)

    async def _commit(self) -> None:
        def commit(connection: sqlite3.Connection) -> None:
            self._context.file.require_same()
            with user_sql_errors():
                connection.execute("commit")
            self._end(connection)

        await self._call(commit)

    async def _release(self) -> None:
        if not self._ended:
            self._abandon()
        self._release_order()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _abandon(self) -> None:
        if self._ending is None:
            self._abandoned = True
            self._context.runner.interrupt()
            try:
                self._ending = self._context.runner.submit(self._end)
            except TenureError:
                # The store was closed, and the transaction was rolled back with its connection.
                self._ended = True
        self._release_order()

    def _release_order(self) -> None:
        """Let others submit work: it runs after the end of this block, also if the caller never leaves it."""
        if self._in_order:
            self._in_order = False
            self._context.order.release()
            if self._context.pause is not None:
                self._context.pause.end(self)

    def _end(self, connection: sqlite3.Connection) -> None:
        """Roll back what is not committed, and release the write lock. Runs after all work of the block."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._begun and connection.in_transaction:
                self._context.policies.forget_ids()
                connection.rollback()
        except sqlite3.Error as problem:
            _log.warning("rollback of a commit block failed, it ends with its connection: %s", problem)
        finally:
            if self._begun:
                self._context.write_lock.release()

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        return (await self._run_user_sql(sql, values)).touched

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        return (await self._run_user_sql(sql, values)).rows

    async def _run_user_sql(self, sql: str, values: Sequence[Any]) -> Result:
        return await self._call(lambda connection: run(connection, sql, values, abandoned=lambda: self._abandoned))

    async def _enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._run_as_store(enqueue, requests)

    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        await self._run_as_store(post, messages)

    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        return await self._run_as_store(attach, job, artifacts)

    async def _apply(self, request: Request) -> Outcome:
        [outcome] = await self._run_as_store(apply, [request])
        return outcome

    async def _save_step(self, request: SaveStep) -> StepOutcome:
        [outcome] = await self._run_as_store(save_steps, [request])
        return outcome

    async def _write_steps(self, job: Job, steps: Sequence[StepRecord]) -> int:
        return await self._run_as_store(write_copies, job, steps)

    async def _run_as_store(
        self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of an operation of the store, with the writer set while it runs."""

        def work(connection: sqlite3.Connection) -> T:
            session = Session(connection, self._context.clock(), self._context.policies)
            with session.writing_as("store", then=None):
                return operation(session, *args, **kwargs)

        return await self._call(work)

    async def _call(self, work: Work[T]) -> T:
        """The result of the work. An error in the user's own statement is raised as SQLite raised it."""

        def checked(connection: sqlite3.Connection) -> T:
            if self._abandoned:
                raise StoreError("this transaction has ended; open another one")
            return work(connection)

        try:
            return await self._context.runner.call(checked)
        except UserSqlError as error:
            raise error.error from None
