"""Telling workers that there is work: LISTEN and NOTIFY, coalesced, and seldom in a commit that matters.

A notification is a hint. When none comes through (a pooler in between, a lost connection), workers poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence, Set
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
"""A hint needs no disk: nothing is lost with it, and whoever waits for it need not wait for the disk too."""
PAUSE_SECONDS = 0.005
ALONG_SECONDS = 0.01
"""How long nothing was said before a hint may go along with what it is about."""
RETRY_SECONDS = 1.0

log = logging.getLogger("tenure.stores.postgres")


class PostgresNotifier:
    """Rings for queues that got work, at most once every few milliseconds, and passes rings on to listeners."""

    def __init__(self, address: Address, connections: Connections, seams: Seams) -> None:
        self._address, self._connections, self._seams = address, connections, seams
        self._rung: set[str] = set()
        self._ringing: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._listeners: set[_Listener] = set()
        self._later: dict[frozenset[str], asyncio.TimerHandle] = {}
        self._said_at_seconds = -inf

    def may_go_along(self) -> bool:
        """Whether the next write may carry its hint itself, which saves whoever waits for it a round trip. Only after a
        silence: a transaction that notifies keeps all others that do so waiting until it is on disk."""
        now = self._seams.clock.monotonic_seconds()
        silent, self._said_at_seconds = now - self._said_at_seconds >= ALONG_SECONDS, now
        return silent

    def ring_later(self, queues: Iterable[str], seconds: float) -> None:
        """Wake those who wait for these queues here, once this time is over."""
        names = frozenset(queues)
        if (timer := self._later.pop(names, None)) is not None:
            timer.cancel()
        self._later[names] = asyncio.get_running_loop().call_later(seconds, self._pass_on, names)

    def ring(self, queues: Iterable[str], *, told: bool = False) -> None:
        """Say that these queues got work. Does not wait, and does not fail the caller. Where the others were told along
        with the write, only those of this process are."""
        if told:
            self._pass_on(set(queues))
            return
        self._rung.update(queues)
        self._pass_on(self._rung)
        if self._rung and (self._ringing is None or self._ringing.done()):
            self._ringing = self._seams.spawn.task(self._ring(), name="tenure-bell")

    async def _ring(self) -> None:
        while self._rung:
            queues, self._rung = sorted(self._rung), set()
            try:
                async with self._connections.session() as connection:
                    await connection.execute(NOTIFY, CHANNEL, queues)
            except TenureError as problem:
                log.warning("workers were not told of new jobs and will find them by polling: %s", problem)
            await self._seams.clock.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def listen(self, queues: Sequence[str]) -> AsyncIterator[Subscription]:
        """Hears rings for these queues for as long as the context lasts."""
        listener = _Listener(frozenset(queues))
        self._listeners.add(listener)
        if self._address.listen_dsn is not None and (self._hearing is None or self._hearing.done()):
            self._hearing = self._seams.spawn.task(self._hear(self._address.listen_dsn), name="tenure-listener")
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _hear(self, dsn: str) -> None:
        """One connection of its own that listens; made anew when it is lost, and everyone is woken then."""
        while self._listeners:
            try:
                connection = await asyncpg.connect(dsn)
                try:
                    closed = asyncio.Event()
                    connection.add_termination_listener(lambda _connection, gone=closed: gone.set())
                    await connection.add_listener(CHANNEL, self._heard)
                    self._pass_on(None)
                    await closed.wait()
                finally:
                    connection.terminate()
            except (*LOST, asyncpg.PostgresError) as problem:
                log.warning("cannot listen for new jobs, polling goes on: %s", problem)
                await self._seams.clock.sleep(RETRY_SECONDS)

    def _heard(self, _connection: Any, _pid: int, _channel: str, queue: Any) -> None:
        self._pass_on({str(queue)})

    def _pass_on(self, queues: Set[str] | None) -> None:
        for listener in self._listeners:
            if queues is None or not listener.queues.isdisjoint(queues):
                listener.hint.set()

    async def quiet(self) -> None:
        """Wait until every ring so far has gone out."""
        if self._ringing is not None:
            await asyncio.wait([self._ringing])

    async def close(self) -> None:
        for timer in self._later.values():
            timer.cancel()
        for task in (self._ringing, self._hearing):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=2)


class _Listener:
    def __init__(self, queues: frozenset[str]) -> None:
        self.queues = queues
        self.hint = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.hint.wait()
        except TimeoutError:
            return False
        self.hint.clear()
        return True
