"""Runs attempts: invoke the function, record its outcome, report it. The runner claims nothing and renews nothing.

An attempt goes through these states, all of them in this file:

    queued      `start` was called; `task_sharing` runs `run_attempt` soon
    invoked     the function runs. An interruption cancels its task
    abandoned   the function did not stop in time; it runs on, and its outcome is ignored
    recording   the outcome waits for its batch in the completer. No task waits with it: a task per job doubles the
                worker's time for a short function (decision 018)
    reported    the outcome is written, or was refused: it is logged, and the slot is free
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tenure.errors import LeaseLost, TenureError
from tenure.jobs.definition import Isolation, JobDefinition
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import RETRY, SUCCEEDED
from tenure.observe.log_context import job_fields
from tenure.stores.contract import Repeated
from tenure.workers.completer import Result, Written
from tenure.workers.execution.attempt import AttemptServices, RunningAttempt
from tenure.workers.execution.executors import Executor
from tenure.workers.execution.outcomes import Lost, Outcome, Raised, Returned, Stopped, describe_error
from tenure.workers.execution.task_sharing import SharedTasks
from tenure.workers.leases import Interruption, Lease

STOP_SECONDS_MAX = 5.0
"""How long an interrupted function may take to stop before its attempt is abandoned."""

QUARANTINE_MAX = 2
"""How many jobs that lost a worker run in child processes at once, if their definitions do not ask for processes."""

log = logging.getLogger("tenure.workers")

OnEnd = Callable[[Lease, Written | None], None]
"""Called once when an attempt has ended, with what was written. None: nothing was."""


class Runner:
    """Runs the attempts of a worker's leases, from the first call of the function to the recorded outcome."""

    def __init__(
        self,
        *,
        definitions: Mapping[str, JobDefinition[..., Any]],
        executors: Mapping[Isolation, Executor],
        services: AttemptServices,
        on_end: OnEnd,
    ) -> None:
        self._definitions, self._executors, self._services, self._on_end = definitions, executors, services, on_end
        self._quarantine = asyncio.Semaphore(QUARANTINE_MAX)
        self._tasks = SharedTasks(self.run_attempt, services.seams.spawn)

    def start(self, lease: Lease) -> None:
        """Run the attempt in the background."""
        attempt = RunningAttempt(lease, self._definitions[lease.job.origin.kind], self._services)
        lease.on_interrupt(partial(self._interrupt_from_any_thread, attempt))
        self._tasks.add(attempt)

    async def run_attempt(self, attempt: RunningAttempt, task: asyncio.Task[None]) -> None:
        """Invoke the function in this task, and record its outcome. Whatever happens is an outcome."""
        attempt.task = task
        outcome: Outcome
        try:
            outcome = Stopped() if attempt.interruption else await self._executor(attempt).invoke(attempt)
        except asyncio.CancelledError as error:
            outcome = Stopped() if attempt.interruption else cancelled_by_itself(error)
        except Exception as error:
            # A bug in tenure must not leave the job without an outcome.
            log.exception("job %s could not be invoked", attempt.job.id, extra=job_fields(attempt.job))
            outcome = Raised(describe_error(error))
        attempt.task = None
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not attempt.abandoned:
            # Batched, fenced, once. `_report` follows: log line, metrics, free slot.
            self._record(attempt, Lost() if attempt.interruption is Interruption.LOST else outcome)

    def _executor(self, attempt: RunningAttempt) -> Executor:
        """A job that lost a worker before may crash its process, so it runs in a child process where it can."""
        definition = attempt.definition
        if attempt.lease.job.losses > 0 and definition.isolation != "process" and definition.import_path is not None:
            process = self._executors.get("process")
            return self._executors[definition.isolation] if process is None else _Limited(process, self._quarantine)
        return self._executors[definition.isolation]

    # Interrupt.

    def _interrupt_from_any_thread(self, attempt: RunningAttempt, reason: Interruption) -> None:
        # The function reacts to a cancel request by itself.
        if reason is not Interruption.CANCEL_REQUESTED:
            try:
                self._services.loop.call_soon_threadsafe(self._interrupt, attempt, reason)
            except RuntimeError:
                # The worker's event loop is closed, so nothing runs any more.
                return

    def _interrupt(self, attempt: RunningAttempt, reason: Interruption) -> None:
        if attempt.interruption is not None or attempt.lease.completing:
            return
        attempt.interruption = reason
        # Without a task the function has not begun, and `run_attempt` will not call it.
        if attempt.task is not None:
            attempt.task.cancel()
            attempt.timer = self._services.loop.call_later(STOP_SECONDS_MAX, self._abandon, attempt)

    def _abandon(self, attempt: RunningAttempt) -> None:
        """End the attempt although its function still runs."""
        attempt.abandoned = True
        job = attempt.job
        log.warning("job %s did not stop within %s s; abandoning it", job.id, STOP_SECONDS_MAX, extra=job_fields(job))
        self._record(attempt, Lost() if attempt.interruption is Interruption.LOST else Stopped())

    # Record.

    def _record(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        lease = attempt.lease
        if attempt.has_unwritten:
            # In a task of its own: a late cancellation of the function's task must not reach these writes.
            spawn = self._services.seams.spawn
            attempt.recording = spawn.task(self._record_after_writes(attempt, outcome), name="tenure-record")
            return
        lease.completing = True
        if lease.lost or isinstance(outcome, Lost):
            self._report(attempt, outcome, None)
        else:
            self._services.completer.record(attempt, outcome, self._report)

    async def _record_after_writes(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Write progress first. Artifacts are written in one transaction with the job's completion."""
        lease = attempt.lease
        try:
            await attempt.progress_written()
            if isinstance(outcome, Returned) and attempt.artifacts and not (lease.job.committed or lease.lost):
                lease.completing = True
                result: Result = Repeated(await attempt.committer.complete(outcome.result))
            else:
                attempt.drop_artifacts()
                self._record(attempt, outcome)
                return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - `_report` logs it
            result = error
        self._report(attempt, outcome, result)

    # Report.

    def _report(self, attempt: RunningAttempt, outcome: Outcome, result: Result | None) -> None:
        if result is None or isinstance(result, BaseException):
            _log_unrecorded(attempt.job, result)
            self._on_end(attempt.lease, None)
            return
        job = attempt.lease.job
        if not isinstance(outcome, Returned) or job.committed_at is not None or log.isEnabledFor(logging.DEBUG):
            _log_outcome(job, outcome, result)
        self._on_end(attempt.lease, result)


class _Limited:
    """An executor that runs only so many attempts at once."""

    def __init__(self, executor: Executor, limit: asyncio.Semaphore) -> None:
        self._executor, self._limit = executor, limit

    async def invoke(self, attempt: RunningAttempt) -> Outcome:
        async with self._limit:
            return await self._executor.invoke(attempt)

    async def close(self) -> None:
        return None


def cancelled_by_itself(error: asyncio.CancelledError) -> Raised:
    """The outcome of a function that raised CancelledError although its attempt was not interrupted."""
    message = str(error) or "the job's function was cancelled from within"
    return Raised(describe_error(asyncio.CancelledError(message)))


def _log_outcome(job: Job, outcome: Outcome, written: Written) -> None:
    if isinstance(outcome, Raised):
        error = load(outcome.error)
        message = f"{error.get('type')}: {error.get('message')}"
        extra = {**job_fields(job), "traceback": error.get("traceback")}
        template = "job %s (%s) attempt %s failed (%s), %s"
        log.warning(template, job.id, job.kind, job.attempt, message, _next_step(written), extra=extra)
    elif isinstance(outcome, Returned) and job.committed and job.committed_result != outcome.result:
        template = "job %s (%s) returned another result than it committed; the committed result is kept"
        log.error(template, job.id, job.kind, extra=job_fields(job))
    elif written.status == SUCCEEDED:
        template = "job %s (%s) succeeded in %.2f s, attempt %s"
        log.debug(template, job.id, job.kind, _seconds_run(written.job), job.attempt, extra=job_fields(job))
    else:
        template = "job %s (%s) attempt %s ended without a result; the job is %s"
        log.debug(template, job.id, job.kind, job.attempt, written.status, extra=job_fields(job))


def _next_step(written: Written) -> str:
    job = written.job
    if written.status == RETRY and job.due_at is not None:
        return f"retrying in {(job.due_at - job.updated_at).total_seconds():.1f} s"
    return f"not retrying: the job is {written.status}"


def _seconds_run(job: Job) -> float:
    if job.started_at is None or job.finished_at is None:
        return 0.0
    return (job.finished_at - job.started_at).total_seconds()


def _log_unrecorded(job: Job, error: BaseException | None) -> None:
    if error is None:
        template = "job %s (%s) lost its lease; attempt %s is not recorded"
        log.warning(template, job.id, job.kind, job.attempt, extra=job_fields(job))
    elif isinstance(error, LeaseLost):
        template = "job %s (%s) lost its lease; the outcome of attempt %s was refused: %s"
        log.warning(template, job.id, job.kind, job.attempt, error, extra=job_fields(job))
    elif isinstance(error, Exception):
        template = "job %s (%s) outcome of attempt %s not recorded; recovery takes the job over: %s"
        unexpected = None if isinstance(error, TenureError) else error
        log.error(template, job.id, job.kind, job.attempt, error, exc_info=unexpected, extra=job_fields(job))
