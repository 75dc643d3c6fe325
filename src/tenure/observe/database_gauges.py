"""How full the database is, read when somebody looks; rarely enough that looking costs it little.

To count all jobs the database reads all jobs. So one reading serves everybody until the time that readings may take has
been earned again: at most a twentieth of one connection's time, however many look and however large the tables are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future

import msgspec

from tenure.errors import TenureError
from tenure.observe import metrics
from tenure.observe.metrics import OTHER, QUEUES_MAX
from tenure.seams import Seams
from tenure.stores.contract import ReadStore, Stats, Store
from tenure.views.unserved import alive, unserved

SHARE = 0.05
REST_SECONDS_LEAST = 5.0
READ_SECONDS_MOST = 5.0
CLOSE_SECONDS_MOST = 2.0

log = logging.getLogger("tenure.observe")

OpenStore = Callable[[], Awaitable[Store]]


class Level(msgspec.Struct, frozen=True):
    """The value of one gauge."""

    metric: str
    labels: tuple[str, ...]
    value: float


def levels(stats: Stats) -> list[Level]:
    """What a reading says, as gauges. Queues beyond those with most jobs are shown together."""
    jobs: dict[tuple[str, str], int] = {}
    due: dict[str, int] = {}
    oldest: dict[str, float] = {}
    label = _labels(stats)
    for tally in stats.tallies:
        queue = label[tally.queue]
        jobs[queue, str(tally.status)] = jobs.get((queue, str(tally.status)), 0) + tally.jobs
        due[queue] = due.get(queue, 0) + tally.due
        waited = 0.0 if tally.oldest_due_at is None else (stats.at - tally.oldest_due_at).total_seconds()
        oldest[queue] = max(oldest.get(queue, 0.0), waited)
    return [
        *(Level(metrics.JOBS.name, labels, count) for labels, count in jobs.items()),
        *(Level(metrics.DUE.name, (queue,), count) for queue, count in due.items()),
        *(Level(metrics.OLDEST_DUE.name, (queue,), seconds) for queue, seconds in oldest.items()),
        Level(metrics.OPEN_DEAD_LETTERS.name, (), stats.dead_letters),
        Level(metrics.WORKERS.name, (), len(alive(stats))),
        Level(metrics.UNSERVED.name, (), sum(one.jobs for one in unserved(stats))),
    ]


def _labels(stats: Stats) -> dict[str, str]:
    """The label of each queue. The largest have their own, so that a flood of queues cannot hide where the jobs are."""
    sizes: dict[str, int] = {}
    for tally in stats.tallies:
        sizes[tally.queue] = sizes.get(tally.queue, 0) + tally.jobs
    own = sorted(sizes, key=lambda queue: (-sizes[queue], queue))[:QUEUES_MAX]
    return dict.fromkeys(sizes, OTHER) | {queue: queue for queue in own}


class Depths:
    """Reads the levels for plain code in any thread, on an event loop and with a store of its own."""

    def __init__(self, open_store: OpenStore, seams: Seams) -> None:
        self._open_store, self._seams = open_store, seams
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._ended, self._turn = asyncio.Event(), asyncio.Lock()
        self._closed = False
        self._thread = seams.spawn.thread(lambda: asyncio.run(self._live()), name="tenure-depths")
        self._door = threading.Lock()
        self._store: Store | None = None
        self._rests_until_seconds = float("-inf")
        self._last: list[Level] = []

    def read(self) -> list[Level]:
        """The levels as last read. Where the database does not answer there are none but that one: it is not up."""
        with self._door, contextlib.suppress(CancelledError):
            if not self._closed and self._seams.clock.monotonic_seconds() >= self._rests_until_seconds:
                self._last = asyncio.run_coroutine_threadsafe(self._in_turn(), self._loop.result()).result()
        return self._last

    async def close(self) -> None:
        """Let go of the store, from any other loop. A reading that is under way is not waited for long."""
        self._closed = True
        loop = await asyncio.wrap_future(self._loop)
        with contextlib.suppress(TimeoutError):
            ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
            await asyncio.wait_for(asyncio.wrap_future(ending), CLOSE_SECONDS_MOST)
        loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CLOSE_SECONDS_MOST)

    async def _live(self) -> None:
        """The loop's own life. What is still under way at its end is cancelled."""
        self._loop.set_result(asyncio.get_running_loop())
        await self._ended.wait()

    async def _in_turn(self) -> list[Level]:
        async with self._turn:
            return [] if self._closed else await self._read()

    async def _end(self) -> None:
        async with self._turn:
            await self._let_go()

    async def _read(self) -> list[Level]:
        began_at_seconds = self._seams.clock.monotonic_seconds()
        try:
            async with asyncio.timeout(READ_SECONDS_MOST):
                stats = await (await self._opened()).stats()
            found = [Level(metrics.DATABASE_UP.name, (), 1), *levels(stats)]
        except (TenureError, TimeoutError) as problem:
            log.warning("the database could not be read for metrics: %s", str(problem) or "no answer in time")
            await self._let_go()
            found = [Level(metrics.DATABASE_UP.name, (), 0)]
        ended_at_seconds = self._seams.clock.monotonic_seconds()
        took_seconds = ended_at_seconds - began_at_seconds
        self._rests_until_seconds = ended_at_seconds + max(REST_SECONDS_LEAST, took_seconds * (1 / SHARE - 1))
        return found

    async def _opened(self) -> ReadStore:
        if self._store is None:
            self._store = await self._open_store()
        return self._store

    async def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                await asyncio.wait_for(store.close(), CLOSE_SECONDS_MOST)
            except (TenureError, TimeoutError) as problem:
                log.warning("the store for metrics could not be closed: %s", str(problem) or "no answer in time")
