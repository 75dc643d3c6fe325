"""One attempt under way, as its function sees it through `Context`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tenure.errors import InvalidInput, Refused, StoreError
from tenure.kinds import Kind
from tenure.lifecycle.operations import Operation, Progress
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Artifact
from tenure.workers.borrowing import Borrow, Lent, block_for
from tenure.workers.committing import CommitBlock, Committer
from tenure.workers.held import Held
from tenure.workers.settling import Settler


class HeldRun:
    """The attempt of a job that this process holds. Its methods may be called from any thread."""

    def __init__(
        self,
        held: Held,
        kind: Kind[..., Any],
        *,
        settler: Settler,
        committer: Committer,
        seams: Seams,
        stopping: Callable[[], bool],
        borrow: Borrow | None = None,
    ) -> None:
        self.held, self.kind, self.committer = held, kind, committer
        self._settler, self._seams, self._stopping, self._borrow = settler, seams, stopping, borrow
        self._loop = asyncio.get_running_loop()
        self._reported: Progress | None = None
        self._reporting: asyncio.Task[None] | None = None

    @property
    def job(self) -> Job:
        return self.held.job

    @property
    def lost(self) -> bool:
        return self.held.lost

    @property
    def stopping(self) -> bool:
        return self._stopping()

    def report(self, percent: int, message: str | None) -> None:
        """Have this written soon. What was reported and not yet written is replaced by it."""
        reported = Progress(percent, message)
        self._loop.call_soon_threadsafe(self._note, reported)

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return block_for(
            self.committer,
            self.kind.encoded_result(result),
            lent=None if connection is None else self._lent(connection),
            job=self.job,
            deadline_seconds=deadline_seconds,
            loop=self._loop,
            seams=self._seams,
        )

    def _lent(self, connection: Any) -> Lent:
        if self._borrow is None:
            problem = "leads to another database than this job's, which `app.testing()` keeps in memory"
            raise InvalidInput("conn", f"{problem}; test a commit on your own connection with `app.worker()`")
        return self._borrow(connection)

    async def reported(self) -> None:
        """Wait until what was reported is written."""
        while self._reporting is not None and not self._reporting.done():
            await asyncio.wait([self._reporting])

    def _note(self, reported: Progress) -> None:
        self._reported = reported
        if self._reporting is None or self._reporting.done():
            self._reporting = self._seams.spawn.task(self._report(), name="tenure-progress")

    async def _report(self) -> None:
        while (reported := self._reported) is not None and not self.held.lost:
            self._reported = None
            try:
                await self._settler.settle(self.held, "progress", _always(reported))
            except (Refused, StoreError):
                # Whoever took the job away is heard of through the lease, and progress is not worth a failure.
                return


def _always(operation: Operation) -> Callable[[Job], Operation]:
    return lambda _job: operation
