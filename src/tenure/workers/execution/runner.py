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
from typing import Any

import msgspec

from tenure.errors import StoreUnavailable
from tenure.jobs.definition import Isolation, JobDefinition
from tenure.lifecycle.operations import DeadLetter, Fail, Operation
from tenure.lifecycle.records import EventType, Job
from tenure.observe.log_context import job_fields
from tenure.stores.contract import Repeated
from tenure.workers.completer import Result, Written
from tenure.workers.execution.attempt import AttemptServices, RunningAttempt
from tenure.workers.execution.executors import Executor
from tenure.workers.execution.outcome_log import OutcomeLog, log_unrecorded
from tenure.workers.execution.outcomes import (
    UNKNOWN_ARGUMENT,
    UNKNOWN_ARGUMENT_RELEASES_MAX,
    Lost,
    Outcome,
    Raised,
    Returned,
    Stopped,
    TimedOut,
    UndoUnfinished,
    UnknownArgument,
    describe_error,
    operation_for,
)
from tenure.workers.execution.task_sharing import SharedTasks
from tenure.workers.leases import Interruption, Lease

STOP_SECONDS_MAX = 5.0
"""How long an interrupted function may take to stop before its attempt is abandoned."""

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
        on_function_end: Callable[[Lease], None] = lambda _: None,
    ) -> None:
        self._definitions, self._executors, self._services, self._on_end = definitions, executors, services, on_end
        self._on_function_end = on_function_end
        self._tasks = SharedTasks(self.run_attempt, services.seams.spawn)
        self._outcome_log = OutcomeLog(services.seams.clock, services.loop)
        self._attempts: dict[Lease, RunningAttempt] = {}
        """The attempts that have not ended."""

    def start(self, lease: Lease) -> None:
        """Run the attempt in the background."""
        attempt = RunningAttempt(lease, self._definitions[lease.job.origin.kind], self._services)
        self._tasks.add(attempt)
        self._attempts[lease] = attempt

    def job_of(self, task: asyncio.Task[Any] | None) -> Job | None:
        """The job whose function runs in this task. Safe to call from any thread."""
        return next((one.job for one in list(self._attempts.values()) if task and one.task is task), None)

    def close(self) -> None:
        """Write the log lines that are pending."""
        self._outcome_log.flush()

    def release(self, lease: Lease) -> None:
        """Release the job without invoking its function: its claim was answered too late to start it."""
        attempt = RunningAttempt(lease, self._definitions[lease.job.origin.kind], self._services)
        self._attempts[lease] = attempt
        self._record(attempt, Stopped("late_claim"))

    async def run_attempt(self, attempt: RunningAttempt, task: asyncio.Task[None]) -> None:
        """Invoke the function in this task, and record its outcome. Whatever happens is an outcome."""
        attempt.task = task
        outcome: Outcome
        try:
            outcome = _without_invoking(attempt) or await self._executors[attempt.definition.isolation].invoke(attempt)
            if isinstance(outcome, UnknownArgument):
                outcome = await self._with_releases(attempt.job, outcome)
        except asyncio.CancelledError as error:
            outcome = Stopped() if attempt.interruption else cancelled_by_itself(error)
        except Exception as error:
            # A bug in tenure must not leave the job without an outcome.
            job = attempt.job
            log.exception("job %s (%s) attempt %s not invoked", job.id, job.kind, job.attempt, extra=job_fields(job))
            outcome = Raised(describe_error(error))
        attempt.task = None
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not attempt.abandoned:
            # Batched, fenced, once. The completer resolves the recording, which reports: log line, metrics, free slot.
            self._record(attempt, _after_interruption(attempt, outcome))

    async def _with_releases(self, job: Job, outcome: UnknownArgument) -> UnknownArgument:
        """Count the releases for newer code in the job's history, unless it has too few attempts for the maximum."""
        if job.attempt <= UNKNOWN_ARGUMENT_RELEASES_MAX:
            return outcome
        try:
            events = (await self._services.store.history([job.id]))[job.id]
        except StoreUnavailable:
            # The job is released once more, and counted at its next attempt.
            return outcome
        releases = sum(event.type is EventType.RELEASED and event.cause == UNKNOWN_ARGUMENT for event in events)
        return msgspec.structs.replace(outcome, releases=releases)

    # Interrupt.

    def interrupt(self, lease: Lease, reason: Interruption) -> None:
        """Stop the attempt under this lease, if it has not ended. Safe to call from any thread."""
        interrupt = self._request_cancel if reason is Interruption.CANCEL_REQUESTED else self._interrupt
        try:
            self._services.loop.call_soon_threadsafe(interrupt, lease, reason)
        except RuntimeError:
            # The worker's event loop is closed, so nothing runs any more.
            return

    def _request_cancel(self, lease: Lease, _reason: Interruption) -> None:
        """A function reacts to a cancel request by itself, a workflow between its steps."""
        attempt = self._attempts.get(lease)
        if attempt is not None and attempt.on_cancel_request is not None:
            attempt.on_cancel_request()

    def _interrupt(self, lease: Lease, reason: Interruption) -> None:
        attempt = self._attempts.get(lease)
        if attempt is None or attempt.interruption is not None or lease.completing:
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
        template = "job %s (%s) did not stop within %s s; abandoning attempt %s"
        log.warning(template, job.id, job.kind, STOP_SECONDS_MAX, job.attempt, extra=job_fields(job))
        self._record(attempt, _after_interruption(attempt, Stopped()))

    # Record.

    def _record(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        lease = attempt.lease
        if attempt.has_unwritten:
            # In a task of its own: a late cancellation of the function's task must not reach these writes.
            spawn = self._services.seams.spawn
            attempt.recording = spawn.task(self._record_after_writes(attempt, outcome), name="tenure-record")
            return
        lease.completing = True
        if isinstance(outcome, Lost):
            self.report(attempt, outcome, outcome)
        elif lease.lost:
            self.report(attempt, outcome, Lost())
        else:
            if not attempt.abandoned:
                self._on_function_end(lease)
            self._services.completer.submit(_Recording(self, attempt, outcome))

    async def _record_after_writes(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Write steps and progress first. Artifacts are written in one transaction with the job's completion."""
        lease = attempt.lease
        try:
            await attempt.steps_saved()
            await attempt.progress_written()
            if (
                isinstance(outcome, Returned)
                and attempt.completes_with_more
                and not (lease.job.committed or lease.lost)
            ):
                lease.completing = True
                result: Result = Repeated(await attempt.committer.complete(outcome.result))
            else:
                attempt.drop_artifacts()
                self._record(attempt, outcome)
                return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - `report` logs it
            result = error
        self.report(attempt, outcome, result)

    # Report.

    def report(self, attempt: RunningAttempt, outcome: Outcome, result: Result | Lost) -> None:
        """Log the outcome of the attempt, and end it. Called once."""
        self._attempts.pop(attempt.lease, None)
        if isinstance(result, Lost | BaseException):
            log_unrecorded(attempt.job, result)
            self._on_end(attempt.lease, None)
            return
        self._outcome_log.ended(attempt.lease.job, outcome, result)
        self._on_end(attempt.lease, result)


class _Recording:
    """An outcome in the completer. No task waits for it: when it is written or refused, the runner reports it."""

    __slots__ = ("_attempt", "_outcome", "_runner", "lease", "request_id")

    def __init__(self, runner: Runner, attempt: RunningAttempt, outcome: Outcome) -> None:
        self._runner, self._attempt, self._outcome = runner, attempt, outcome
        self.lease = attempt.lease
        self.request_id = self.lease.request_id("end")

    def decide(self, job: Job) -> Operation:
        operation = operation_for(job, self._outcome)
        assert operation is not None, "an attempt whose lease is lost records nothing"
        return operation

    def resolve(self, result: Result) -> None:
        self._runner.report(self._attempt, self._outcome, result)


def _without_invoking(attempt: RunningAttempt) -> Outcome | None:
    """The outcome of an attempt whose function is not called. A workflow decides that itself: it undoes its steps."""
    if attempt.interruption:
        return Stopped()
    past_deadline = attempt.lease.past_deadline and attempt.definition.invoker is None
    return TimedOut(at_deadline=True) if past_deadline else None


def _after_interruption(attempt: RunningAttempt, outcome: Outcome) -> Outcome:
    """The outcome to record: without the lease, or after the timeout, it does not depend on the function."""
    match attempt.interruption:
        case Interruption.LOST:
            return Lost()
        case Interruption.OVERDUE:
            return outcome if isinstance(outcome, UndoUnfinished) else _after_timeout(attempt, outcome)
        case _:
            return outcome


def _after_timeout(attempt: RunningAttempt, outcome: Outcome) -> Outcome:
    """A workflow that was stopped before it knew whether it has steps to undo does not end here. At its deadline the
    next attempt undoes them; else recovery, which finds that the attempt has timed out, lets the run undo them."""
    job, timed_out = attempt.job, TimedOut(attempt.lease.at_deadline)
    may_undo = attempt.definition.invoker is not None and isinstance(outcome, Stopped | Returned)
    if may_undo and not job.unwinding and isinstance(operation_for(job, timed_out), Fail | DeadLetter):
        return UndoUnfinished() if timed_out.at_deadline else Lost("timed out with steps that may have to be undone")
    return timed_out


def cancelled_by_itself(error: asyncio.CancelledError) -> Raised:
    """The outcome of a function that raised CancelledError although its attempt was not interrupted."""
    message = str(error) or "the job's function was cancelled from within"
    return Raised(describe_error(asyncio.CancelledError(message)))
