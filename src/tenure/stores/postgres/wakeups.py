"""Wake-ups by LISTEN and NOTIFY, coalesced, and seldom in a commit that matters.

A wake-up is not guaranteed: where none arrives (a pooler in between, a lost connection), workers find jobs by polling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import asyncpg

from tenure.errors import TenureError
from tenure.seams import Seams
from tenure.stores.contract import Subscription
from tenure.stores.postgres.connections import LOST, Address, Connections

CHANNEL = "tenure_work"
NOTIFY = """
select pg_notify($1, queue), set_config('synchronous_commit', 'off', true) from unnest($2::text[]) queue
"""
"""A notification need not wait for the disk."""
PAUSE_SECONDS = 0.005
INLINE_AFTER_SECONDS = 0.01
"""How long no enqueue or signal was written before the next one may notify in its own statement."""
RETRY_SECONDS = 1.0

log = logging.getLogger("tenure.stores.postgres")


class PostgresNotifier:
    """Notifies other processes of queues with new work, at most once in a few milliseconds, and wakes subscriptions."""

    def __init__(self, address: Address, connections: Connections, seams: Seams) -> None:
        self._address, self._connections, self._seams = address, connections, seams
        self._pending: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._subscriptions: set[_Subscription] = set()
        self._written_at_seconds = -inf

    def may_notify_inline(self) -> bool:
        """Whether the next enqueue or signal may notify in its own statement, which saves a round trip. Only after a
        pause: a transaction that notifies blocks all others that do so until it is on disk."""
        now = self._seams.clock.monotonic_seconds()
        paused, self._written_at_seconds = now - self._written_at_seconds >= INLINE_AFTER_SECONDS, now
        return paused

    def send(self, names: Set[str], *, notified: bool = False) -> None:
        if notified:
            self._wake(names)
            return
        self._pending.update(names)
        self._wake(self._pending)
        if self._pending and (self._sender is None or self._sender.done()):
            self._sender = self._seams.spawn.task(self._notify(), name="tenure-notifier")

    async def _notify(self) -> None:
        while self._pending:
            queues, self._pending = sorted(self._pending), set()
            try:
                async with self._connections.session() as connection:
                    await connection.execute(NOTIFY, CHANNEL, queues)
            except TenureError as problem:
                log.warning("notification failed, workers find the jobs by polling: %s", problem)
            await self._seams.clock.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def subscribe(self, names: Sequence[str]) -> AsyncIterator[Subscription]:
        """A subscription to these queues for as long as the context lasts."""
        subscription = _Subscription(frozenset(names))
        self._subscriptions.add(subscription)
        if self._address.listen_dsn is not None and (self._listener is None or self._listener.done()):
            self._listener = self._seams.spawn.task(self._listen(self._address.listen_dsn), name="tenure-listener")
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    async def _listen(self, dsn: str) -> None:
        """Listens on one connection of its own. After each connect all subscriptions are woken: notifications may have
        been missed."""
        is_reported = False
        while self._subscriptions:
            try:
                connection = await asyncpg.connect(dsn)
                if is_reported:
                    log.info("listener connected again")
                    is_reported = False
                try:
                    closed = asyncio.Event()
                    connection.add_termination_listener(lambda _connection, gone=closed: gone.set())
                    await connection.add_listener(CHANNEL, self._receive)
                    self._wake(None)
                    await closed.wait()
                finally:
                    connection.terminate()
            except (*LOST, asyncpg.PostgresError) as problem:
                # While nothing else gets a reply either, the roles that claim and write report it.
                if not is_reported and await self._database_replies():
                    log.warning("listener connection failed, polling until it is back: %s", problem)
                    is_reported = True
                await self._seams.clock.sleep(RETRY_SECONDS)

    async def _database_replies(self) -> bool:
        try:
            async with self._connections.session() as connection:
                await connection.execute("select 1")
        except TenureError:
            return False
        return True

    def send_here(self, names: Set[str]) -> None:
        self._wake(names)

    def _receive(self, _connection: Any, _pid: int, _channel: str, queue: Any) -> None:
        self._wake({str(queue)})

    def _wake(self, queues: Set[str] | None) -> None:
        """Wake the subscriptions of this process to these queues, or all."""
        for subscription in self._subscriptions:
            if queues is None or not subscription.queues.isdisjoint(queues):
                subscription.event.set()

    async def flush(self) -> None:
        """Wait until every pending notification was sent."""
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def close(self) -> None:
        for task in (self._sender, self._listener):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=2)


class _Subscription:
    def __init__(self, queues: frozenset[str]) -> None:
        self.queues = queues
        self.event = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.event.wait()
        except TimeoutError:
            return False
        self.event.clear()
        return True
