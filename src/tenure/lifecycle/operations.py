"""The operations on a job, as values. An operation knows no store and no clock; `decide` turns it into a change."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec

from tenure.lifecycle.backoff import retry_delay_ms
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.json_text import check_integer, check_seconds, check_text, digest, encode
from tenure.lifecycle.records import Job, milliseconds
from tenure.lifecycle.statuses import TextEnum


class OperationType(TextEnum):
    """The type of an operation."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    ACK = "ack"
    START = "start"
    HEARTBEAT = "heartbeat"
    PROGRESS = "progress"
    COMMIT = "commit"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    HALT = "halt"
    SUSPEND = "suspend"
    SIGNAL = "signal"
    WAKE = "wake"
    COMPENSATE = "compensate"
    RELEASE = "release"
    REQUEST_CANCEL = "request_cancel"
    CANCEL = "cancel"
    STALL = "stall"
    REQUEUE = "requeue"
    RECONCILE = "reconcile"
    GIVE_UP = "give_up"
    TIME_OUT = "time_out"
    DEAD_LETTER = "dead_letter"


class EventFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event that follow from the request alone. A repeated request has the same."""

    cause: str | None = None
    detail: str | None = None
    digest: str | None = None


NO_FIELDS = EventFields()


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation on one job."""

    type: ClassVar[OperationType]

    def event_fields(self) -> EventFields:
        """The fields of the event that follow from this operation alone."""
        return NO_FIELDS

    def content(self) -> str | None:
        """Content to store beside the job. The event carries its digest."""
        return None

    def until_after_ms(self, job: Job) -> int | None:
        """The distance from the change to the `until_at` that it sets: the end of the lease, or the due time."""
        return None


class Claim(Operation, frozen=True):
    """Claim the job under a new lease. The claimer makes the lease's token."""

    type: ClassVar[OperationType] = OperationType.CLAIM
    token: UUID

    def until_after_ms(self, job: Job) -> int | None:
        return job.policy.lease_ms


class Ack(Operation, frozen=True):
    """A remote engine has received the job."""

    type: ClassVar[OperationType] = OperationType.ACK


class Start(Operation, frozen=True):
    """Start the execution; the checks before it have passed."""

    type: ClassVar[OperationType] = OperationType.START


class Heartbeat(Operation, frozen=True):
    """The owner is alive. Renews the lease once half of its time has passed."""

    type: ClassVar[OperationType] = OperationType.HEARTBEAT

    def until_after_ms(self, job: Job) -> int | None:
        return job.policy.lease_ms


class Progress(Operation, frozen=True):
    """Report progress, 0 to 100, with an optional message."""

    type: ClassVar[OperationType] = OperationType.PROGRESS
    percent: int
    message: str | None = None

    def __post_init__(self) -> None:
        check_integer(self.percent, "progress.percent", least=0, most=100)
        if self.message is not None:
            check_text(self.message, "progress.message", length_max=2000)

    def event_fields(self) -> EventFields:
        detail = _detail(percent=self.percent, message=self.message)
        return EventFields(detail=detail, digest=digest(detail))


class Commit(Operation, frozen=True):
    """Commit the effect, at most once per job. Carries the result, so that recovery can complete the job."""

    type: ClassVar[OperationType] = OperationType.COMMIT
    result: str

    def event_fields(self) -> EventFields:
        return EventFields(digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class Complete(Operation, frozen=True):
    """Complete the job. Without an earlier commit this is also the commit."""

    type: ClassVar[OperationType] = OperationType.COMPLETE
    result: str

    def event_fields(self) -> EventFields:
        return EventFields(digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class Retry(Operation, frozen=True):
    """Retry after a transient error: after the seeded backoff, or after `delay_seconds` if the error sets one."""

    type: ClassVar[OperationType] = OperationType.RETRY
    error: str
    delay_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.delay_seconds is not None:
            seconds = check_seconds(self.delay_seconds, "retry.delay_seconds")
            msgspec.structs.force_setattr(self, "delay_seconds", seconds)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_with_error(self.error, delay_seconds=self.delay_seconds), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error

    def until_after_ms(self, job: Job) -> int | None:
        if self.delay_seconds is not None:
            return milliseconds(self.delay_seconds)
        return retry_delay_ms(job.policy.backoff, job_id=job.id, attempt=job.attempt, failures=job.failures + 1)


class Fail(Operation, frozen=True):
    """Fail the job: a permanent error, or the last failure that its policy allows."""

    type: ClassVar[OperationType] = OperationType.FAIL
    error: str
    permanent: bool = True

    def event_fields(self) -> EventFields:
        cause = "permanent_error" if self.permanent else "exhausted_retries"
        return EventFields(cause=cause, detail=_with_error(self.error), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


class Halt(Operation, frozen=True):
    """A limit was reached: stop cleanly and keep what there is."""

    type: ClassVar[OperationType] = OperationType.HALT
    reason: str
    partial_result: str

    def __post_init__(self) -> None:
        check_text(self.reason, "halt.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(reason=self.reason), digest=digest(self.partial_result))

    def content(self) -> str | None:
        return self.partial_result


class Suspend(Operation, frozen=True):
    """Let go of the worker until a time, or (without a delay) until a signal or the last child says so."""

    type: ClassVar[OperationType] = OperationType.SUSPEND
    delay_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.delay_seconds is not None:
            seconds = check_seconds(self.delay_seconds, "suspend.delay_seconds")
            msgspec.structs.force_setattr(self, "delay_seconds", seconds)

    def event_fields(self) -> EventFields:
        return (
            NO_FIELDS if self.delay_seconds is None else EventFields(detail=_detail(delay_seconds=self.delay_seconds))
        )

    def until_after_ms(self, job: Job) -> int | None:
        return None if self.delay_seconds is None else milliseconds(self.delay_seconds)


class Signal(Operation, frozen=True):
    """Send the job a signal. It is stored until the job reads it, so it may arrive early."""

    type: ClassVar[OperationType] = OperationType.SIGNAL
    name: str
    payload: str = "null"

    def __post_init__(self) -> None:
        check_text(self.name, "signal.name", length_max=200)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(name=self.name), digest=digest(self.payload))

    def content(self) -> str | None:
        return self.payload


class Wake(Operation, frozen=True):
    """The last awaited child ended."""

    type: ClassVar[OperationType] = OperationType.WAKE


class Compensate(Operation, frozen=True):
    """The undo steps of a workflow are done."""

    type: ClassVar[OperationType] = OperationType.COMPENSATE


class Release(Operation, frozen=True):
    """Release the lease without a failure: at shutdown, or to run again after `delay_seconds`."""

    type: ClassVar[OperationType] = OperationType.RELEASE
    cause: str = "shutdown"
    delay_seconds: float | None = None

    def __post_init__(self) -> None:
        check_text(self.cause, "release.cause", length_max=200)
        if self.delay_seconds is not None:
            seconds = check_seconds(self.delay_seconds, "release.delay_seconds")
            msgspec.structs.force_setattr(self, "delay_seconds", seconds)

    def event_fields(self) -> EventFields:
        detail = None if self.delay_seconds is None else _detail(delay_seconds=self.delay_seconds)
        return EventFields(cause=self.cause, detail=detail)

    def until_after_ms(self, job: Job) -> int | None:
        return None if self.delay_seconds is None else milliseconds(self.delay_seconds)


class RequestCancel(Operation, frozen=True):
    """Request a soft cancel. A running job receives the request and ends itself."""

    type: ClassVar[OperationType] = OperationType.REQUEST_CANCEL
    reason: str = "requested"

    def __post_init__(self) -> None:
        check_text(self.reason, "request_cancel.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(reason=self.reason))


class Cancel(Operation, frozen=True):
    """Cancel the job now. A client's cancel is hard: it revokes the lease."""

    type: ClassVar[OperationType] = OperationType.CANCEL
    reason: str = "requested"

    def __post_init__(self) -> None:
        check_text(self.reason, "cancel.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(reason=self.reason))


class Stall(Operation, frozen=True):
    """Revoke the lease of a lost owner: the lease expired, or two heartbeats were missed."""

    type: ClassVar[OperationType] = OperationType.STALL
    cause: str = "lease_expired"

    def __post_init__(self) -> None:
        check_text(self.cause, "stall.cause", length_max=200)

    def event_fields(self) -> EventFields:
        return EventFields(cause=self.cause)


class Requeue(Operation, frozen=True):
    """Put a stalled job back into its queue."""

    type: ClassVar[OperationType] = OperationType.REQUEUE


class Reconcile(Operation, frozen=True):
    """Complete a committed job whose owner was lost, with the committed result."""

    type: ClassVar[OperationType] = OperationType.RECONCILE

    def event_fields(self) -> EventFields:
        return EventFields(cause="reconciled")


class GiveUp(Operation, frozen=True):
    """Fail a lost job that its policy does not run again."""

    type: ClassVar[OperationType] = OperationType.GIVE_UP
    error: str

    def event_fields(self) -> EventFields:
        return EventFields(cause="lost", detail=_with_error(self.error), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


class TimeOut(Operation, frozen=True):
    """Fail a job that stayed in its status longer than its policy allows."""

    type: ClassVar[OperationType] = OperationType.TIME_OUT
    error: str

    def event_fields(self) -> EventFields:
        return EventFields(cause="timeout", detail=_with_error(self.error), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


class DeadLetter(Operation, frozen=True):
    """Dead-letter the job, with a record for an operator."""

    type: ClassVar[OperationType] = OperationType.DEAD_LETTER
    reason_code: ReasonCode
    stage: Stage
    error: str

    def event_fields(self) -> EventFields:
        detail = _with_error(self.error, stage=self.stage.value)
        return EventFields(cause=self.reason_code.value, detail=detail, digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


def _detail(**facts: object) -> str:
    return encode({name: fact for name, fact in facts.items() if fact is not None}, where="detail")


def _with_error(error: str, **facts: object) -> str:
    """A detail that embeds the error's JSON text as it is, so that the log keeps the error of each attempt."""
    rest = _detail(**facts)
    return f'{{"error":{error}}}' if rest == "{}" else f'{{"error":{error},{rest[1:]}'
