"""Gauges of the database's contents, read on a scrape, and rarely enough to cost the database little.

Counting all jobs reads all jobs. One reading therefore serves all scrapes until readings have taken at most a twentieth
of the elapsed time, on one connection, whatever the number of scrapes and the size of the tables.
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
from tenure.observe.metrics import ENDPOINTS_MAX, OTHER, QUEUES_MAX
from tenure.seams import Seams
from tenure.stores.contract import Stats, Store
from tenure.stores.contract.outbox import OutboxDepth
from tenure.views.workers import live_workers, unserved_kinds, unserved_pins

READ_TIME_SHARE_MAX = 0.05
READ_INTERVAL_SECONDS_MIN = 5.0
READ_TIMEOUT_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 2.0

log = logging.getLogger("tenure.observe")

OpenStore = Callable[[], Awaitable[Store]]


class GaugeValue(msgspec.Struct, frozen=True):
    """The value of one gauge."""

    metric: str
    labels: tuple[str, ...]
    value: float


def gauges(stats: Stats) -> list[GaugeValue]:
    """The gauges of one reading. Only the queues with the most jobs have their own label."""
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
        *(GaugeValue(metrics.JOBS.name, labels, count) for labels, count in jobs.items()),
        *(GaugeValue(metrics.DUE.name, (queue,), count) for queue, count in due.items()),
        *(GaugeValue(metrics.OLDEST_DUE.name, (queue,), seconds) for queue, seconds in oldest.items()),
        GaugeValue(metrics.OPEN_DEAD_LETTERS.name, (), stats.dead_letters),
        GaugeValue(metrics.WORKERS.name, (), len(live_workers(stats))),
        GaugeValue(metrics.UNSERVED.name, (), sum(one.jobs for one in unserved_kinds(stats))),
        GaugeValue(metrics.PINNED_UNSERVED.name, (), sum(one.jobs for one in unserved_pins(stats))),
    ]


def outbox_gauges(depth: OutboxDepth) -> list[GaugeValue]:
    """The gauges of the outbox. Only the endpoints with the most pending messages have their own label."""
    largest = sorted(depth.endpoints, key=lambda one: (-one.messages, one.endpoint))
    pending: dict[str, int] = {}
    lag: dict[str, float] = {}
    dead: dict[str, int] = {}
    for number, one in enumerate(largest):
        label = one.endpoint if number < ENDPOINTS_MAX else OTHER
        seconds = 0.0 if one.oldest_at is None else max(0.0, (depth.at - one.oldest_at).total_seconds())
        pending[label] = pending.get(label, 0) + one.messages
        lag[label] = max(lag.get(label, 0.0), seconds)
        dead[label] = dead.get(label, 0) + one.dead
    return [
        *(GaugeValue(metrics.OUTBOX_PENDING.name, (label,), count) for label, count in pending.items()),
        *(GaugeValue(metrics.OUTBOX_LAG.name, (label,), seconds) for label, seconds in lag.items()),
        *(GaugeValue(metrics.OUTBOX_DEAD_LETTERS.name, (label,), count) for label, count in dead.items()),
        GaugeValue(metrics.OUTBOX_UNSERVED.name, (), depth.unserved),
    ]


def _labels(stats: Stats) -> dict[str, str]:
    """The label of each queue. The largest keep theirs, so that many small queues cannot hide them."""
    sizes: dict[str, int] = {}
    for tally in stats.tallies:
        sizes[tally.queue] = sizes.get(tally.queue, 0) + tally.jobs
    largest = sorted(sizes, key=lambda queue: (-sizes[queue], queue))[:QUEUES_MAX]
    return dict.fromkeys(sizes, OTHER) | {queue: queue for queue in largest}


class DatabaseGauges:
    """Reads the gauges for any thread, with its own event loop and its own store."""

    def __init__(self, open_store: OpenStore, seams: Seams) -> None:
        self._open_store, self._seams = open_store, seams
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._ended, self._store_lock = asyncio.Event(), asyncio.Lock()
        self._closed = False
        self._thread = seams.spawn.thread(lambda: asyncio.run(self._run_loop()), name="tenure-gauges")
        self._read_lock = threading.Lock()
        self._store: Store | None = None
        self._next_read_at_seconds = float("-inf")
        self._last: list[GaugeValue] = []

    def read(self) -> list[GaugeValue]:
        """The gauges of the last reading, or of a new one when it is due. Without a database: `database_up` is 0."""
        with self._read_lock, contextlib.suppress(CancelledError):
            if not self._closed and self._seams.clock.monotonic_seconds() >= self._next_read_at_seconds:
                self._last = asyncio.run_coroutine_threadsafe(self._read_unless_closed(), self._loop.result()).result()
        return self._last

    async def close(self) -> None:
        """Close the store, from any other event loop. A running reading is waited for only briefly."""
        self._closed = True
        loop = await asyncio.wrap_future(self._loop)
        with contextlib.suppress(TimeoutError):
            closing = asyncio.run_coroutine_threadsafe(self._close_store_when_idle(), loop)
            await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_TIMEOUT_SECONDS)
        loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    async def _run_loop(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._ended.wait()

    async def _read_unless_closed(self) -> list[GaugeValue]:
        async with self._store_lock:
            return [] if self._closed else await self._read()

    async def _close_store_when_idle(self) -> None:
        async with self._store_lock:
            await self._close_store()

    async def _read(self) -> list[GaugeValue]:
        began_at_seconds = self._seams.clock.monotonic_seconds()
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                store = await self._opened_store()
                stats, depth = await store.stats(), await store.outbox.depth()
            found = [GaugeValue(metrics.DATABASE_UP.name, (), 1), *gauges(stats), *outbox_gauges(depth)]
        except (TenureError, TimeoutError) as error:
            log.warning("reading database metrics failed: %s", str(error) or "timeout")
            await self._close_store()
            found = [GaugeValue(metrics.DATABASE_UP.name, (), 0)]
        ended_at_seconds = self._seams.clock.monotonic_seconds()
        rest_seconds = (ended_at_seconds - began_at_seconds) * (1 / READ_TIME_SHARE_MAX - 1)
        self._next_read_at_seconds = ended_at_seconds + max(READ_INTERVAL_SECONDS_MIN, rest_seconds)
        return found

    async def _opened_store(self) -> Store:
        if self._store is None:
            self._store = await self._open_store()
        return self._store

    async def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                await asyncio.wait_for(store.close(), CLOSE_TIMEOUT_SECONDS)
            except (TenureError, TimeoutError) as error:
                log.warning("closing the metrics store failed: %s", str(error) or "timeout")
