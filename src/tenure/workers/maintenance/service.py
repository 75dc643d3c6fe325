"""What must go on however busy the jobs are: heartbeats, recovery, schedules, and saying that this worker is there.

It all runs on one event loop with a store of its own: in a thread beside the jobs, so that a job that keeps its loop
busy loses neither its own lease nor anybody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

from tenure.errors import TenureError
from tenure.lifecycle.schedules import Schedule
from tenure.seams import Seams
from tenure.stores.contract import RegistrationStore, Store, WorkerRecord
from tenure.workers.leases import LeaseRegistry
from tenure.workers.maintenance.heartbeat import LeaseRenewer
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.maintenance.scheduler import Scheduler

SEEN_SECONDS = 10.0
CANCEL_TRIES = 3
STOP_SECONDS_MAX = 15.0

log = logging.getLogger("tenure.workers")

OpenStore = Callable[[], Awaitable[Store]]


class Maintenance:
    """Heart, recovery, scheduler and registration of one worker process."""

    def __init__(
        self,
        open_store: OpenStore,
        held: LeaseRegistry,
        seams: Seams,
        *,
        record: WorkerRecord,
        scan_seconds: float,
        failed: Callable[[BaseException], None],
        schedules: Sequence[Schedule] = (),
    ) -> None:
        self._open_store, self._held, self._seams = open_store, held, seams
        self._record, self._scan_seconds, self._failed = record, scan_seconds, failed
        self._schedules = schedules
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    async def start(self, *, in_thread: bool) -> None:
        """Begin, and return once the heart beats."""
        if in_thread:
            self._seams.spawn.thread(lambda: asyncio.run(self._live()), name="tenure-caretaker")
        else:
            self._task = self._seams.spawn.task(self._live(), name="tenure-caretaker")
        await asyncio.wrap_future(self._ready)

    async def stop(self) -> None:
        """End it all, and say that this worker has stopped."""
        if self._loop is not None and self._stopping is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:
                return
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._ended), STOP_SECONDS_MAX)
        except TimeoutError:
            log.warning("the caretaker of worker %s does not end; it is left behind", self._record.id)

    async def _live(self) -> None:
        try:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            await self._care(self._stopping)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                self._failed(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._ended.set_result(None)

    async def _care(self, stopping: asyncio.Event) -> None:
        store = await self._open_store()
        try:
            heart = LeaseRenewer(store, self._held, self._seams, worker=self._record.id)
            recovery = RecoveryWorker(store, self._seams, name=self._record.id)
            scheduler = Scheduler(store, self._seams, name=self._record.id, declared=self._schedules)
            spawn = self._seams.spawn.task
            cares = {
                spawn(heart.live(), name="tenure-heart"),
                spawn(heart.watch(), name="tenure-watch"),
                spawn(heart.listen(), name="tenure-listener"),
                spawn(recovery.live(scan_seconds=self._scan_seconds), name="tenure-recovery"),
                spawn(scheduler.live(scan_seconds=self._scan_seconds), name="tenure-scheduler"),
                spawn(self._be_seen(store), name="tenure-registration"),
            }
            self._ready.set_result(None)
            end = spawn(stopping.wait(), name="tenure-stop")
            await asyncio.wait({*cares, end}, return_when=asyncio.FIRST_COMPLETED)
            await _cancelled({*cares, end})
            await self._say_goodbye(store)
            for care in cares:
                if care.done() and not care.cancelled() and (error := care.exception()) is not None:
                    raise error
        finally:
            await store.close()

    async def _be_seen(self, store: RegistrationStore) -> None:
        while True:
            try:
                await store.register(self._record)
            except TenureError as problem:
                log.warning("this worker could not say that it is there: %s", problem)
            await self._seams.clock.sleep(SEEN_SECONDS)

    async def _say_goodbye(self, store: RegistrationStore) -> None:
        try:
            await asyncio.wait_for(store.unregister(self._record.id), 2.0)
        except (TenureError, TimeoutError) as problem:
            log.warning("this worker could not say that it stops: %s", problem)


async def _cancelled(tasks: set[asyncio.Task[None] | asyncio.Task[bool]]) -> None:
    """End them all, but do not wait for ever: a task may miss that it was cancelled, or wait for a dead connection."""
    left = tasks
    for _ in range(CANCEL_TRIES):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
        if not left:
            return
