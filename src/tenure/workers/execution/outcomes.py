"""The outcomes of an attempt, and the operation that records each of them. Pure: no I/O, no clock."""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import (
    CancelRequested,
    DependencyUnavailable,
    InvalidInput,
    LeaseLost,
    PermanentError,
    PolicyViolation,
    ResultRefused,
    Snooze,
    StoreUnavailable,
    TransientError,
    ValidationError,
)
from tenure.lifecycle.causes import TIMEOUT
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.json_text import check_seconds, clean_text, encode
from tenure.lifecycle.operations import Cancel, Complete, DeadLetter, Fail, Halt, Operation, Release, Retry, Suspend
from tenure.lifecycle.records import Job, WaitingFor
from tenure.observe.tracebacks import user_traceback
from tenure.workers.timeouts import timeout_error

TEXT_LENGTH_MAX = 16_000
UNAVAILABLE_SECONDS = 1.0
"""How long a job waits that is released because of its own database."""
SNOOZE = "snooze"
UNDO = "undo"
"""The cause of a release after which the next attempt undoes steps."""
PERMANENT_ERROR = "permanent_error"
_LOST_END = encode(
    {"type": "Compensated", "message": "its steps are undone; the error that led to it was not recorded"}
)
UNKNOWN_ARGUMENT = "unknown_argument"
"""The cause of a release for a worker with newer code."""
UNKNOWN_ARGUMENT_SECONDS = 30.0
"""How long a job waits that is released for a worker with newer code."""
UNKNOWN_ARGUMENT_RELEASES_MAX = 10
Errors = tuple[type[BaseException], ...]


class ErrorAction(StrEnum):
    """What follows an error."""

    RETRY = "retry"
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"
    END = "end"
    """No retry: the job ends by its `on_exhausted`."""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The function returned; its result as JSON text."""

    result: str


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The function raised. The error is JSON text, and the action was chosen in the process that raised it."""

    error: str
    action: ErrorAction = ErrorAction.RETRY
    stage: Stage = Stage.EXEC
    reason_code: ReasonCode = ReasonCode.EXHAUSTED_RETRIES
    delay_seconds: float | None = None


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The job runs again later. This is no failure."""

    delay_seconds: float
    cause: str = SNOOZE


class UnknownArgument(msgspec.Struct, frozen=True, tag=True):
    """The payload has an argument that the function does not have. The job is released for a worker with newer code;
    after so many releases it is a dead letter. `releases` is how many there were, or 0 if there is room for more."""

    argument: str
    error: str
    releases: int = 0


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The function stopped because of a cancel request."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The worker stops, or the claim was answered too late to start the job, which is released. This is no failure."""

    cause: str = "shutdown"


class TimedOut(msgspec.Struct, frozen=True, tag=True):
    """The function ran for longer than its policy allows, or to the deadline of the job, and was interrupted."""

    at_deadline: bool = False


class Suspended(msgspec.Struct, frozen=True, tag=True):
    """The function waits, and holds no worker meanwhile. This is no failure."""

    waiting_for: WaitingFor
    delay_seconds: float | None = None
    seen_rev: int = 0
    children_max: int | None = None
    cause: str | None = None
    note: str | None = None
    pinned_version: str | None = None


class Halted(msgspec.Struct, frozen=True, tag=True):
    """A limit or a policy has stopped the run. The partial result is JSON text."""

    reason: str
    partial_result: str


class UndoUnfinished(msgspec.Struct, frozen=True, tag=True):
    """The attempt of a run that ends has not undone all steps: the next attempt continues. With an error it is a
    failure; after the last one the run is a dead letter."""

    error: str | None = None
    timed_out: bool = False


class UndoFailed(msgspec.Struct, frozen=True, tag=True):
    """An undo step has failed for good, so the run cannot be compensated."""

    error: str


class Compensated(msgspec.Struct, frozen=True, tag=True):
    """All steps are undone, and the store has recorded that: the run ends as was recorded, with this error."""

    error: str | None = None


class Lost(msgspec.Struct, frozen=True, tag=True):
    """This process records nothing, and recovery takes the job over. By default since its lease is lost."""

    because: str = "lost its lease"


Outcome = (
    Returned
    | Raised
    | Snoozed
    | UnknownArgument
    | Cancelled
    | Stopped
    | TimedOut
    | Suspended
    | Halted
    | UndoUnfinished
    | UndoFailed
    | Compensated
    | Lost
)


class EndsAttempt(BaseException):
    """Ends the attempt with this outcome. Raised by what runs a function, never by the function."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class ErrorPolicy(msgspec.Struct, frozen=True):
    """Which errors of a job definition are retried. An error in neither list is retried unless its class forbids it."""

    retry_on: Errors = ()
    fail_on: Errors = ()

    def action(self, error: BaseException) -> ErrorAction:
        """The definition's lists take precedence over the error's class."""
        if isinstance(error, self.retry_on):
            return ErrorAction.RETRY
        if isinstance(error, self.fail_on):
            return ErrorAction.FAIL
        if isinstance(error, ValidationError | PolicyViolation):
            return ErrorAction.DEAD_LETTER
        return ErrorAction.FAIL if isinstance(error, PermanentError) else ErrorAction.RETRY


def release_cause(error: BaseException, *, job_id: UUID, database: str) -> str | None:
    """Why the job is released instead of failed: its own database or its own lease. None: the error is a failure.

    An outage of another database is a failure like any other: it would otherwise release the job for ever.
    """
    if isinstance(error, StoreUnavailable) and error.where == database:
        return "database_unavailable"
    if isinstance(error, LeaseLost) and error.current is not None and error.current.id == job_id:
        # If the lease is lost, nothing is recorded. If only its local deadline has passed, nothing has failed.
        return "lease_uncertain"
    return None


def outcome_of_error(error: BaseException, policy: ErrorPolicy, *, stage: Stage = Stage.EXEC) -> Outcome:
    if stage is Stage.FETCH:
        return Raised(describe_error(error), ErrorAction.DEAD_LETTER, stage, ReasonCode.PARSE_ERROR)
    if stage is Stage.INPUT:
        # Invalid input stays invalid until an operator or other code changes it.
        return Raised(describe_error(error), ErrorAction.DEAD_LETTER, stage, ReasonCode.VALIDATION_FAILED)
    if isinstance(error, ResultRefused):
        # A retry would repeat the work of the function for a result that is refused again.
        return Raised(describe_error(error), ErrorAction.END, Stage.OUTPUT, ReasonCode.VALIDATION_FAILED)
    if isinstance(error, Snooze) and (delay := _delay(error)) is not None:
        return Snoozed(delay)
    if isinstance(error, CancelRequested):
        return Cancelled()
    reason = next((code for kind, code in _REASONS if isinstance(error, kind)), ReasonCode.EXHAUSTED_RETRIES)
    where = Stage.INPUT if isinstance(error, ValidationError) else stage
    return Raised(describe_error(error), policy.action(error), where, reason, _delay(error))


_REASONS = (
    (ValidationError, ReasonCode.VALIDATION_FAILED),
    (PolicyViolation, ReasonCode.POLICY_VIOLATION),
    (DependencyUnavailable, ReasonCode.DEPENDENCY_UNAVAILABLE),
)


def operation_for(job: Job, outcome: Outcome) -> Operation | None:
    """The operation that records the outcome; None if nothing is to be recorded.

    A committed job is completed with its committed result, whatever the function did afterwards.
    """
    if isinstance(outcome, Lost):
        return None
    if job.committed:
        return Complete(job.committed_result or "null")
    if job.compensated:
        # Whatever ended the attempt: nothing but the recorded end is legal now.
        error = outcome.error if isinstance(outcome, Compensated) else None
        return recorded_end(job, error or job.last_error or _LOST_END)
    if job.unwinding and (failure := _undo_failure(job, outcome)):
        return _after_failed_undo(job, failure, timed_out=isinstance(outcome, TimedOut))
    match outcome:
        case Returned(result):
            return Complete(result)
        case Snoozed(delay_seconds, cause):
            return Release(cause, delay_seconds)
        case UnknownArgument():
            return _for_newer_code(outcome)
        case Stopped(cause):
            return Release(cause)
        case UndoUnfinished(error, timed_out):
            return Release(UNDO) if error is None else _after_failed_undo(job, Raised(error), timed_out=timed_out)
        case UndoFailed():
            return DeadLetter(ReasonCode.COMPENSATION_FAILED, Stage.EXEC, outcome.error)
        case Compensated():
            raise AssertionError(f"job {job.id} has no record that its steps are undone")
        case TimedOut(at_deadline):
            return _after_timeout(job, at_deadline=at_deadline)
        case Suspended():
            return Suspend(
                delay_seconds=outcome.delay_seconds,
                seen_rev=outcome.seen_rev,
                waiting_for=outcome.waiting_for,
                children_max=outcome.children_max,
                cause=outcome.cause,
                note=outcome.note,
                pinned_version=outcome.pinned_version,
            )
        case Halted(reason, partial_result):
            return Halt(reason, partial_result)
        case Cancelled():
            return Cancel() if job.cancel_requested else _unrequested_cancel(job)
        case Raised():
            return _after_error(job, outcome)


def recorded_end(job: Job, error: str) -> Operation:
    """The end of a job whose steps are undone."""
    if job.ends_as == "cancelled":
        return Cancel()
    if job.ends_as == "dead_lettered":
        return DeadLetter(_recorded_reason(job), Stage.EXEC, error)
    return Fail(error, permanent=job.ends_because == PERMANENT_ERROR, timed_out=job.ends_because == TIMEOUT)


def _recorded_reason(job: Job) -> ReasonCode:
    codes = [code for code in ReasonCode if code.value == job.ends_because]
    return codes[0] if codes else ReasonCode.EXHAUSTED_RETRIES


def _undo_failure(job: Job, outcome: Outcome) -> Raised | None:
    """The failure of an attempt that had to undo steps and did not end with `compensate`. None: it is released."""
    match outcome:
        case Raised():
            return outcome
        case TimedOut():
            return Raised(timeout_error(job))
        case UnknownArgument(error=error, releases=releases) if releases >= UNKNOWN_ARGUMENT_RELEASES_MAX:
            return Raised(error, stage=Stage.INPUT)
        case Returned() | Cancelled():
            return Raised(encode({"type": "NotUndone", "message": "the attempt ended before its steps were undone"}))
        case _:
            return None


def _after_failed_undo(job: Job, raised: Raised, *, timed_out: bool) -> Operation:
    """The job must not end before its steps are undone: neither the error nor the policy forbids a retry."""
    if job.counted_failures + 1 < job.policy.max_attempts:
        return Retry(raised.error, raised.delay_seconds, timed_out=timed_out)
    return DeadLetter(ReasonCode.COMPENSATION_FAILED, raised.stage, raised.error)


def _for_newer_code(outcome: UnknownArgument) -> Operation:
    if outcome.releases < UNKNOWN_ARGUMENT_RELEASES_MAX:
        return Release(UNKNOWN_ARGUMENT, UNKNOWN_ARGUMENT_SECONDS)
    return DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, outcome.error)


def _after_timeout(job: Job, *, at_deadline: bool) -> Operation:
    """A timeout is a failure like any other where the policy is to retry. The cause of each end is the timeout.

    At its deadline the job ends: it fails, unless the policy dead-letters it."""
    error, policy = timeout_error(job, at_deadline=at_deadline), job.policy
    ends_as: str = policy.on_timeout
    if ends_as == "retry" and not at_deadline:
        if job.failures + 1 < policy.max_attempts:
            return Retry(error, timed_out=True)
        ends_as = policy.on_exhausted
    if ends_as == "dead_letter":
        return DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, error)
    return Fail(error, permanent=at_deadline or policy.on_timeout == "fail", timed_out=True)


def _unrequested_cancel(job: Job) -> Operation:
    error = encode({"type": "CancelRequested", "message": "raised by the job without a cancel request"})
    return _after_error(job, Raised(error))


def _after_error(job: Job, raised: Raised) -> Operation:
    if raised.action is ErrorAction.FAIL:
        return Fail(raised.error)
    if raised.action is ErrorAction.DEAD_LETTER:
        return DeadLetter(_dead_letter_reason(raised), raised.stage, raised.error)
    if raised.action is ErrorAction.RETRY and job.failures + 1 < job.policy.max_attempts:
        return Retry(raised.error, raised.delay_seconds)
    if job.policy.on_exhausted == "dead_letter":
        return DeadLetter(raised.reason_code, raised.stage, raised.error)
    return Fail(raised.error, permanent=raised.action is ErrorAction.END)


def _dead_letter_reason(raised: Raised) -> ReasonCode:
    """The reason of a job that is dead-lettered at its first error, which did not exhaust any retries."""
    exhausted = raised.reason_code is ReasonCode.EXHAUSTED_RETRIES
    return ReasonCode.VALIDATION_FAILED if exhausted else raised.reason_code


def describe_error(error: BaseException) -> str:
    """The error as JSON text that every store accepts."""
    facts: dict[str, Any] = {
        "type": clean_text(type(error).__qualname__),
        "message": _short(_message(error)),
        "traceback": _short("".join(traceback.format_exception(type(error), error, user_traceback(error)))),
    }
    return encode(facts, where="error")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error whose message cannot be built must still end its job
        return f"<{type(error).__qualname__} without a message>"


def _short(text: str) -> str:
    """The beginning and the end of a long text: the kind of error comes first, its origin last."""
    text = clean_text(text)
    if len(text) <= TEXT_LENGTH_MAX:
        return text
    half = TEXT_LENGTH_MAX // 2
    return f"{text[:half]}\n… {len(text) - TEXT_LENGTH_MAX} characters left out …\n{text[-half:]}"


def _delay(error: BaseException) -> float | None:
    """The delay that the error names, if it is valid: an invalid one must not keep the job from ending."""
    if not isinstance(error, TransientError | Snooze) or error.delay_seconds is None:
        return None
    try:
        return check_seconds(error.delay_seconds, "delay_seconds")
    except InvalidInput:
        return None
