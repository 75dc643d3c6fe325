"""A worker: one process's pool, runner and caretaker, brought up and taken down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.jobs.definition import Isolation, JobDefinition
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.json_text import check_integer, check_name, check_seconds
from tenure.lifecycle.records import Job
from tenure.lifecycle.schedules import Schedule
from tenure.observe.counting_store import count_changes
from tenure.observe.meter import LOST, Meter
from tenure.observe.snapshot import MetricsSnapshot
from tenure.seams import Seams
from tenure.stores.contract import Applied, Repeated, Store, WorkerRecord
from tenure.workers.commit.user_connection import UserTransactions
from tenure.workers.completer import Completer
from tenure.workers.execution.attempt import Site
from tenure.workers.execution.executors import Executor, TaskExecutor, ThreadExecutor
from tenure.workers.execution.process.parent import ProcessExecutor
from tenure.workers.execution.runner import TIDY_SECONDS, Runner
from tenure.workers.execution.timed import Timed
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.maintenance.service import Maintenance, OpenStore
from tenure.workers.pool import WorkerPool

CLAIM_SECONDS_MAX = 5.0

log = logging.getLogger("tenure.workers")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. `grace_seconds` is what running jobs are given when it stops."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 10
    grace_seconds: float = 30.0
    poll_seconds: float = 1.0
    scan_seconds: float = 5.0
    version: str = "unknown"
    """The version of the program whose jobs are run, for their provenance."""
    name: str | None = None
    """Under which the worker is written down; one that nobody else has, unless it is given."""
    metrics: bool = False
    """Whether to count what `Worker.metrics` shows. Off, nothing is paid for it."""
    in_thread: bool = True
    """Whether the caretaker has a thread of its own. Off only where a simulator brings its own time."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidInput("queues", "must name at least one queue")
        for queue in self.queues:
            check_name(queue, "queues")
        check_integer(self.concurrency, "concurrency", least=1, most=100_000)
        check_seconds(self.grace_seconds, "grace_seconds")
        check_seconds(self.poll_seconds, "poll_seconds", least=0.001)
        check_seconds(self.scan_seconds, "scan_seconds", least=0.001)


class Worker:
    """Runs jobs until it is told to stop. `counts` says how many came to which end."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, JobDefinition[..., Any]],
        open_store: OpenStore,
        seams: Seams,
        options: WorkerOptions,
        layers: Sequence[Middleware] = (),
        isolations: Mapping[Isolation, Executor] | None = None,
        user_transactions: UserTransactions | None = None,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        if not kinds:
            raise InvalidInput("kinds", "the app declares no jobs, so there is nothing that a worker could run")
        self.name = options.name or f"{socket.gethostname()[:60]}-{os.getpid()}-{seams.random.name()}"
        self.counts: Counter[str] = Counter()
        self._kinds, self._open_store, self._seams, self._options = kinds, open_store, seams, options
        self._layers, self._user_transactions, self._schedules = layers, user_transactions, schedules
        self._isolations = dict(isolations or {})
        self._held = LeaseRegistry()
        # The caretaker has a thread of its own, and so a meter of its own.
        self._meter: Meter | None = Meter(kinds) if options.metrics else None
        self._caretakers_meter: Meter | None = Meter(kinds) if options.metrics else None
        self.running = 0
        """How many jobs are under way."""
        self._idle = asyncio.Event()
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def metrics(self) -> MetricsSnapshot:
        """All that this worker has counted so far. Safe to call from any thread."""
        if self._meter is None or self._caretakers_meter is None:
            raise InvalidInput("metrics", "are not counted by this worker; make it with `app.worker(metrics=True)`")
        return self._meter.snapshot() + self._caretakers_meter.snapshot()

    def stop(self) -> None:
        """Claim no more, finish what runs within the grace time, hand the rest back. A second call aborts."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped. What was brought up is taken down in the opposite order, however it ends."""
        self._bring_isolations()
        async with AsyncExitStack() as stack:
            store = await self._open_store()
            stack.push_async_callback(store.close)
            await store.prepare()
            caretaker = self._caretaker()
            await caretaker.start(in_thread=self._options.in_thread)
            stack.push_async_callback(caretaker.stop)
            settler = Completer(store, self._seams)
            stack.push_async_callback(settler.close)
            for isolation in self._isolations.values():
                stack.push_async_callback(isolation.close)
            self._assemble(store, settler)
            log.info("worker %s takes jobs of %s", self.name, ", ".join(self._options.queues))
            try:
                await self._until_stopped()
                await self._hand_back()
            except asyncio.CancelledError:
                # Whoever runs us wants us gone now: hand back what can be handed back, and obey.
                self.stop()
                self._abort.set()
                await self._hand_back()
                raise
        if self._failure is not None:
            raise self._failure

    def _bring_isolations(self) -> None:
        self._isolations.setdefault("task", TaskExecutor(self._layers))
        self._isolations.setdefault("thread", ThreadExecutor(self._layers, self._seams.spawn))
        if self._options.in_thread:
            # A simulator has no processes, and a job that was lost there is run like any other.
            self._isolations.setdefault("process", ProcessExecutor(self._kinds, self._seams))

    def _caretaker(self) -> Maintenance:
        loop = asyncio.get_running_loop()

        def fail(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        async def open_store() -> Store:
            store = await self._open_store()
            return store if self._caretakers_meter is None else count_changes(store, self._caretakers_meter)

        return Maintenance(
            open_store,
            self._held,
            self._seams,
            record=self._record(),
            scan_seconds=self._options.scan_seconds,
            failed=fail,
            schedules=self._schedules,
        )

    def _assemble(self, store: Store, settler: Completer) -> None:
        site = Site(store, settler, self._seams, stopping=self._stop.is_set, user_transactions=self._user_transactions)
        isolations = self._isolations
        if self._meter is not None:
            isolations = {place: Timed(one, self._meter, self._seams.clock) for place, one in isolations.items()}
        self._runner = Runner(kinds=self._kinds, isolations=isolations, site=site)
        self._pool = WorkerPool(
            store,
            self._seams,
            worker=self.name,
            queues=self._options.queues,
            kinds=sorted(self._kinds),
            concurrency=self._options.concurrency,
            poll_seconds=self._options.poll_seconds,
            begin=self._begin,
            meter=self._meter,
        )

    async def _until_stopped(self) -> None:
        working = self._seams.spawn.task(self._pool.work(), name="tenure-pool")
        stopped = self._seams.spawn.task(self._stop.wait(), name="tenure-worker-stops")
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pool.stop()
            self._stop.set()
            # A claim that is under way is waited for, but not longer than a stop may take.
            await asyncio.wait({working}, timeout=CLAIM_SECONDS_MAX)
            working.cancel()
            stopped.cancel()
            await asyncio.wait({working, stopped}, timeout=1.0)
        if working.done() and not working.cancelled() and (error := working.exception()) is not None:
            self._fail(error)

    def _begin(self, job: Job, token: UUID, sent_at_seconds: float) -> None:
        held = Lease(job, worker=self.name, token=token, sent_at_seconds=sent_at_seconds)
        self._held.take(held)
        self.counts["claimed"] += 1
        self.running += 1
        self._idle.clear()
        try:
            self._runner.begin(held, self._ended)
        except Exception as error:
            log.exception("job %s could not be started; recovery will take it", job.id, exc_info=error)
            self._ended(held, None)

    def _ended(self, held: Lease, written: Applied | Repeated | None) -> None:
        outcome = LOST if written is None else written.status
        self.counts[outcome] += 1
        if self._meter is not None:
            self._meter.ended(held.job.kind, outcome)
        self._held.let_go(held)
        self.running -= 1
        if not self.running:
            self._idle.set()
        self._pool.freed()

    async def _hand_back(self) -> None:
        """Wait for what runs, up to the grace time or an abort; then release the rest without counting a failure."""
        if self.running:
            log.info(
                "worker %s stops; %d jobs run and may take %s s", self.name, self.running, self._options.grace_seconds
            )
            aborted = self._seams.spawn.task(self._abort.wait(), name="tenure-abort")
            ending = self._seams.spawn.task(self._idle.wait(), name="tenure-grace")
            await asyncio.wait(
                {aborted, ending}, timeout=self._options.grace_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            aborted.cancel()
            for held in self._held.all():
                held.interrupt(Interruption.STOPPING)
            await asyncio.wait({ending}, timeout=2.0 if self._abort.is_set() else TIDY_SECONDS + 5.0)
            ending.cancel()
        if self.running:
            log.warning("worker %s leaves %d jobs to recovery", self.name, self.running)

    def _fail(self, error: BaseException) -> None:
        """Something that should never end has ended: stop, and let whoever supervises this process begin anew."""
        log.error("worker %s stops because of a failure", self.name, exc_info=error)
        self._failure = self._failure or error
        self._stop.set()

    def _record(self) -> WorkerRecord:
        now = self._seams.clock.now()
        return WorkerRecord(
            id=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._options.version,
            queues=self._options.queues,
            kinds=tuple(sorted(self._kinds)),
            concurrency=self._options.concurrency,
            started_at=now,
            seen_at=now,
        )
