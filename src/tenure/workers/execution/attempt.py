"""One attempt under way, as its function sees it through `Context`."""

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
from tenure.workers.leases import Lease


class Site:
    """What all runs of a worker share. Made on the event loop that they run on."""

    __slots__ = ("loop", "seams", "settler", "stopping", "store", "user_transactions")

    def __init__(
        self,
        store: TransactionStore,
        settler: Completer,
        seams: Seams,
        *,
        stopping: Callable[[], bool],
        user_transactions: UserTransactions | None,
    ) -> None:
        self.store, self.settler, self.seams, self.stopping = store, settler, seams, stopping
        self.user_transactions = user_transactions
        self.loop = asyncio.get_running_loop()

    async def commits(self) -> TransactionStore:
        return self.store


class AttemptRun:
    """The attempt of a job that this process holds. Its methods may be called from any thread."""

    __slots__ = ("_committer", "_reported", "_reporting", "_site", "held", "kind")

    def __init__(self, held: Lease, kind: JobDefinition[..., Any], site: Site) -> None:
        self.held, self.kind, self._site = held, kind, site
        self._committer: Committer | None = None
        self._reported: Progress | None = None
        self._reporting: asyncio.Task[None] | None = None

    @property
    def committer(self) -> Committer:
        if self._committer is None:
            self._committer = Committer(self.held, self._site.seams, self._site.commits)
        return self._committer

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """What was attached so far."""
        return () if self._committer is None else self._committer.artifacts

    @property
    def job(self) -> Job:
        return self.held.job

    @property
    def lost(self) -> bool:
        return self.held.lost

    @property
    def stopping(self) -> bool:
        return self._site.stopping()

    def report(self, percent: int, message: str | None) -> None:
        """Have this written soon. What was reported and not yet written is replaced by it."""
        self._reported = Progress(percent, message)
        self._site.loop.call_soon_threadsafe(self._note)

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return block_for(
            self.committer,
            self.kind.encode_result(result),
            user=None if connection is None else self._user_transaction(connection),
            deadline_seconds=deadline_seconds,
            loop=self._site.loop,
            seams=self._site.seams,
        )

    def _user_transaction(self, connection: Any) -> UserTransaction:
        if self._site.user_transactions is None:
            problem = "leads to another database than this job's, which `app.testing()` keeps in memory"
            raise InvalidInput("conn", f"{problem}; test a commit on your own connection with `app.worker()`")
        return self._site.user_transactions(connection)

    @property
    def undisturbed(self) -> bool:
        """Whether nothing was attached and nothing is being reported, so that the end can be written by itself."""
        return not (self.artifacts or self.reporting)

    @property
    def reporting(self) -> bool:
        """Whether something was reported and is not written yet."""
        return self._reported is not None or (self._reporting is not None and not self._reporting.done())

    async def reported(self) -> None:
        """Wait until what was reported is written."""
        while self.reporting:
            await asyncio.wait([self._note()])

    def _note(self) -> asyncio.Task[None]:
        if self._reporting is None or self._reporting.done():
            self._reporting = self._site.seams.spawn.task(self._report(), name="tenure-progress")
        return self._reporting

    async def _report(self) -> None:
        while (reported := self._reported) is not None:
            self._reported = None
            try:
                if not self.held.lost:
                    await self._site.settler.settle(self.held, "progress", _always(reported))
            except (Refused, StoreError):
                # Whoever took the job away is heard of through the lease, and progress is not worth a failure.
                self._reported = None


def _always(operation: Operation) -> Callable[[Job], Operation]:
    return lambda _job: operation
