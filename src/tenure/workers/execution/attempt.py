"""One attempt of a job: what its function may do through `Context`, and whether it was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tenure.errors import InvalidInput, Refused, StoreError
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.operations import Operation, Progress
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Artifact, TransactionStore
from tenure.stores.user_connections import UserTransaction
from tenure.workers.commit.commit import CommitBlock, Committer
from tenure.workers.commit.user_connection import UserTransactions, block_for
from tenure.workers.completer import Completer
from tenure.workers.leases import Interruption, Lease


class AttemptServices:
    """What all attempts of a worker share. Made on the event loop that they run on."""

    __slots__ = ("completer", "loop", "seams", "stopping", "store", "user_transactions")

    def __init__(
        self,
        store: TransactionStore,
        completer: Completer,
        seams: Seams,
        *,
        stopping: Callable[[], bool],
        user_transactions: UserTransactions | None,
    ) -> None:
        self.store, self.completer, self.seams, self.stopping = store, completer, seams, stopping
        self.user_transactions = user_transactions
        self.loop = asyncio.get_running_loop()

    async def transaction_store(self) -> TransactionStore:
        return self.store


class RunningAttempt:
    """The attempt of a job under a lease of this process. The methods for `Context` may be called from any thread."""

    __slots__ = (
        "_committer", "_progress", "_progress_task", "_services", "abandoned", "definition", "interruption", "lease",
        "recording", "task", "timer",
    )  # fmt: skip

    def __init__(self, lease: Lease, definition: JobDefinition[..., Any], services: AttemptServices) -> None:
        self.lease, self.definition, self._services = lease, definition, services
        self.task: asyncio.Task[Any] | None = None
        """The task that the function runs in, while it runs."""
        self.interruption: Interruption | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.abandoned = False
        """The function did not stop in time. Its outcome is ignored."""
        self.recording: asyncio.Task[None] | None = None
        """Kept here, since an event loop refers to its tasks only weakly."""
        self._committer: Committer | None = None
        self._progress: Progress | None = None
        self._progress_task: asyncio.Task[None] | None = None

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def lost(self) -> bool:
        return self.lease.lost

    @property
    def stopping(self) -> bool:
        return self._services.stopping()

    @property
    def committer(self) -> Committer:
        if self._committer is None:
            self._committer = Committer(self.lease, self._services.seams, self._services.transaction_store)
        return self._committer

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """The artifacts that were attached and not yet committed."""
        return () if self._committer is None else self._committer.artifacts

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def drop_artifacts(self) -> None:
        """Artifacts of an attempt that does not complete its job are not kept."""
        if self._committer is not None:
            self._committer.artifacts = []

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return block_for(
            self.committer,
            self.definition.encode_result(result),
            user=None if connection is None else self._user_transaction(connection),
            deadline_seconds=deadline_seconds,
            loop=self._services.loop,
            seams=self._services.seams,
        )

    def _user_transaction(self, connection: Any) -> UserTransaction:
        if self._services.user_transactions is None:
            problem = "leads to another database than this job's, which `app.testing()` keeps in memory"
            raise InvalidInput("conn", f"{problem}; test a commit on your own connection with `app.worker()`")
        return self._services.user_transactions(connection)

    # Progress.

    def report(self, percent: int, message: str | None) -> None:
        """Have the progress written soon. It replaces earlier progress that is not written yet."""
        self._progress = Progress(percent, message)
        self._services.loop.call_soon_threadsafe(self._start_writing_progress)

    @property
    def has_unwritten(self) -> bool:
        """Whether progress or artifacts must be written before, or with, the outcome."""
        return bool(self.artifacts) or self._progress_unwritten

    @property
    def _progress_unwritten(self) -> bool:
        return self._progress is not None or (self._progress_task is not None and not self._progress_task.done())

    async def progress_written(self) -> None:
        while self._progress_unwritten:
            await asyncio.wait([self._start_writing_progress()])

    def _start_writing_progress(self) -> asyncio.Task[None]:
        if self._progress_task is None or self._progress_task.done():
            self._progress_task = self._services.seams.spawn.task(self._write_progress(), name="tenure-progress")
        return self._progress_task

    async def _write_progress(self) -> None:
        while (progress := self._progress) is not None:
            self._progress = None
            try:
                if not self.lease.lost:
                    await self._services.completer.write(self.lease, "progress", _always(progress))
            except (Refused, StoreError):
                # A lost lease interrupts the attempt by itself, and lost progress is no failure of the job.
                self._progress = None


def _always(operation: Operation) -> Callable[[Job], Operation]:
    return lambda _job: operation
