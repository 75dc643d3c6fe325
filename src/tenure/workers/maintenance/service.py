"""The maintenance of a worker: lease renewal, recovery, schedules, retention and registration, whatever the jobs do.

All of it runs on one event loop with a store of its own, in a thread beside the jobs. A function that blocks the jobs'
event loop therefore loses no leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tenure.errors import TenureError
from tenure.lifecycle.retention import Retention
from tenure.lifecycle.schedules import Schedule
from tenure.seams import Seams
from tenure.stores.contract import RegistrationStore, Store, WorkerRecord
from tenure.workers.leases import LeaseRegistry
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.maintenance.retention import RetentionWorker
from tenure.workers.maintenance.scheduler import Scheduler
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

REGISTER_SECONDS = 10.0
SCANS_PER_PASS = 12
"""How many recovery scans there are to one pass of retention."""
UNREGISTER_SECONDS_MAX = 2.0
CANCEL_TRIES = 3
STOP_SECONDS_MAX = 15.0

log = logging.getLogger("tenure.workers")

OpenStore = Callable[[], Awaitable[Store]]


class Maintenance:
    """Runs the maintenance of one worker. `on_failure` is called, in its thread, if a part of it fails."""

    def __init__(
        self,
        open_store: OpenStore,
        leases: LeaseRegistry,
        seams: Seams,
        *,
        record: WorkerRecord,
        scan_seconds: float,
        on_failure: Callable[[BaseException], None],
        schedules: Sequence[Schedule] = (),
        retention: Retention | None = None,
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._open_store, self._leases, self._seams = open_store, leases, seams
        self._record, self._scan_seconds, self._on_failure = record, scan_seconds, on_failure
        self._schedules, self._retention = schedules, retention or Retention()
        self._availability = availability or DatabaseAvailability(seams)
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    async def start(self, *, in_thread: bool) -> None:
        """Return once its store is open and leases are renewed. Raises the error of a store that cannot be opened."""
        if in_thread:
            self._seams.spawn.thread(lambda: asyncio.run(self._run()), name="tenure-maintenance")
        else:
            self._task = self._seams.spawn.task(self._run(), name="tenure-maintenance")
        await asyncio.wrap_future(self._ready)

    async def stop(self) -> None:
        """Stop everything and unregister the worker."""
        if self._loop is not None and self._stopping is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:
                return
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._ended), STOP_SECONDS_MAX)
        except TimeoutError:
            log.warning("maintenance thread did not stop within %.0f s; abandoning it", STOP_SECONDS_MAX)

    async def _run(self) -> None:
        try:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            await self._run_until(self._stopping)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                self._on_failure(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._ended.set_result(None)

    async def _run_until(self, stopping: asyncio.Event) -> None:
        store = await self._open_store()
        try:
            tasks = self._start_tasks(store)
            self._ready.set_result(None)
            stopped = self._seams.spawn.task(stopping.wait(), name="tenure-stop")
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel({*tasks, stopped})
            await self._unregister(store)
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        finally:
            await store.close()

    def _start_tasks(self, store: Store) -> set[asyncio.Task[None]]:
        name, seams, shared = self._record.id, self._seams, self._availability
        renewer = LeaseRenewer(store, self._leases, seams, worker=name, availability=shared)
        recovery = RecoveryWorker(store, seams, name=name, availability=shared)
        scheduler = Scheduler(store, seams, name=name, declared=self._schedules, availability=shared)
        retention = RetentionWorker(store, seams, retention=self._retention, availability=shared)
        spawn = self._seams.spawn.task
        return {
            spawn(renewer.run(), name="tenure-renewer"),
            spawn(renewer.check_deadlines(), name="tenure-lease-deadlines"),
            spawn(renewer.watch_changes(), name="tenure-lease-changes"),
            spawn(recovery.run(scan_seconds=self._scan_seconds), name="tenure-recovery"),
            spawn(scheduler.run(scan_seconds=self._scan_seconds), name="tenure-scheduler"),
            spawn(retention.run(pass_seconds=SCANS_PER_PASS * self._scan_seconds), name="tenure-retention"),
            spawn(self._register(store), name="tenure-registration"),
        }

    async def _register(self, store: RegistrationStore) -> None:
        backoff = ReconnectBackoff(self._seams, self._availability)
        while True:
            try:
                await store.register(self._record)
                backoff.reset()
                pause = REGISTER_SECONDS
            except TenureError as error:
                pause = backoff.failed("worker registration", error)
            await self._seams.clock.sleep(pause)

    async def _unregister(self, store: RegistrationStore) -> None:
        try:
            await asyncio.wait_for(store.unregister(self._record.id), UNREGISTER_SECONDS_MAX)
        except (TenureError, TimeoutError) as error:
            log.warning("worker unregistration failed: %s", str(error) or "no reply in time")


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, for a bounded time: a task may miss its cancellation, or wait for a dead connection."""
    left = tasks
    for _ in range(CANCEL_TRIES):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
        if not left:
            return
