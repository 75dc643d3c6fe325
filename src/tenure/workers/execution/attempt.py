"""One attempt of a job: what its function may do through `Context`, and whether it was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from tenure.errors import InvalidInput, Refused, StoreError
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware
from tenure.lifecycle.operations import Operation, Progress
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import (
    ApplyStore,
    Artifact,
    BudgetStore,
    EnqueueStore,
    SignalRecord,
    StepStore,
    TransactionStore,
)
from tenure.stores.contract.archive import HistoryReader
from tenure.stores.user_connections import UserTransaction
from tenure.workers.checkpointer import Checkpointer
from tenure.workers.commit.commit import CommitBlock, Committer
from tenure.workers.commit.user_connection import UserTransactions, commit_block_for
from tenure.workers.completer import Completer
from tenure.workers.execution.job_steps import JobSteps
from tenure.workers.leases import Interruption, Lease

CallInThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in a thread, and returns its result."""


class CallInProcess(Protocol):
    """Awaits an async function of the program in a child process; it takes a text and returns one."""

    def __call__(self, module: str, name: str, text: str, *, job_path: tuple[str, str] | None) -> Awaitable[str]: ...


class RunnerStore(TransactionStore, HistoryReader, Protocol):
    """The part of a store that the runner uses besides the completer."""


class RunStore(TransactionStore, EnqueueStore, ApplyStore, StepStore, BudgetStore, Protocol):
    """The part of a store that runs of workflows use: steps, transactions, and children, which they enqueue, read
    and cancel. They read their own signals."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...

    async def signals(self, job_id: UUID) -> list[SignalRecord]: ...


class AttemptStore(RunnerStore, RunStore, Protocol):
    """What all attempts of a worker need: plain jobs and runs."""


class AttemptServices:
    """What all attempts of a worker share. Made on the event loop that they run on."""

    __slots__ = (
        "call_in_process", "call_in_thread", "checkpointer", "code_version", "completer", "loop", "middleware",
        "run_store", "seams", "stopping", "store", "stubs", "user_transactions",
    )  # fmt: skip

    def __init__(
        self,
        store: AttemptStore,
        completer: Completer,
        checkpointer: Checkpointer,
        seams: Seams,
        *,
        call_in_thread: CallInThread,
        stopping: Callable[[], bool],
        user_transactions: UserTransactions | None,
        code_version: str | None = None,
        middleware: Sequence[Middleware] = (),
        call_in_process: CallInProcess | None = None,
        stubs: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> None:
        self.stubs = stubs or {}
        """In a test: what is called instead of the functions of steps."""
        self.middleware = middleware
        self.call_in_process = call_in_process
        """None: there are no child processes, and the function is awaited in this one."""
        self.store: RunnerStore = store
        self.run_store: RunStore = store
        self.completer, self.seams, self.stopping = completer, seams, stopping
        self.checkpointer, self.call_in_thread, self.code_version = checkpointer, call_in_thread, code_version
        self.user_transactions = user_transactions
        self.loop = asyncio.get_running_loop()

    def stub_of(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """What a test has put in place of this function."""
        return self.stubs.get(function) if self.stubs else None

    async def transaction_store(self) -> TransactionStore:
        return self.store


class RunningAttempt:
    """The attempt of a job under a lease of this process. The methods for `Context` may be called from any thread."""

    __slots__ = (
        "_committer", "_job_steps", "_progress", "_progress_task", "abandoned", "definition", "interruption", "lease",
        "on_cancel_request", "recording", "services", "task", "timer", "unfinished_writes",
    )  # fmt: skip

    def __init__(self, lease: Lease, definition: JobDefinition[..., Any], services: AttemptServices) -> None:
        self.lease, self.definition, self.services = lease, definition, services
        self.task: asyncio.Task[Any] | None = None
        """The task that the function runs in, while it runs."""
        self.interruption: Interruption | None = Interruption.LOST if lease.lost else None
        self.timer: asyncio.TimerHandle | None = None
        self.on_cancel_request: Callable[[], None] | None = None
        """Called on the event loop when a cancel is requested. Without it the function reacts by itself."""
        self.unfinished_writes: set[asyncio.Task[Any]] = set()
        """Transactions that end before the outcome is recorded."""
        self.abandoned = False
        """The function did not stop in time. Its outcome is ignored."""
        self.recording: asyncio.Task[None] | None = None
        """Kept here, since an event loop refers to its tasks only weakly."""
        self._committer: Committer | None = None
        self._job_steps: JobSteps | None = None
        self._progress: Progress | None = None
        self._progress_task: asyncio.Task[None] | None = None

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def is_async(self) -> bool:
        return self.definition.is_async

    @property
    def lost(self) -> bool:
        """A timed-out attempt counts as lost: whatever its function still does is not recorded."""
        return self.lease.lost or self.interruption is Interruption.OVERDUE

    @property
    def stopping(self) -> bool:
        return self.services.stopping()

    @property
    def database(self) -> str:
        return self.services.store.where

    @property
    def committer(self) -> Committer:
        if self._committer is None:
            self._committer = Committer(self.lease, self.services.seams, self.services.transaction_store)
        return self._committer

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """The artifacts that were attached and not yet committed."""
        return () if self._committer is None else self._committer.artifacts

    def raised_in_commit(self, error: BaseException) -> bool:
        return self._committer is not None and self._committer.raised(error)

    @property
    def steps(self) -> JobSteps:
        """The steps of a plain job."""
        if self.definition.invoker is not None:
            raise InvalidInput("step", "is called by its run in a workflow: run.step(…)")
        if self._job_steps is None:
            self._job_steps = JobSteps(self)
        return self._job_steps

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def drop_artifacts(self) -> None:
        """Artifacts of an attempt that does not complete its job are not kept; neither is its continuation."""
        if self._committer is not None:
            self._committer.artifacts, self._committer.continuation = [], None

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return commit_block_for(
            self.committer,
            self.definition.encode_committed(result, job_id=self.job.id),
            user=None if connection is None else self._user_transaction(connection),
            deadline_seconds=deadline_seconds,
            loop=self.services.loop,
            seams=self.services.seams,
        )

    def _user_transaction(self, connection: Any) -> UserTransaction:
        if self.services.user_transactions is None:
            problem = "leads to another database than this job's, which `app.testing()` keeps in memory"
            raise InvalidInput("conn", f"{problem}; test a commit on your own connection with `app.worker()`")
        return self.services.user_transactions(connection)

    # Progress.

    def report(self, percent: int, message: str | None) -> None:
        """Have the progress written soon. It replaces earlier progress that is not written yet."""
        self._progress = Progress(percent, message)
        self.services.loop.call_soon_threadsafe(self._start_writing_progress)

    @property
    def has_unwritten(self) -> bool:
        """Whether progress, steps, artifacts or a continuation must be written before, or with, the outcome."""
        saving = self.unfinished_writes or self.services.checkpointer.is_saving(self.lease)
        return bool(self.completes_with_more or saving) or self._progress_unwritten

    @property
    def completes_with_more(self) -> bool:
        """Whether artifacts or a continuation are written with the job's completion."""
        return self._committer is not None and bool(self._committer.artifacts or self._committer.continuation)

    @property
    def _progress_unwritten(self) -> bool:
        return self._progress is not None or (self._progress_task is not None and not self._progress_task.done())

    async def steps_saved(self) -> None:
        """The outcome carries the digest of the steps, so they are saved first."""
        if self.unfinished_writes:
            await asyncio.wait(self.unfinished_writes)
        await self.services.checkpointer.saved(self.lease)

    async def progress_written(self) -> None:
        while self._progress_unwritten:
            await asyncio.wait([self._start_writing_progress()])

    def _start_writing_progress(self) -> asyncio.Task[None]:
        if self._progress_task is None or self._progress_task.done():
            self._progress_task = self.services.seams.spawn.task(self._write_progress(), name="tenure-progress")
        return self._progress_task

    async def _write_progress(self) -> None:
        while (progress := self._progress) is not None:
            self._progress = None
            try:
                if not self.lease.lost:
                    await self.services.completer.write(self.lease, "progress", _always(progress))
            except (Refused, StoreError):
                # A lost lease interrupts the attempt by itself, and lost progress is no failure of the job.
                self._progress = None


def _always(operation: Operation) -> Callable[[Job], Operation]:
    return lambda _job: operation
