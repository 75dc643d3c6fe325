"""One worker's roles without the loops that keep them going: they claim, run, beat and scan when they are told to."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tenure.errors import CancelRequested, Snooze
from tenure.jobs.context import Context
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Applied, Repeated, Store, WorkerRecord
from tenure.workers.completer import Completer
from tenure.workers.execution.attempt import AttemptRun, Site
from tenure.workers.execution.executors import TaskExecutor, ThreadExecutor
from tenure.workers.execution.outcomes import Outcome
from tenure.workers.execution.runner import Runner
from tenure.workers.leases import Lease, LeaseRegistry
from tenure.workers.maintenance.heartbeat import LeaseRenewer
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.pool import WorkerPool


class Witness(Middleware):
    """Keeps the errors that functions raised as they were, since a job's record has only their description."""

    def __init__(self) -> None:
        self._errors: dict[UUID, BaseException] = {}

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await proceed()
        except BaseException as error:
            if not isinstance(error, Snooze | CancelRequested | asyncio.CancelledError):
                self._errors[ctx.id] = error
            raise

    def error_of(self, job_id: UUID) -> BaseException | None:
        return self._errors.pop(job_id, None)


class SameProcess:
    """Stands in for a process of its own: async functions become tasks, plain ones run in threads."""

    def __init__(self, tasks: TaskExecutor, threads: ThreadExecutor) -> None:
        self._tasks, self._threads = tasks, threads

    async def outcome(self, run: AttemptRun) -> Outcome:
        return await (self._tasks if run.kind.is_async else self._threads).outcome(run)

    async def close(self) -> None:
        return None


class HarnessRoles:
    """Pool, runner, settler, heart and recovery on one store."""

    def __init__(
        self,
        store: Store,
        seams: Seams,
        *,
        kinds: Mapping[str, JobDefinition[..., Any]],
        layers: Sequence[Middleware],
        version: str,
    ) -> None:
        self._store, self._seams, self._kinds, self._version = store, seams, kinds, version
        self.witness = Witness()
        self.held = LeaseRegistry()
        self._settler = Completer(store, seams)
        self._heart = LeaseRenewer(store, self.held, seams, worker="bench")
        self._recovery = RecoveryWorker(store, seams, name=f"bench-{seams.random.name()}")
        around = (self.witness, *layers)
        tasks, self._threads = TaskExecutor(around), ThreadExecutor(around, seams.spawn)
        self._runner = Runner(
            kinds=kinds,
            isolations={"task": tasks, "thread": self._threads, "process": SameProcess(tasks, self._threads)},
            site=Site(store, self._settler, seams, stopping=lambda: False, user_transactions=None),
        )
        self._pool: WorkerPool | None = None
        self._serves: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._won: list[Lease] = []

    async def claim(self, queues: Sequence[str]) -> Lease | None:
        """The next job that is due, under a lease of ours; None where there is none."""
        pool = await self._pool_for(tuple(queues), tuple(sorted(self._kinds)))
        if pool is None or not await pool.claim():
            return None
        held = self._won.pop()
        self.held.take(held)
        # Jobs run one after the other anyway, so a job that has others run while it waits takes no place from them.
        pool.freed()
        return held

    async def run(self, held: Lease) -> Job | None:
        """See the job to its end. The record as it was left, or None where its lease was lost."""
        over: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()

        def ended(_held: Lease, written: Applied | Repeated | None) -> None:
            if not over.done():
                over.set_result(None if written is None else written.job)

        try:
            self._runner.begin(held, ended)
            return await over
        finally:
            self.held.let_go(held)

    async def scan(self) -> int:
        """Take back what was lost; how many jobs were changed. Whoever runs one of them is told."""
        changed = await self._recovery.scan()
        if changed:
            await self.hear()
        return changed

    async def beat(self) -> None:
        """Send the heartbeats that are due."""
        await self._heart.beat()

    async def hear(self) -> None:
        """Learn what others did to the jobs that run, as the hints of a real database would have us do."""
        await self._heart.look()
        await self._heart.beat()

    async def close(self) -> None:
        await self._settler.close()
        await self._threads.close()

    async def _pool_for(self, queues: tuple[str, ...], kinds: tuple[str, ...]) -> WorkerPool | None:
        """The pool for these. A new one has a name of its own, since its claims are counted from one again."""
        if not kinds:
            return None
        if self._pool is None or self._serves != (queues, kinds):
            worker = f"bench-{self._seams.random.name()}"
            await self._store.register(self._record(worker, queues, kinds))
            self._serves = (queues, kinds)
            self._pool = WorkerPool(
                self._store,
                self._seams,
                worker=worker,
                queues=queues,
                kinds=kinds,
                concurrency=1,
                poll_seconds=1.0,
                begin=lambda job, token, at: self._won.append(
                    Lease(job, worker=worker, token=token, sent_at_seconds=at)
                ),
            )
        return self._pool

    def _record(self, worker: str, queues: tuple[str, ...], kinds: tuple[str, ...]) -> WorkerRecord:
        now = self._seams.clock.now()
        return WorkerRecord(
            id=worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            queues=queues,
            kinds=kinds,
            concurrency=1,
            started_at=now,
            seen_at=now,
        )
