"""What can be asked of a job. An operation is a value: it says what is wanted and knows nothing of stores or clocks."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec

from tenure.lifecycle.backoff import retry_delay_ms
from tenure.lifecycle.json_text import check_integer, check_seconds, check_text, digest, encode
from tenure.lifecycle.records import Job, ReasonCode, Stage, milliseconds
from tenure.lifecycle.statuses import TextEnum


class OperationType(TextEnum):
    """The names of the operations."""

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
    """The part of an event that comes from the request alone: it tells a repeated request from a changed one."""

    cause: str | None = None
    detail: str | None = None
    digest: str | None = None


NO_FIELDS = EventFields()


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One thing asked of one job."""

    type: ClassVar[OperationType]

    def event_fields(self) -> EventFields:
        """What the event will repeat of this request."""
        return NO_FIELDS

    def content(self) -> str | None:
        """Text to be kept beside the job; the event has only its digest."""
        return None

    def until_after_ms(self, job: Job) -> int | None:
        """How long after the change the moment lies that it sets (a lease's end, a due time)."""
        return None


class Claim(Operation, frozen=True):
    """Take the job under a new lease, whose secret the claimer has made."""

    type: ClassVar[OperationType] = OperationType.CLAIM
    token: UUID

    def until_after_ms(self, job: Job) -> int | None:
        return job.policy.lease_ms


class Ack(Operation, frozen=True):
    """A remote engine has received the job."""

    type: ClassVar[OperationType] = OperationType.ACK


class Start(Operation, frozen=True):
    """The checks before execution passed, and the work begins."""

    type: ClassVar[OperationType] = OperationType.START


class Heartbeat(Operation, frozen=True):
    """The owner is alive. The lease is renewed once half of its time is gone."""

    type: ClassVar[OperationType] = OperationType.HEARTBEAT

    def until_after_ms(self, job: Job) -> int | None:
        return job.policy.lease_ms


class Progress(Operation, frozen=True):
    """How far the work has come."""

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
    """The work's effect takes place with this, once per job, ever. Carries the result, so that anyone can finish."""

    type: ClassVar[OperationType] = OperationType.COMMIT
    result: str

    def event_fields(self) -> EventFields:
        return EventFields(digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class Complete(Operation, frozen=True):
    """The work is done. Where no commit came before, this is also the commit."""

    type: ClassVar[OperationType] = OperationType.COMPLETE
    result: str

    def event_fields(self) -> EventFields:
        return EventFields(digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class Retry(Operation, frozen=True):
    """A passing error: try again after the seeded backoff, or after `delay_seconds` where the error names one."""

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
    """An error that ends the job: a permanent one, or the last that its policy allows."""

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
    """Tell the job something. It is kept until asked for, so it may come early."""

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
    """Hand the job back without a failure: at shutdown, or to look at it again later."""

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
    """Ask for a soft end: whoever holds the job is told, and may tidy up."""

    type: ClassVar[OperationType] = OperationType.REQUEST_CANCEL
    reason: str = "requested"

    def __post_init__(self) -> None:
        check_text(self.reason, "request_cancel.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(reason=self.reason))


class Cancel(Operation, frozen=True):
    """End the job now. A client's cancel is hard: it revokes the lease at once."""

    type: ClassVar[OperationType] = OperationType.CANCEL
    reason: str = "requested"

    def __post_init__(self) -> None:
        check_text(self.reason, "cancel.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=_detail(reason=self.reason))


class Stall(Operation, frozen=True):
    """The owner is no longer trusted: its lease expired, or it missed two heartbeats."""

    type: ClassVar[OperationType] = OperationType.STALL
    cause: str = "lease_expired"

    def __post_init__(self) -> None:
        check_text(self.cause, "stall.cause", length_max=200)

    def event_fields(self) -> EventFields:
        return EventFields(cause=self.cause)


class Requeue(Operation, frozen=True):
    """Back into the queue for another attempt."""

    type: ClassVar[OperationType] = OperationType.REQUEUE


class Reconcile(Operation, frozen=True):
    """Finish a job whose effect was applied by an owner that then vanished, with the committed result."""

    type: ClassVar[OperationType] = OperationType.RECONCILE

    def event_fields(self) -> EventFields:
        return EventFields(cause="reconciled")


class GiveUp(Operation, frozen=True):
    """A lost job that its policy does not allow to run again."""

    type: ClassVar[OperationType] = OperationType.GIVE_UP
    error: str

    def event_fields(self) -> EventFields:
        return EventFields(cause="lost", detail=_with_error(self.error), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


class TimeOut(Operation, frozen=True):
    """The job stayed longer in its status than its policy allows."""

    type: ClassVar[OperationType] = OperationType.TIME_OUT
    error: str

    def event_fields(self) -> EventFields:
        return EventFields(cause="timeout", detail=_with_error(self.error), digest=digest(self.error))

    def content(self) -> str | None:
        return self.error


class DeadLetter(Operation, frozen=True):
    """Set the job aside for a person to look at, with everything that is known."""

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
    """The error's own JSON text inside the detail's, without decoding it: each attempt's error stays in the log."""
    rest = _detail(**facts)
    return f'{{"error":{error}}}' if rest == "{}" else f'{{"error":{error},{rest[1:]}'
