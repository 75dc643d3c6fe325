"""The caller's own transaction on SQLite: a lane of its own, the write lock from the first moment, the gate open only
around what we write ourselves.

Everybody else who writes the file waits meanwhile, with the busy timeout that their connection has. So a block is never
open for longer than a share of ours, whatever deadline was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from tenure.errors import StoreError, TenureError
from tenure.lifecycle.records import Job, Policy
from tenure.seams import Seams
from tenure.stores.commit_block import BaseCommitBlock, BlockedStore
from tenure.stores.contract import Artifact, EnqueueRequest, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.sqlite import apply, enqueue
from tenure.stores.sqlite.artifacts import attach
from tenure.stores.sqlite.file_lock import FileLocks
from tenure.stores.sqlite.outbox import post
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.statements import sql
from tenure.stores.sqlite.transactions import open_gate
from tenure.stores.sqlite.user_sql import CallersError, Result, callers_errors, run
from tenure.stores.sqlite.writer_thread import BEGIN_TRIES, Lane, Work

T = TypeVar("T")

_log = logging.getLogger("tenure.stores.sqlite")

BLOCK_SHARE = 0.8
"""A block is open for at most this share of the busy timeout. Another process that begins to wait in the block's first
moment, with the same timeout, still gets its turn; only one with a shorter timeout could be told that it is locked."""


class WriterPause:
    """Keeps other work away while a block has the only connection that there is."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._block: BaseCommitBlock | None = None
        self._free = asyncio.Event()

    def shut(self, block: BaseCommitBlock) -> None:
        self._block, self._free = block, asyncio.Event()

    def open(self, block: BaseCommitBlock) -> None:
        """What comes now is served behind the end of the block."""
        if self._block is block:
            self._block = None
            self._free.set()

    async def passed(self) -> None:
        """Wait until no block is open. One whose time is up is ended by whoever waits for it."""
        while (block := self._block) is not None:
            if block.is_open and block.seconds_left <= 0:
                block.expire()
            elif block.is_open:
                await self._wait(self._free, block.seconds_left)
            else:
                await self._free.wait()

    async def _wait(self, free: asyncio.Event, seconds: float) -> None:
        spawn, clock = self._seams.spawn, self._seams.clock
        tasks = [spawn.task(free.wait(), name="tenure-gate"), spawn.task(clock.sleep(seconds), name="tenure-nap")]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class Blocks(msgspec.Struct, frozen=True):
    """What all blocks of one store share. Only one of them is open at a time, in the order of asking. The gate is for
    a store whose one connection serves everything."""

    lane: Lane
    turns: FileLocks
    order: asyncio.Lock
    gate: WriterPause | None
    busy_seconds: float
    clock: Callable[[], datetime]
    policies: SqlitePolicies
    seams: Seams


class SqliteCommitBlock(BaseCommitBlock):
    """One transaction on the blocks' own lane."""

    def __init__(self, store: BlockedStore, shared: Blocks, *, deadline_seconds: float) -> None:
        super().__init__(store, deadline_seconds=deadline_seconds, clock=shared.seams.clock)
        self.deadline_seconds = min(self.deadline_seconds, BLOCK_SHARE * shared.busy_seconds)
        self._shared = shared
        self._ending: asyncio.Future[None] | None = None
        self._in_order = False
        self._begun = False
        self._abandoned = False
        self._ended = False

    async def _begin(self) -> None:
        shared = self._shared
        if shared.gate is not None:
            await shared.gate.passed()
        await shared.order.acquire()
        self._in_order = True
        if shared.gate is not None:
            shared.gate.shut(self)
        try:
            await shared.lane.look(self._take_write_lock)
        except BaseException:
            # Also when we were cancelled while it waited: then it begins all the same, and must end.
            await self._let_go()
            raise

    def _take_write_lock(self, connection: sqlite3.Connection) -> None:
        self._shared.turns.take()
        self._begun = True
        for tries_left in reversed(range(BEGIN_TRIES)):
            try:
                connection.execute("begin immediate")
                return
            except sqlite3.OperationalError:
                if tries_left == 0:
                    raise

    async def _commit(self) -> None:
        def commit(connection: sqlite3.Connection) -> None:
            with callers_errors():
                connection.execute("commit")
            self._end(connection)

        await self._done(commit)

    async def _let_go(self) -> None:
        if not self._ended:
            self._abandon()
        self._make_way()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _abandon(self) -> None:
        if self._ending is None:
            self._abandoned = True
            self._shared.lane.interrupt()
            try:
                self._ending = self._shared.lane.hand_in(self._end)
            except TenureError:
                # The store was closed, and the transaction was undone with its connection.
                self._ended = True
        self._make_way()

    def _make_way(self) -> None:
        """Let others hand in their work: the lane serves it behind our end, also if our caller never leaves."""
        if self._in_order:
            self._in_order = False
            self._shared.order.release()
            if self._shared.gate is not None:
                self._shared.gate.open(self)

    def _end(self, connection: sqlite3.Connection) -> None:
        """Undo what is not committed, and let the next one write. Behind everything else that the lane still does."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._begun and connection.in_transaction:
                self._shared.policies.forget_ids()
                connection.rollback()
        except sqlite3.Error as problem:
            _log.warning("a transaction could not be rolled back, and ends with its connection: %s", problem)
        finally:
            if self._begun:
                self._shared.turns.give_back()

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        return (await self._run(sql, values)).touched

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        return (await self._run(sql, values)).rows

    async def _run(self, sql: str, values: Sequence[Any]) -> Result:
        return await self._done(lambda connection: run(connection, sql, values, abandoned=lambda: self._abandoned))

    async def _add(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        def work(connection: sqlite3.Connection) -> list[EnqueueResult]:
            policy_of = self._policies_on(connection)
            with _gate_open(connection):
                return enqueue.enqueue(
                    connection,
                    requests,
                    now=self._shared.clock(),
                    policies=self._shared.policies,
                    read=lambda job_id: apply.read_one(connection, job_id, policy_of),
                )

        return await self._done(work)

    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            with _gate_open(connection):
                post(connection, messages, now=self._shared.clock())

        await self._done(work)

    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        def work(connection: sqlite3.Connection) -> Job:
            with _gate_open(connection):
                return attach(
                    connection, job, artifacts, now=self._shared.clock(), policy_of=self._policies_on(connection)
                )

        return await self._done(work)

    async def _perform(self, request: Request) -> Outcome:
        def work(connection: sqlite3.Connection) -> Outcome:
            with _gate_open(connection):
                [outcome] = apply.apply(
                    connection, [request], now=self._shared.clock(), policy_of=self._policies_on(connection)
                )
                return outcome

        return await self._done(work)

    async def _done(self, work: Work[T]) -> T:
        """The result of the work, or the error that it is, the caller's own as SQLite raised it."""

        def wanted(connection: sqlite3.Connection) -> T:
            if self._abandoned:
                raise StoreError("this transaction has ended; open another one")
            return work(connection)

        try:
            return await self._shared.lane.look(wanted)
        except CallersError as error:
            raise error.error from None

    def _policies_on(self, connection: sqlite3.Connection) -> Callable[[int], Policy]:
        return lambda policy_id: self._shared.policies.read(connection, policy_id)


@contextmanager
def _gate_open(connection: sqlite3.Connection) -> Iterator[None]:
    """Write as the store for a moment. An error undoes the whole transaction, and the gate with it."""
    open_gate(connection, "store")
    yield
    connection.execute(sql("close_gate"))
