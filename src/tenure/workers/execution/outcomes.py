"""The outcomes of an attempt, and the operation that records each of them. Pure: no I/O, no clock."""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Any

import msgspec

from tenure.errors import (
    CancelRequested,
    DependencyUnavailable,
    InvalidInput,
    LeaseLost,
    PermanentError,
    PolicyViolation,
    Snooze,
    StoreUnavailable,
    TransientError,
    ValidationError,
)
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.json_text import check_seconds, clean_text, encode
from tenure.lifecycle.operations import Cancel, Complete, DeadLetter, Fail, Operation, Release, Retry
from tenure.lifecycle.records import Job

TEXT_LENGTH_MAX = 16_000
UNAVAILABLE_SECONDS = 1.0
"""How long a job waits whose function met an unavailable database."""
Errors = tuple[type[BaseException], ...]


class ErrorAction(StrEnum):
    """What follows an error."""

    RETRY = "retry"
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"


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
    cause: str = "snooze"


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The function stopped because of a cancel request."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The worker stops, and releases the job."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The lease is lost, so this process records nothing."""


Outcome = Returned | Raised | Snoozed | Cancelled | Stopped | Lost


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


def outcome_of_error(error: BaseException, policy: ErrorPolicy, *, stage: Stage = Stage.EXEC) -> Outcome:
    if stage is Stage.INPUT:
        # Invalid input stays invalid. It takes a person, or other code, to change it.
        return Raised(describe_error(error), ErrorAction.DEAD_LETTER, stage, ReasonCode.VALIDATION_FAILED)
    if isinstance(error, Snooze) and (delay := _delay(error)) is not None:
        return Snoozed(delay)
    if isinstance(error, CancelRequested):
        return Cancelled()
    if isinstance(error, StoreUnavailable):
        # The job's own database was unavailable while the function ran. That is no failure of the job.
        return Snoozed(UNAVAILABLE_SECONDS, "database_unavailable")
    if isinstance(error, LeaseLost):
        # If the lease is lost, nothing is recorded. If only its local deadline has passed, nothing has failed.
        return Snoozed(UNAVAILABLE_SECONDS, "lease_uncertain")
    reason = next((code for kind, code in _REASONS if isinstance(error, kind)), ReasonCode.EXHAUSTED_RETRIES)
    where = Stage.INPUT if isinstance(error, ValidationError) else stage
    return Raised(describe_error(error), policy.action(error), where, reason, _delay(error))


_REASONS = (
    (ValidationError, ReasonCode.VALIDATION_FAILED),
    (PolicyViolation, ReasonCode.POLICY_VIOLATION),
    (DependencyUnavailable, ReasonCode.DEPENDENCY_UNAVAILABLE),
)


def operation_for(job: Job, outcome: Outcome) -> Operation | None:
    """The operation that records the outcome; None if the lease is lost.

    A committed job is completed with its committed result, whatever the function did afterwards.
    """
    if isinstance(outcome, Lost):
        return None
    if job.committed:
        return Complete(job.committed_result or "null")
    match outcome:
        case Returned(result):
            return Complete(result)
        case Snoozed(delay_seconds, cause):
            return Release(cause, delay_seconds)
        case Stopped():
            return Release("shutdown")
        case Cancelled():
            return Cancel() if job.cancel_requested else _unrequested_cancel(job)
        case Raised():
            return _after_error(job, outcome)


def _unrequested_cancel(job: Job) -> Operation:
    error = encode({"type": "CancelRequested", "message": "raised by the job without a cancel request"})
    return _after_error(job, Raised(error))


def _after_error(job: Job, raised: Raised) -> Operation:
    if raised.action is ErrorAction.FAIL:
        return Fail(raised.error)
    if raised.action is ErrorAction.DEAD_LETTER:
        return DeadLetter(_dead_letter_reason(raised), raised.stage, raised.error)
    if job.failures + 1 < job.policy.max_attempts:
        return Retry(raised.error, raised.delay_seconds)
    if job.policy.on_exhausted == "dead_letter":
        return DeadLetter(raised.reason_code, raised.stage, raised.error)
    return Fail(raised.error, permanent=False)


def _dead_letter_reason(raised: Raised) -> ReasonCode:
    """The reason of a job that is dead-lettered at its first error, which did not exhaust any retries."""
    exhausted = raised.reason_code is ReasonCode.EXHAUSTED_RETRIES
    return ReasonCode.VALIDATION_FAILED if exhausted else raised.reason_code


def describe_error(error: BaseException) -> str:
    """The error as JSON text that every store accepts."""
    facts: dict[str, Any] = {
        "type": clean_text(type(error).__qualname__),
        "message": _short(_message(error)),
        "traceback": _short("".join(traceback.format_exception(error))),
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
