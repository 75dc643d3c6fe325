"""Writes owners' operations in batches: all that are submitted at the same time are written by one statement.

A request is sent again under the same id until the store replies, also when the database was unavailable: the log
shows whether it was applied. A job whose row another transaction has locked is written later, the others at once. The
completer decides nothing; what to write follows from the record and the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from tenure.errors import LeaseLost, RevisionConflict, StoreError, StoreUnavailable
from tenure.jobs.context import current_context
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LEASED
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.seams import Seams
from tenure.stores import contract
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Repeated, Request
from tenure.workers.leases import Lease
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

BATCH_MAX = 500
CLOSE_SECONDS_MAX = 2.0
LOCKED_PAUSE_SECONDS, LOCKED_PAUSE_SECONDS_MAX = 0.002, 0.1
"""How long after a locked row was met its write is tried again: at first soon, since a claim by another worker may have
locked the row for a few milliseconds, then twice as long each time."""
LOCKED_WARNING_SECONDS = 5.0
"""After this time a warning names the job whose row is locked, and the session that has locked it."""

log = logging.getLogger("tenure.workers")

Decide = Callable[[Job], Operation]
"""Returns the operation for a record."""

Written = Applied | Repeated
Result = Written | BaseException
"""What was written, or the error that the store refused it with."""


class Submission(Protocol):
    """One operation to be written under a lease."""

    @property
    def lease(self) -> Lease: ...

    @property
    def request_id(self) -> str: ...

    def decide(self, job: Job) -> Operation:
        """The operation for this record. It is called again after another client has changed the job."""
        ...

    def resolve(self, result: Result) -> None:
        """Called once with the result."""
        ...


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

    def __init__(self, store: ApplyStore, seams: Seams, availability: DatabaseAvailability | None = None) -> None:
        self._store, self._seams = store, seams
        self._backoff = ReconnectBackoff(seams, availability)
        self._waiting: list[Submission] = []
        self._locked: dict[Submission, _LockedRow] = {}
        self._writing: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, submission: Submission) -> None:
        """Write its operation with the next batch. The submission receives the result; no task waits for it."""
        if self._closed:
            job_id = submission.lease.job.id
            submission.resolve(StoreError(f"the worker has stopped; nothing more of job {job_id} is recorded"))
            return
        self._waiting.append(submission)
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write_batches(), name="tenure-completer")

    async def write(self, lease: Lease, verb: str, decide: Decide) -> Job:
        """Write one operation with the next batch; the record afterwards. Raises what the store refused it with."""
        return (await self.record(lease, verb, decide)).job

    async def record(self, lease: Lease, verb: str, decide: Decide) -> Written:
        """Write one operation with the next batch. Raises what the store refused it with."""
        write = _Write(lease, lease.request_id(verb), decide)
        self.submit(write)
        result = await write.written
        if isinstance(result, BaseException):
            raise result
        return result

    async def close(self) -> None:
        """Write nothing more. Recovery takes over the jobs whose outcomes are not written."""
        self._closed = True
        for task in (self._retrying, self._writing):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=CLOSE_SECONDS_MAX)
        unwritten = [*self._waiting, *(one for one, locked in self._locked.items() if locked.waits)]
        self._waiting, self._locked = [], {}
        for submission in unwritten:
            submission.resolve(asyncio.CancelledError())

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
                    self._locked.pop(submission, None)
                    submission.resolve(error if isinstance(error, Exception) else asyncio.CancelledError())
                if not isinstance(error, Exception):
                    raise
                log.exception("write of %s failed; recovery takes over", counted(len(decided), "outcome"))
                continue
            for (submission, _), result in zip(decided, results, strict=True):
                self._resolve(submission, result)

    async def _apply(self, requests: list[Request]) -> list[contract.Outcome]:
        while requests:
            try:
                results = await self._store.apply(requests)
            except StoreUnavailable as error:
                await self._seams.clock.sleep(
                    self._backoff.failed(f"write of {counted(len(requests), 'outcome')}", error)
                )
            else:
                self._backoff.reset()
                return results
        return []

    def _resolve(self, submission: Submission, result: contract.Outcome) -> None:
        if isinstance(result, Busy):
            self._write_later(submission, result)
            return
        if self._locked:
            self._locked.pop(submission, None)
        match result:
            case Applied() | Repeated():
                if result.status in LEASED:
                    submission.lease.adopt(result.job)
                submission.resolve(result)
            case Failure(RevisionConflict(current=Job() as current)) if submission.lease.adopt(current):
                # A heartbeat or a cancel request was written in between: decide again on the current record.
                self._waiting.append(submission)
            case Failure(LeaseLost() as refusal):
                submission.lease.lose()
                submission.resolve(refusal)
            case Failure(error):
                submission.resolve(error)

    def _write_later(self, submission: Submission, busy: Busy) -> None:
        """Keep the submission for the next try, as long as its lease may run."""
        if submission.lease.lost:
            self._locked.pop(submission, None)
            submission.resolve(LeaseLost(submission.lease.job, "the outcome of an attempt whose row was locked"))
            return
        now_seconds = self._seams.clock.monotonic_seconds()
        locked = self._locked.setdefault(submission, _LockedRow(now_seconds))
        if not locked.reported and now_seconds - locked.since_seconds >= LOCKED_WARNING_SECONDS:
            locked.reported = True
            template = "job %s (%s) outcome not written for %.0f s: its row is locked by %s; retrying"
            job, holder = submission.lease.job, busy.holder or "another transaction"
            log.warning(template, job.id, job.kind, now_seconds - locked.since_seconds, holder, extra=job_fields(job))
        locked.waits = True
        locked.tries += 1
        if self._retrying is None or self._retrying.done():
            self._retrying = self._seams.spawn.task(self._retry_locked(), name="tenure-completer-locked")

    async def _retry_locked(self) -> None:
        current_context.set(None)
        tries = min(locked.tries for locked in self._locked.values() if locked.waits)
        await self._seams.clock.sleep(min(LOCKED_PAUSE_SECONDS * 2**tries, LOCKED_PAUSE_SECONDS_MAX))
        for submission, locked in self._locked.items():
            if locked.waits:
                locked.waits = False
                self._waiting.append(submission)
        self._start_writing()


class _LockedRow:
    """How long a submission has met a locked row. `waits`: it is in no batch now."""

    __slots__ = ("reported", "since_seconds", "tries", "waits")

    def __init__(self, since_seconds: float) -> None:
        self.since_seconds = since_seconds
        self.reported = self.waits = False
        self.tries = 0


def _request(submission: Submission) -> Request | None:
    """The request to send; None, and the submission is resolved, if its operation cannot be decided."""
    try:
        operation = submission.decide(submission.lease.job)
    except Exception as error:  # noqa: BLE001 - one submission must not fail the whole batch
        submission.resolve(error)
        return None
    return submission.lease.request(operation, submission.request_id)
