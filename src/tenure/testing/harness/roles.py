"""A worker's roles without their loops: the harness calls claim, run, renew and scan one at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from tenure.errors import CancelRequested, Snooze
from tenure.jobs.context import Context
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Store, WorkerRecord
from tenure.workers.checkpointer import Checkpointer
from tenure.workers.completer import Completer, Written
from tenure.workers.execution.attempt import AttemptServices, RunningAttempt
from tenure.workers.execution.executors import TaskExecutor, ThreadExecutor
from tenure.workers.execution.outcomes import EndsAttempt, Outcome
from tenure.workers.execution.runner import Runner
from tenure.workers.leases import Lease, LeaseRegistry
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.pool import Slots, WorkerPool


class ErrorRecorder(Middleware):
    """Keeps the exceptions that functions raised. A job's record has only their description."""

    def __init__(self) -> None:
        self._errors: dict[UUID, BaseException] = {}

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await proceed()
        except EndsAttempt as end:
            # A run was suspended, or ended by the recorded failure of a step.
            if end.__cause__ is not None:
                self._errors[ctx.id] = end.__cause__
            raise
        except BaseException as error:
            if not isinstance(error, Snooze | CancelRequested | asyncio.CancelledError):
                self._errors[ctx.id] = error
            raise

    def error_of(self, job_id: UUID) -> BaseException | None:
        return self._errors.pop(job_id, None)


class InProcessExecutor:
    """Replaces the process executor: async functions run in tasks, plain ones in threads."""

    def __init__(self, tasks: TaskExecutor, threads: ThreadExecutor) -> None:
        self._tasks, self._threads = tasks, threads

    async def invoke(self, attempt: RunningAttempt) -> Outcome:
        return await (self._tasks if attempt.definition.is_async else self._threads).invoke(attempt)

    async def close(self) -> None:
        return None


class HarnessRoles:
    """Pool, runner, completer, lease renewer and recovery on one store."""

    def __init__(
        self,
        store: Store,
        seams: Seams,
        *,
        definitions: Mapping[str, JobDefinition[..., Any]],
        middleware: Sequence[Middleware],
        version: str | None,
        stubs: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self._store, self._seams, self._definitions, self._version = store, seams, definitions, version
        self.errors = ErrorRecorder()
        self.leases = LeaseRegistry()
        self._completer, self._checkpointer = Completer(store, seams), Checkpointer(store, seams)
        self._renewer = LeaseRenewer(store, self.leases, seams, worker="harness")
        self._recovery = RecoveryWorker(store, seams, name=f"harness-{seams.random.name()}")
        around = (self.errors, *middleware)
        tasks, self._threads = TaskExecutor(around), ThreadExecutor(around, seams.spawn)
        self._runner = Runner(
            definitions=definitions,
            executors={"task": tasks, "thread": self._threads, "process": InProcessExecutor(tasks, self._threads)},
            services=AttemptServices(
                store,
                self._completer,
                self._checkpointer,
                seams,
                call_in_thread=self._threads.call,
                stopping=lambda: False,
                user_transactions=None,
                code_version=version,
                middleware=middleware,
                stubs=stubs,
            ),
            on_end=self._ended,
        )
        self._slots = Slots(1)
        self._pool: WorkerPool | None = None
        self._pool_serves: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._claimed: list[Lease] = []
        self._ends: dict[Lease, asyncio.Future[Job | None]] = {}

    async def claim(self, queues: Sequence[str]) -> Lease | None:
        """The lease of the next due job; None if no job is due."""
        kinds = sorted(kind for kind, one in self._definitions.items() if not one.options.remote)
        pool = await self._pool_for(tuple(queues), tuple(kinds))
        if pool is None or not await pool.claim():
            return None
        lease = self._claimed.pop()
        self.leases.add(lease)
        # Jobs run one after the other anyway. A job that waits while others run takes no slot from them.
        self._slots.release()
        return lease

    async def run(self, lease: Lease) -> Job | None:
        """Run the attempt to its end. Returns the record that was written, or None if the lease was lost."""
        end: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        self._ends[lease] = end
        try:
            self._runner.start(lease)
            return await end
        finally:
            del self._ends[lease]
            self.leases.remove(lease)

    def _ended(self, lease: Lease, written: Written | None) -> None:
        end = self._ends.get(lease)
        if end is not None and not end.done():
            end.set_result(None if written is None else written.job)

    async def scan(self) -> int:
        """Recover jobs, and interrupt their attempts. Returns how many jobs were changed."""
        changed = await self._recovery.scan()
        if changed:
            await self.refresh()
        return changed

    async def renew(self) -> None:
        """Send the heartbeats that are due, and end attempts that have timed out."""
        await self._renewer.renew()
        overdue = [self._ends[lease] for lease in self._renewer.expire_locally() if lease in self._ends]
        if overdue:
            await asyncio.wait(overdue)

    async def refresh(self) -> None:
        """Read what other clients did to the running jobs, as wake-ups of a real database would trigger it."""
        await self._renewer.refresh()
        await self._renewer.renew()

    async def close(self) -> None:
        await self._checkpointer.close()
        await self._completer.close()
        await self._threads.close()

    async def _pool_for(self, queues: tuple[str, ...], kinds: tuple[str, ...]) -> WorkerPool | None:
        """The pool for these queues and kinds. A new pool has a new name, since its claims are counted from one."""
        if not kinds:
            return None
        if self._pool is None or self._pool_serves != (queues, kinds):
            worker = f"harness-{self._seams.random.name()}"
            await self._store.register(self._record(worker, queues, kinds))
            self._pool_serves = (queues, kinds)
            self._pool = WorkerPool(
                self._store,
                self._seams,
                worker=worker,
                queues=queues,
                kinds=kinds,
                slots=self._slots,
                poll_seconds=1.0,
                start=partial(self._take, worker, self._claimed.append),
                release=partial(self._take, worker, self._runner.release),
                code_version=self._version,
            )
        return self._pool

    def _take(self, worker: str, run: Callable[[Lease], None], job: Job, token: UUID, began_at_seconds: float) -> None:
        on_interrupt = self._runner.interrupt
        run(Lease(job, worker=worker, token=token, sent_at_seconds=began_at_seconds, on_interrupt=on_interrupt))

    def _record(self, worker: str, queues: tuple[str, ...], kinds: tuple[str, ...]) -> WorkerRecord:
        now = self._seams.clock.now()
        return WorkerRecord(
            id=worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version or "unknown",
            queues=queues,
            kinds=kinds,
            concurrency=1,
            started_at=now,
            seen_at=now,
        )
