"""A worker: starts the pool, the runner and the maintenance of one process, and stops them in the opposite order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, StoreUnavailable, TooManyConnections
from tenure.jobs.definition import Isolation, JobDefinition
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.json_text import check_integer, check_name, check_seconds
from tenure.lifecycle.records import Job
from tenure.lifecycle.retention import Retention
from tenure.lifecycle.schedules import Schedule
from tenure.observe.counting_store import count_changes
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.observe.meter import LOST, Meter
from tenure.observe.snapshot import MetricsSnapshot
from tenure.seams import Seams, refuse_use_at_import
from tenure.stores.contract import Store, WorkerRecord
from tenure.workers.checkpointer import Checkpointer
from tenure.workers.commit.user_connection import UserTransactions
from tenure.workers.completer import Completer, Written
from tenure.workers.concurrency import default_concurrency
from tenure.workers.execution.attempt import AttemptServices
from tenure.workers.execution.executors import Executor, TaskExecutor, ThreadExecutor, TimedExecutor
from tenure.workers.execution.process.child import LoadJob
from tenure.workers.execution.process.parent import ProcessExecutor
from tenure.workers.execution.runner import STOP_SECONDS_MAX, Runner
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.loop_monitor import LoopMonitor
from tenure.workers.maintenance.service import Maintenance, OpenStore
from tenure.workers.pool import Slots, WorkerPool
from tenure.workers.reconnect import DatabaseAvailability, StartWait

CLAIM_SECONDS_MAX = 5.0

log = logging.getLogger("tenure.workers")


class WorkerRole(Protocol):
    """A component that runs beside the pool, on the worker's store and under its name."""

    def __call__(
        self, store: Store, name: str, availability: DatabaseAvailability | None = None, /
    ) -> AbstractAsyncContextManager[object]: ...


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker. `grace_seconds` is how long running jobs may continue when it stops."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int | None = None
    """How many jobs run at a time. By default what `default_concurrency` returns for the jobs of the worker."""
    grace_seconds: float = 30.0
    poll_seconds: float = 1.0
    scan_seconds: float = 5.0
    version: str | None = None
    """The version of the program that declares the jobs, for their provenance."""
    name: str | None = None
    """The name that the worker registers under. By default one that is unique."""
    metrics: bool = False
    """Whether to count what `Worker.metrics` returns. Off, it costs nothing."""
    wait_for_database: bool = False
    """Whether to wait for a database that cannot be reached at the start. It always waits for a database that has no
    free connection."""
    in_thread: bool = True
    """Whether maintenance runs in its own thread. Off only in a simulator, which controls time."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidInput("queues", "must name at least one queue")
        for queue in self.queues:
            check_name(queue, "queues")
        if self.concurrency is not None:
            check_integer(self.concurrency, "concurrency", least=1, most=100_000)
        check_seconds(self.grace_seconds, "grace_seconds")
        check_seconds(self.poll_seconds, "poll_seconds", least=0.001)
        check_seconds(self.scan_seconds, "scan_seconds", least=0.001)


class Worker:
    """Runs up to `concurrency` jobs at a time until `stop` is called. `counts` has the number of claims and of attempts
    by their outcome.

    Without `load_job` no job runs in a child process.
    """

    def __init__(
        self,
        *,
        definitions: Mapping[str, JobDefinition[..., Any]],
        open_store: OpenStore,
        seams: Seams,
        options: WorkerOptions,
        middleware: Sequence[Middleware] = (),
        executors: Mapping[Isolation, Executor] | None = None,
        user_transactions: UserTransactions | None = None,
        load_job: LoadJob | None = None,
        schedules: Sequence[Schedule] = (),
        retention: Retention | None = None,
        roles: Sequence[WorkerRole] = (),
    ) -> None:
        if not definitions:
            raise InvalidInput("jobs", "the app declares no jobs, so a worker has nothing to run")
        self.name = options.name or f"{socket.gethostname()[:60]}-{os.getpid()}-{seams.random.name()}"
        self.counts: Counter[str] = Counter()
        self._definitions, self._open_store, self._seams, self._options = definitions, open_store, seams, options
        self._middleware, self._schedules = middleware, schedules
        self._retention = retention or Retention()
        self._user_transactions = user_transactions
        self._roles = tuple(roles)
        self._load_job = load_job
        self._processes: ProcessExecutor | None = None
        self._executors = dict(executors or {})
        self._threads = ThreadExecutor(middleware, seams.spawn)
        self._leases = LeaseRegistry()
        self._availability = DatabaseAvailability(seams)
        self.concurrency = options.concurrency or default_concurrency(definitions.values())
        self._slots = Slots(self.concurrency)
        # A meter is written by one thread, and maintenance has its own thread.
        self._meter: Meter | None = Meter(definitions) if options.metrics else None
        self._maintenance_meter: Meter | None = Meter(definitions) if options.metrics else None
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._started = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it claims from."""
        return self._options.queues

    @property
    def running(self) -> int:
        """How many jobs are running."""
        return self._slots.taken

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def metrics(self) -> MetricsSnapshot:
        """All that this worker has counted so far. Safe to call from any thread."""
        if self._meter is None or self._maintenance_meter is None:
            raise InvalidInput("metrics", "are not counted by this worker; make it with `app.worker(metrics=True)`")
        return self._meter.snapshot() + self._maintenance_meter.snapshot()

    def stop(self) -> None:
        """Claim no more, let running jobs finish within the grace time, release the rest. A second call aborts."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()

    async def started(self) -> None:
        """Wait until all connections are open and the worker claims."""
        await self._started.wait()

    async def run(self, *, start_details: Mapping[str, Any] | None = None) -> None:
        """Work until stopped. Raises the error of a part that failed. The first log line has these details instead of
        the queues alone."""
        refuse_use_at_import()
        self._add_executors()
        async with AsyncExitStack() as stack:
            store = await self._open(stack)
            if store is None:
                return
            self._started.set()
            completer = Completer(store, self._seams, self._availability)
            checkpointer = Checkpointer(store, self._seams, self._availability)
            stack.push_async_callback(completer.close)
            stack.push_async_callback(checkpointer.close)
            for executor in self._executors.values():
                stack.push_async_callback(executor.close)
            stack.push_async_callback(self._close_processes)
            runner = self._make_runner(store, completer, checkpointer)
            stack.callback(runner.close)
            if self._options.in_thread:
                monitor = LoopMonitor(self._seams, runner.job_of)
                monitor.start()
                stack.callback(monitor.stop)
            pool = self._make_pool(store, runner)
            self._log_start(start_details)
            for role in self._roles:
                await stack.enter_async_context(role(store, self.name, self._availability))
            try:
                await self._claim_until_stopped(pool)
                await self._finish_or_release()
            except asyncio.CancelledError:
                self.stop()
                self._abort.set()
                await self._finish_or_release()
                raise
        if self._failure is not None:
            raise self._failure

    def _log_start(self, details: Mapping[str, Any] | None) -> None:
        queues = f", claims jobs from {', '.join(self._options.queues)}" if details is None else ""
        extra = None if details is None else {"details": details}
        log.info("worker %s started, pid %d%s", self.name, os.getpid(), queues, extra=extra)

    async def _open(self, stack: AsyncExitStack) -> Store | None:
        """Open the store and start maintenance, which closes with the stack; None if the worker was stopped first.

        Either all connections are open or none: processes that waited with a part of theirs could block each other.
        """
        waiting = StartWait(self._seams, self._stop)
        while not self._stop.is_set():
            async with AsyncExitStack() as opened:
                try:
                    store = await self._open_store()
                    opened.push_async_callback(store.close)
                    await store.prepare()
                    maintenance = self._make_maintenance()
                    opened.push_async_callback(maintenance.stop)
                    await maintenance.start(in_thread=self._options.in_thread)
                except StoreUnavailable as error:
                    if not (self._options.wait_for_database or isinstance(error, TooManyConnections)):
                        raise
                    problem = error
                else:
                    waiting.over()
                    stack.push_async_exit(opened.pop_all())
                    return store
            await waiting.wait(problem)
        return None

    def _add_executors(self) -> None:
        self._executors.setdefault("task", TaskExecutor(self._middleware))
        self._executors.setdefault("thread", self._threads)
        if self._load_job is not None and any(one.isolation == "process" for one in self._definitions.values()):
            self._processes = ProcessExecutor(self._definitions, self._seams, self._load_job)
            self._executors.setdefault("process", self._processes)

    async def _call_in_process(self, module: str, name: str, text: str, *, job_path: tuple[str, str] | None) -> str:
        """Children are started for the first call, if no job of this worker needs any."""
        if self._processes is None:
            assert self._load_job is not None, "without it there is no such call"
            self._processes = ProcessExecutor({}, self._seams, self._load_job)
        return await self._processes.call(module, name, text, job_path=job_path)

    async def _close_processes(self) -> None:
        if self._processes is not None:
            await self._processes.close()

    def _make_maintenance(self) -> Maintenance:
        loop = asyncio.get_running_loop()

        def fail(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        async def open_store() -> Store:
            store = await self._open_store()
            return store if self._maintenance_meter is None else count_changes(store, self._maintenance_meter)

        return Maintenance(
            open_store,
            self._leases,
            self._seams,
            record=self._record(),
            scan_seconds=self._options.scan_seconds,
            on_failure=fail,
            availability=self._availability,
            schedules=self._schedules,
            retention=self._retention,
        )

    def _make_runner(self, store: Store, completer: Completer, checkpointer: Checkpointer) -> Runner:
        executors: Mapping[Isolation, Executor] = self._executors
        if self._meter is not None:
            clock = self._seams.clock
            executors = {where: TimedExecutor(one, self._meter, clock) for where, one in executors.items()}
        services = AttemptServices(
            store,
            completer,
            checkpointer,
            self._seams,
            call_in_thread=self._threads.call,
            stopping=self._stop.is_set,
            user_transactions=self._user_transactions,
            code_version=self._options.version,
            middleware=self._middleware,
            call_in_process=None if self._load_job is None else self._call_in_process,
        )
        return Runner(
            definitions=self._definitions,
            executors=executors,
            services=services,
            on_end=self._ended,
            on_function_end=self._function_ended,
        )

    def _make_pool(self, store: Store, runner: Runner) -> WorkerPool:
        return WorkerPool(
            store,
            self._seams,
            worker=self.name,
            queues=self._options.queues,
            kinds=sorted(self._definitions),
            slots=self._slots,
            poll_seconds=self._options.poll_seconds,
            lease_seconds_min=min(one.options.policy.lease_seconds for one in self._definitions.values()),
            start=partial(self._take, runner, runner.start),
            release=partial(self._take, runner, runner.release),
            code_version=self._options.version,
            meter=self._meter,
            availability=self._availability,
        )

    async def _claim_until_stopped(self, pool: WorkerPool) -> None:
        claiming = self._seams.spawn.task(pool.run(), name="tenure-pool")
        stopped = self._seams.spawn.task(self._stop.wait(), name="tenure-worker-stops")
        try:
            await asyncio.wait({claiming, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pool.stop()
            self._stop.set()
            # Jobs of a claim that was sent are started, unless the reply takes longer than a stop may.
            await asyncio.wait({claiming}, timeout=CLAIM_SECONDS_MAX)
            claiming.cancel()
            stopped.cancel()
            await asyncio.wait({claiming, stopped}, timeout=1.0)
        if claiming.done() and not claiming.cancelled() and (error := claiming.exception()) is not None:
            self._fail(error)

    def _take(
        self, runner: Runner, run: Callable[[Lease], None], job: Job, token: UUID, began_at_seconds: float
    ) -> None:
        lease = Lease(
            job,
            worker=self.name,
            token=token,
            sent_at_seconds=began_at_seconds,
            received_at_seconds=self._seams.clock.monotonic_seconds(),
            on_interrupt=runner.interrupt,
        )
        self._leases.add(lease)
        self.counts["claimed"] += 1
        try:
            run(lease)
        except Exception:
            log.exception("job %s (%s) not started; recovery takes it over", job.id, job.kind, extra=job_fields(job))
            self._ended(lease, None)

    def _function_ended(self, lease: Lease) -> None:
        lease.function_ended = True
        self._slots.function_ended()

    def _ended(self, lease: Lease, written: Written | None) -> None:
        outcome = LOST if written is None else written.status
        self.counts[outcome] += 1
        if self._meter is not None:
            self._meter.ended(lease.job.kind, outcome)
        self._leases.remove(lease)
        self._slots.release(after_function=lease.function_ended)

    async def _finish_or_release(self) -> None:
        """Wait for running jobs, up to the grace time or an abort. Then release the rest, which is no failure."""
        if not self.running:
            log.info("stopping: no running jobs")
        else:
            grace_seconds = self._options.grace_seconds
            log.info("stopping: waiting up to %g s for %s", grace_seconds, counted(self.running, "running job"))
            aborted = self._seams.spawn.task(self._abort.wait(), name="tenure-abort")
            idle = self._seams.spawn.task(self._slots.idle.wait(), name="tenure-grace")
            await asyncio.wait({aborted, idle}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            aborted.cancel()
            for lease in self._leases.all():
                lease.interrupt(Interruption.STOPPING)
            await asyncio.wait({idle}, timeout=2.0 if self._abort.is_set() else STOP_SECONDS_MAX + 5.0)
            idle.cancel()
        if self.running:
            left = counted(self.running, "unfinished job")
            log.warning("worker %s stopped with %s; recovery takes over", self.name, left)

    def _fail(self, error: BaseException) -> None:
        """Stop, and have `run` raise the error, so that a supervisor can start a new worker."""
        log.error("worker %s failed and stops", self.name, exc_info=error)
        self._failure = self._failure or error
        self._stop.set()

    def _record(self) -> WorkerRecord:
        now = self._seams.clock.now()
        return WorkerRecord(
            id=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._options.version or "unknown",
            queues=self._options.queues,
            kinds=tuple(sorted(self._definitions)),
            concurrency=self.concurrency,
            prunes=self._retention.prunes_jobs,
            started_at=now,
            seen_at=now,
        )
