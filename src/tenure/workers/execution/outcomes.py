"""What a function's run came to, and what should be recorded for it. Pure: the policy of the runner, in one place."""

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
from tenure.lifecycle.json_text import check_seconds, clean_text, encode
from tenure.lifecycle.operations import Cancel, Complete, DeadLetter, Fail, Operation, Release, Retry
from tenure.lifecycle.records import Job, ReasonCode, Stage

TEXT_LENGTH_MAX = 16_000
AWAY_SECONDS = 1.0
"""How long a job waits that met the database away."""
Errors = tuple[type[BaseException], ...]


class Verdict(StrEnum):
    """What an error says should become of its job."""

    RETRY = "retry"
    FAIL = "fail"
    BURY = "bury"


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The function returned; its result as JSON text."""

    result: str


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The function raised. The error is described as JSON text, and judged where it was raised."""

    error: str
    verdict: Verdict = Verdict.RETRY
    stage: Stage = Stage.EXEC
    reason_code: ReasonCode = ReasonCode.EXHAUSTED_RETRIES
    delay_seconds: float | None = None


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The job is to be looked at again later, through no fault of its own."""

    delay_seconds: float
    cause: str = "snooze"


class Obeyed(msgspec.Struct, frozen=True, tag=True):
    """The function gave way to a request to cancel."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The worker stops, and hands the job back."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The lease is gone: whoever has the job now records what becomes of it."""


Outcome = Returned | Raised | Snoozed | Obeyed | Stopped | Lost


class ErrorPolicy(msgspec.Struct, frozen=True):
    """Which errors of a kind are worth another try. What is in neither list is tried again."""

    retry_on: Errors = ()
    fail_on: Errors = ()

    def verdict(self, error: BaseException) -> Verdict:
        """What the kind says comes before what the error's class says."""
        if isinstance(error, self.retry_on):
            return Verdict.RETRY
        if isinstance(error, self.fail_on):
            return Verdict.FAIL
        if isinstance(error, ValidationError | PolicyViolation):
            return Verdict.BURY
        return Verdict.FAIL if isinstance(error, PermanentError) else Verdict.RETRY


def raised(error: BaseException, policy: ErrorPolicy, *, stage: Stage = Stage.EXEC) -> Outcome:
    """What an error that left the function means."""
    if stage is Stage.INPUT:
        # What does not fit will not fit the next time: a person, or other code, has to look at it.
        return Raised(described(error), Verdict.BURY, stage, ReasonCode.VALIDATION_FAILED)
    if isinstance(error, Snooze) and (delay := _delay(error)) is not None:
        return Snoozed(delay)
    if isinstance(error, CancelRequested):
        return Obeyed()
    if isinstance(error, StoreUnavailable):
        # Our own database was away in the middle of the function: that is not a failure of the job.
        return Snoozed(AWAY_SECONDS, "database_away")
    if isinstance(error, LeaseLost):
        # Where that is so, nothing is recorded any more. Where it was only feared, nothing has failed.
        return Snoozed(AWAY_SECONDS, "lease_doubted")
    reason = next((code for kind, code in _REASONS if isinstance(error, kind)), ReasonCode.EXHAUSTED_RETRIES)
    where = Stage.INPUT if isinstance(error, ValidationError) else stage
    return Raised(described(error), policy.verdict(error), where, reason, _delay(error))


_REASONS = (
    (ValidationError, ReasonCode.VALIDATION_FAILED),
    (PolicyViolation, ReasonCode.POLICY_VIOLATION),
    (DependencyUnavailable, ReasonCode.DEPENDENCY_UNAVAILABLE),
)


def settlement(job: Job, outcome: Outcome) -> Operation | None:
    """The operation that records the outcome; None where this owner has nothing left to record.

    Once the effect is applied there is only one end, whatever the function did afterwards.
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
        case Obeyed():
            return Cancel() if job.cancel_requested else _unasked(job)
        case Raised():
            return _after_error(job, outcome)


def _unasked(job: Job) -> Operation:
    """A function that gives way although nobody asked: an error like any other."""
    error = encode({"type": "CancelRequested", "message": "raised by the job, but nobody had asked for its end"})
    return _after_error(job, Raised(error))


def _after_error(job: Job, raised: Raised) -> Operation:
    if raised.verdict is Verdict.FAIL:
        return Fail(raised.error)
    if raised.verdict is Verdict.BURY:
        return DeadLetter(_buried_for(raised), raised.stage, raised.error)
    if job.failures + 1 < job.policy.max_attempts:
        return Retry(raised.error, raised.delay_seconds)
    if job.policy.on_exhausted == "dead_letter":
        return DeadLetter(raised.reason_code, raised.stage, raised.error)
    return Fail(raised.error, permanent=False)


def _buried_for(raised: Raised) -> ReasonCode:
    """A dead letter at the first error has a reason of its own; exhaustion it is not."""
    exhausted = raised.reason_code is ReasonCode.EXHAUSTED_RETRIES
    return ReasonCode.VALIDATION_FAILED if exhausted else raised.reason_code


def described(error: BaseException) -> str:
    """An error as JSON text that every store can hold, whatever it says."""
    facts: dict[str, Any] = {
        "type": clean_text(type(error).__qualname__),
        "message": _short(_message(error)),
        "traceback": _short("".join(traceback.format_exception(error))),
    }
    return encode(facts, where="error")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is must still end its job
        return f"<{type(error).__qualname__} cannot be shown>"


def _short(text: str) -> str:
    """The beginning and the end: an error says what it is first, and where it came from last."""
    text = clean_text(text)
    if len(text) <= TEXT_LENGTH_MAX:
        return text
    half = TEXT_LENGTH_MAX // 2
    return f"{text[:half]}\n… {len(text) - TEXT_LENGTH_MAX} characters left out …\n{text[-half:]}"


def _delay(error: BaseException) -> float | None:
    """The delay that the error names, if it makes sense: a job must be able to end whatever its error says."""
    if not isinstance(error, TransientError | Snooze) or error.delay_seconds is None:
        return None
    try:
        return check_seconds(error.delay_seconds, "delay_seconds")
    except InvalidInput:
        return None
