"""Writes owners' operations in batches: all that are submitted at the same time are written by one statement.

A request is sent again under the same id until the store replies, also when the database was unavailable: the log
shows whether it was applied. The completer decides nothing; what to write follows from the record and the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tenure.errors import LeaseLost, RevisionConflict, StoreError, StoreUnavailable
from tenure.jobs.context import current_context
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LEASED
from tenure.seams import Seams
from tenure.stores import contract
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Repeated, Request
from tenure.workers.execution.outcomes import Outcome, operation_for
from tenure.workers.leases import Lease
from tenure.workers.reconnect import ReconnectBackoff

BATCH_MAX = 500
CLOSE_SECONDS_MAX = 2.0

log = logging.getLogger("tenure.workers")

Decide = Callable[[Job], Operation]
"""Returns the operation for a record."""

Written = Applied | Repeated
Result = Written | BaseException
"""What was written, or the error that the store refused it with."""


class UnderLease(Protocol):
    """An attempt of a job under a lease of this process."""

    @property
    def lease(self) -> Lease: ...


A = TypeVar("A", bound=UnderLease)
OnResult = Callable[[A, Outcome, Result], None]
"""Called once with what became of an attempt's outcome."""


class Submission(Protocol):
    """One operation to be written under a lease."""

    lease: Lease
    request_id: str

    def decide(self, job: Job) -> Operation:
        """The operation for this record. It is called again after another client has changed the job."""
        ...

    def resolve(self, result: Result) -> None:
        """Called once with the result."""
        ...


class _Recording(Generic[A]):
    """The outcome of an attempt that waits in no task."""

    __slots__ = ("_attempt", "_on_result", "_outcome", "lease", "request_id")

    def __init__(self, attempt: A, outcome: Outcome, on_result: OnResult[A]) -> None:
        self.lease = attempt.lease
        self.request_id = self.lease.request_id("end")
        self._attempt, self._outcome, self._on_result = attempt, outcome, on_result

    def decide(self, job: Job) -> Operation:
        operation = operation_for(job, self._outcome)
        assert operation is not None, "an attempt whose lease is lost records nothing"
        return operation

    def resolve(self, result: Result) -> None:
        self._on_result(self._attempt, self._outcome, result)


class _Write:
    """An operation whose caller awaits the result in a task."""

    def __init__(self, lease: Lease, request_id: str, decide: Decide) -> None:
        self.lease, self.request_id, self.decide = lease, request_id, decide
        self.written: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def resolve(self, result: Result) -> None:
        if not self.written.done():
            self.written.set_result(result)


class Completer:
    """Writes operations of this process's leases. One task writes for all callers."""

    def __init__(self, store: ApplyStore, seams: Seams) -> None:
        self._store, self._seams = store, seams
        self._backoff = ReconnectBackoff(seams)
        self._waiting: list[Submission] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def record(self, attempt: A, outcome: Outcome, on_result: OnResult[A]) -> None:
        """Write the attempt's outcome with the next batch, and call back once with the result."""
        self._submit(_Recording(attempt, outcome, on_result))

    async def write(self, lease: Lease, verb: str, decide: Decide) -> Job:
        """Write one operation with the next batch; the record afterwards. Raises what the store refused it with."""
        write = _Write(lease, lease.request_id(verb), decide)
        self._submit(write)
        result = await write.written
        if isinstance(result, BaseException):
            raise result
        return result.job

    async def close(self) -> None:
        """Write nothing more. Recovery takes over the jobs whose outcomes are not written."""
        self._closed = True
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            await asyncio.wait([self._writing], timeout=CLOSE_SECONDS_MAX)
        unwritten, self._waiting = self._waiting, []
        for submission in unwritten:
            submission.resolve(asyncio.CancelledError())

    def _submit(self, submission: Submission) -> None:
        if self._closed:
            job_id = submission.lease.job.id
            submission.resolve(StoreError(f"the worker has stopped; nothing more of job {job_id} is recorded"))
            return
        self._waiting.append(submission)
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write_batches(), name="tenure-completer")

    async def _write_batches(self) -> None:
        # The task was started by one job's end, and writes for all jobs.
        current_context.set(None)
        while self._waiting:
            # Outcomes that are ready in this iteration of the event loop join the batch.
            await self._seams.clock.sleep(0)
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            decided = [(one, request) for one in batch if (request := _request(one)) is not None]
            try:
                results = await self._apply([request for _, request in decided])
            except BaseException as error:
                for submission, _ in decided:
                    submission.resolve(error if isinstance(error, Exception) else asyncio.CancelledError())
                if not isinstance(error, Exception):
                    raise
                log.exception("write of %d outcomes failed; recovery takes their jobs over", len(decided))
                continue
            for (submission, _), result in zip(decided, results, strict=True):
                self._resolve(submission, result)

    async def _apply(self, requests: list[Request]) -> list[contract.Outcome]:
        while requests:
            try:
                results = await self._store.apply(requests)
            except StoreUnavailable as error:
                seconds = self._backoff.next_seconds()
                log.warning("write of %d outcomes failed, retrying in %.1f s: %s", len(requests), seconds, error)
                await self._seams.clock.sleep(seconds)
            else:
                self._backoff.reset()
                return results
        return []

    def _resolve(self, submission: Submission, result: contract.Outcome) -> None:
        match result:
            case Applied() | Repeated():
                if result.status in LEASED:
                    submission.lease.adopt(result.job)
                submission.resolve(result)
            case Failure(RevisionConflict(current=Job() as current)) if submission.lease.adopt(current):
                # A heartbeat or a cancel request was written in between: decide again on the current record.
                self._waiting.append(submission)
            case Busy():
                self._waiting.append(submission)
            case Failure(LeaseLost() as refusal):
                submission.lease.lose()
                submission.resolve(refusal)
            case Failure(error):
                submission.resolve(error)


def _request(submission: Submission) -> Request | None:
    """The request to send; None, and the submission is resolved, if its operation cannot be decided."""
    try:
        operation = submission.decide(submission.lease.job)
    except Exception as error:  # noqa: BLE001 - one submission must not fail the whole batch
        submission.resolve(error)
        return None
    return submission.lease.request(operation, submission.request_id)
