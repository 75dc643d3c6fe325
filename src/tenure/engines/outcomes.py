"""Records what an engine reports about a job, through the completer that workers use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tenure.engines.protocol import (
    AckMessage,
    JobAck,
    JobComplete,
    JobFailedMessage,
    JobMessage,
    JobProgress,
    JobReport,
    JobStarted,
    error_json,
)
from tenure.engines.session import EngineLease
from tenure.errors import InvalidInput, JobNotFound, LeaseLost, ResultRefused, TenureError
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware, RemoteAttempt, report_remote
from tenure.lifecycle.json_text import digest, encode, load, parse
from tenure.lifecycle.operations import Ack, Operation, Progress, Start
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.observe.meter import LOST, Meter
from tenure.seams import Seams
from tenure.workers.completer import Completer, Written
from tenure.workers.execution.outcome_log import OutcomeLog, log_unrecorded
from tenure.workers.execution.outcomes import (
    Cancelled,
    ErrorAction,
    ErrorPolicy,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    operation_for,
    outcome_of_error,
)

Definitions = Mapping[str, JobDefinition[..., Any]]
ENGINE_STOPS = "engine_stops"
"""The cause of a release that an engine asked for."""


class EngineOutcomes:
    """Writes the operations of engine messages, and reports how attempts ended: log, metrics, middleware."""

    def __init__(
        self,
        completer: Completer,
        definitions: Definitions,
        seams: Seams,
        *,
        meter: Meter,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._completer, self._definitions, self._seams = completer, definitions, seams
        self._meter, self._middleware = meter, middleware
        self._log = OutcomeLog(seams.clock, asyncio.get_running_loop())

    def close(self) -> None:
        self._log.flush()

    async def record(self, lease: EngineLease, message: JobMessage) -> AckMessage:
        """Apply a message about the job of this lease. The ack has whether it was recorded."""
        try:
            job = await self._apply(lease, message)
        except (LeaseLost, JobNotFound) as refusal:
            return AckMessage(id=message.id, outcome="lost", reason=str(refusal))
        except TenureError as refusal:
            return AckMessage(id=message.id, outcome="refused", reason=str(refusal))
        return AckMessage(id=message.id, status=job.status.value)

    def recorded_before(self, lease: EngineLease, message: JobMessage, log: Sequence[Event]) -> AckMessage | None:
        """The ack of an end that this attempt reported before, by the job's log. None: it reported none."""
        request_id = lease.request_id("end")
        end = next((event for event in log if event.request_id == request_id), None)
        if end is None or not isinstance(message, JobComplete | JobFailedMessage):
            return None
        if isinstance(message, JobComplete):
            outcome = self._returned(lease.job, message)
            same = isinstance(outcome, Returned) == (end.type is EventType.SUCCEEDED)
            same = same and (not isinstance(outcome, Returned) or end.digest == digest(outcome.result))
        else:
            same = end.type is not EventType.SUCCEEDED
        if same:
            return AckMessage(id=message.id, status=end.to_status.value)
        return AckMessage(id=message.id, outcome="refused", reason=f"the attempt ended before: it is {end.to_status}")

    async def time_out(self, lease: EngineLease) -> None:
        """End the attempt of a job that ran for longer than its policy allows, or that has reached its deadline."""
        await self._end(lease, TimedOut(at_deadline=lease.at_deadline))

    async def release(self, lease: EngineLease, cause: str) -> None:
        await self._end(lease, Stopped(cause))

    async def _apply(self, lease: EngineLease, message: JobMessage) -> Job:
        if isinstance(message, JobReport) and message.trace is not None:
            lease.trace = message.trace
        match message:
            case JobAck():
                return await self._ack(lease)
            case JobStarted():
                return await self._start(lease)
            case JobProgress(percent=percent, message=text):
                await self._start(lease)
                progress = Progress(percent, text or None)
                return await self._completer.write(lease, "progress", lambda _: progress)
            case JobComplete():
                outcome = self._returned(lease.job, message)
            case JobFailedMessage(action=action):
                outcome = failed_outcome(message)
                if action == "release" or (action == "cancel" and lease.job.cancel_requested):
                    return (await self._end(lease, outcome)).job
            case _:
                raise InvalidInput("message", f"{type(message).__name__} is not about a job")
        await self._start(lease)
        return (await self._end(lease, outcome)).job

    async def _ack(self, lease: EngineLease) -> Job:
        if lease.job.status is not CLAIMED:
            return lease.job
        job = await self._completer.write(lease, "ack", lambda _: Ack())
        lease.restart_timeout(self._seams.clock.monotonic_seconds())
        return job

    async def _start(self, lease: EngineLease) -> Job:
        if lease.job.status is not CLAIMED:
            return lease.job
        start = Start(lease.trace)
        job = await self._completer.write(lease, "start", lambda _: start)
        lease.restart_timeout(self._seams.clock.monotonic_seconds())
        return job

    async def _end(self, lease: EngineLease, outcome: Outcome) -> Written:
        before = lease.job
        lease.completing = True
        try:
            written = await self._completer.record(lease, "end", lambda job: _operation(job, outcome))
        except Exception as error:
            log_unrecorded(before, error)
            if isinstance(error, LeaseLost):
                self._meter.ended(before.kind, LOST)
            raise
        finally:
            lease.completing = False
        self._report(lease, before, outcome, written)
        return written

    def _report(self, lease: EngineLease, before: Job, outcome: Outcome, written: Written) -> None:
        self._log.ended(before, outcome, written)
        self._meter.ended(before.kind, written.status)
        if before.status is not RUNNING or before.started_at is None:
            return
        ended_at = written.job.updated_at
        self._meter.ran(before.kind, (ended_at - before.started_at).total_seconds())
        attempt = RemoteAttempt(
            job=before,
            engine=lease.actor.name,
            started_at=before.started_at,
            ended_at=ended_at,
            ended_as=written.status,
            error_type=_error_type(outcome),
            trace=lease.trace,
        )
        report_remote(self._middleware, attempt)

    def _returned(self, job: Job, message: JobComplete) -> Outcome:
        """The result as it is stored, or the error of a result that breaks the declaration."""
        text = bytes(message.result).decode()
        definition = self._definitions.get(job.kind)
        try:
            value = parse(text, where="result")
            if definition is not None:
                definition.decode_result(text, job_id=job.id)
            return Returned(encode(value, where="result"))
        except (InvalidInput, ResultRefused) as refusal:
            problem = ResultRefused(refusal.where, refusal.problem)
            return outcome_of_error(problem, ErrorPolicy())


def failed_outcome(message: JobFailedMessage) -> Outcome:
    error = error_json(message.error)
    match message.action:
        case "cancel":
            return Cancelled()
        case "release" if message.delay_seconds is not None:
            return Snoozed(message.delay_seconds, ENGINE_STOPS)
        case "release":
            return Stopped(ENGINE_STOPS)
        case "fail":
            return Raised(error, ErrorAction.FAIL)
        case _:
            return Raised(error, delay_seconds=message.delay_seconds)


def _error_type(outcome: Outcome) -> str | None:
    match outcome:
        case Raised(error):
            return str(load(error).get("type"))
        case TimedOut():
            return "Timeout"
        case _:
            return None


def _operation(job: Job, outcome: Outcome) -> Operation:
    operation = operation_for(job, outcome)
    if operation is None:
        raise LeaseLost(job, "end")
    return operation
