"""The operations on a job, as values. An operation knows no store and no clock; `decide` turns it into a change."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.backoff import retry_delay_ms
from tenure.lifecycle.causes import TIMEOUT, UNPINNED
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.event_fields import NO_FIELDS, EventFields, claim_detail, detail_of, error_class, with_error
from tenure.lifecycle.json_text import check_choice, check_integer, check_seconds, check_text, digest
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import EndsAs, Job, WaitingFor
from tenure.lifecycle.size_limits import CHILDREN_MAX, PROGRESS_LENGTH_MAX, REV_MAX, TRACE_LENGTH_MAX


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation on one job."""

    type: ClassVar[OperationType]

    def event_fields(self) -> EventFields:
        """The fields of the event that follow from this operation alone."""
        return NO_FIELDS

    def cause_for(self, job: Job) -> str | None:
        """The cause if the request names none. None: the usual cause of the event."""
        return None

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
    code_version: str | None = None

    def event_fields(self) -> EventFields:
        return NO_FIELDS if self.code_version is None else EventFields(detail=claim_detail(self.code_version))

    def until_after_ms(self, job: Job) -> int | None:
        return job.policy.lease_ms


class Ack(Operation, frozen=True):
    """A remote engine has received the job."""

    type: ClassVar[OperationType] = OperationType.ACK


class Start(Operation, frozen=True):
    """Start the execution; the checks before it have passed. `trace` is the W3C traceparent of a remote engine's span
    of the attempt."""

    type: ClassVar[OperationType] = OperationType.START
    trace: str | None = None

    def __post_init__(self) -> None:
        if self.trace is not None:
            check_text(self.trace, "start.trace", length_max=TRACE_LENGTH_MAX)

    def event_fields(self) -> EventFields:
        return NO_FIELDS if self.trace is None else EventFields(detail=detail_of(trace=self.trace))


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
            check_text(self.message, "progress.message", length_max=PROGRESS_LENGTH_MAX)

    def event_fields(self) -> EventFields:
        detail = detail_of(percent=self.percent, message=self.message)
        return EventFields(detail=detail, digest=digest(detail))


class Commit(Operation, frozen=True):
    """Commit the effect, at most once per job. Carries the result, so that recovery can complete the job."""

    type: ClassVar[OperationType] = OperationType.COMMIT
    result: str
    written: str | None = None
    """The detail of the event: the digests of artifacts and messages that the transaction writes with it."""

    def event_fields(self) -> EventFields:
        return EventFields(detail=self.written, digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class Complete(Operation, frozen=True):
    """Complete the job. Without an earlier commit this is also the commit, with the same fields."""

    type: ClassVar[OperationType] = OperationType.COMPLETE
    result: str
    written: str | None = None

    def event_fields(self) -> EventFields:
        return EventFields(detail=self.written, digest=digest(self.result))

    def content(self) -> str | None:
        return self.result


class _WithError(Operation, frozen=True):
    """An operation whose content is an error, as JSON text."""

    error: str

    def content(self) -> str | None:
        return self.error


class Retry(_WithError, frozen=True):
    """Retry after a transient error: after the seeded backoff, or after `delay_seconds` if the error sets one."""

    type: ClassVar[OperationType] = OperationType.RETRY
    delay_seconds: float | None = None
    timed_out: bool = False

    def __post_init__(self) -> None:
        if self.delay_seconds is not None:
            seconds = check_seconds(self.delay_seconds, "retry.delay_seconds")
            msgspec.structs.force_setattr(self, "delay_seconds", seconds)

    def event_fields(self) -> EventFields:
        cause = TIMEOUT if self.timed_out else error_class(self.error)
        detail = with_error(self.error, delay_seconds=self.delay_seconds)
        return EventFields(cause=cause, detail=detail, digest=digest(self.error))

    def until_after_ms(self, job: Job) -> int | None:
        if self.delay_seconds is not None:
            return milliseconds(self.delay_seconds)
        return retry_delay_ms(job.policy.backoff, job_id=job.id, attempt=job.attempt, failures=job.counted_failures + 1)


class Fail(_WithError, frozen=True):
    """Fail the job: a permanent error, or the last failure that its policy allows."""

    type: ClassVar[OperationType] = OperationType.FAIL
    permanent: bool = True
    timed_out: bool = False

    def event_fields(self) -> EventFields:
        cause = TIMEOUT if self.timed_out else "permanent_error" if self.permanent else "exhausted_retries"
        return EventFields(cause=cause, detail=with_error(self.error), digest=digest(self.error))


class Halt(Operation, frozen=True):
    """End the job at a limit, with the partial result that it has."""

    type: ClassVar[OperationType] = OperationType.HALT
    reason: str
    partial_result: str

    def __post_init__(self) -> None:
        check_text(self.reason, "halt.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(cause=self.reason, digest=digest(self.partial_result))

    def content(self) -> str | None:
        return self.partial_result


class Suspend(Operation, frozen=True):
    """Release the worker and wait, at most `delay_seconds`; without a delay, until a signal or a wake.

    `seen_rev` is the revision up to which the code has read signals. A signal or wake after it makes the job due at
    once, so the default 0 misses none. `waiting_for` is "time" with a delay and "signal" without one, unless it is set.
    A job that waits for children is woken once at most `children_max` of its awaited children are live; without it, by
    an explicit wake alone. `cause` replaces the cause that `waiting_for` implies, and `note` explains it. With
    `pinned_version` only workers with that version of the code claim the job from now on.
    """

    type: ClassVar[OperationType] = OperationType.SUSPEND
    delay_seconds: float | None = None
    seen_rev: int = 0
    waiting_for: WaitingFor | None = None
    children_max: int | None = None
    cause: str | None = None
    note: str | None = None
    pinned_version: str | None = None

    def __post_init__(self) -> None:
        texts = ((self.cause, "cause", 200), (self.note, "note", 10_000), (self.pinned_version, "pinned_version", 200))
        for text, where, length_max in texts:
            if text is not None:
                check_text(text, f"suspend.{where}", length_max=length_max)
        waiting_for = self.waiting_for or ("signal" if self.delay_seconds is None else "time")
        check_choice(waiting_for, "suspend.waiting_for", get_args(WaitingFor))
        if waiting_for == "time" and self.delay_seconds is None:
            raise InvalidInput("suspend.delay_seconds", "must be set for a job that waits for a time")
        msgspec.structs.force_setattr(self, "waiting_for", waiting_for)
        check_integer(self.seen_rev, "suspend.seen_rev", least=0, most=REV_MAX)
        if self.children_max is not None:
            check_integer(self.children_max, "suspend.children_max", least=0, most=CHILDREN_MAX)
            if waiting_for != "children":
                raise InvalidInput("suspend.children_max", "must be unset unless the job waits for children")
        if self.pinned_version is not None and waiting_for != "code":
            raise InvalidInput("suspend.pinned_version", "must be unset unless the job waits for code")
        if self.delay_seconds is not None:
            seconds = check_seconds(self.delay_seconds, "suspend.delay_seconds")
            msgspec.structs.force_setattr(self, "delay_seconds", seconds)

    def event_fields(self) -> EventFields:
        detail = detail_of(
            delay_seconds=self.delay_seconds,
            seen_rev=self.seen_rev,
            waiting_for=self.waiting_for,
            children_max=self.children_max,
            note=self.note,
            pinned_version=self.pinned_version,
        )
        return EventFields(cause=self.cause or f"awaits_{self.waiting_for}", detail=detail)

    def until_after_ms(self, job: Job) -> int | None:
        return None if self.delay_seconds is None else milliseconds(self.delay_seconds)


class Signal(Operation, frozen=True):
    """Send the job a signal. It is stored until the job reads it, so it may arrive early. Sets `signal_rev`."""

    type: ClassVar[OperationType] = OperationType.SIGNAL
    name: str
    payload: str = "null"

    def __post_init__(self) -> None:
        check_text(self.name, "signal.name", length_max=200)

    def event_fields(self) -> EventFields:
        return EventFields(detail=detail_of(name=self.name), digest=digest(self.payload))

    def content(self) -> str | None:
        return self.payload


class Wake(Operation, frozen=True):
    """Enough awaited children have ended. Sets `signal_rev`, so that a job that suspends after it does not wait.

    With `unpins` it also ends the pin of the job: workers with any version of the code may claim it from now on.
    """

    type: ClassVar[OperationType] = OperationType.WAKE
    unpins: bool = False

    def event_fields(self) -> EventFields:
        return EventFields(cause=UNPINNED) if self.unpins else NO_FIELDS


class Unwind(Operation, frozen=True):
    """Let the job undo its steps before it ends. Records its later end, and makes the job due.

    `error` becomes its last error, so that the attempt that ends it has one.
    """

    type: ClassVar[OperationType] = OperationType.UNWIND
    ends_as: EndsAs
    cause: str
    error: str | None = None

    def __post_init__(self) -> None:
        check_choice(self.ends_as, "unwind.ends_as", get_args(EndsAs))
        check_text(self.cause, "unwind.cause", length_max=2000)

    def event_fields(self) -> EventFields:
        error = None if self.error is None else digest(self.error)
        return EventFields(cause=self.cause, detail=detail_of(ends_as=self.ends_as), digest=error)

    def content(self) -> str | None:
        return self.error


class Compensate(Operation, frozen=True):
    """The undo steps of a workflow are done. Has the end that follows: the recorded one, if `unwind` recorded one."""

    type: ClassVar[OperationType] = OperationType.COMPENSATE
    ends_as: EndsAs = "failed"
    ends_because: str = "permanent_error"

    def __post_init__(self) -> None:
        check_choice(self.ends_as, "compensate.ends_as", get_args(EndsAs))
        check_text(self.ends_because, "compensate.ends_because", length_max=2000)

    def event_fields(self) -> EventFields:
        return EventFields(detail=detail_of(ends_as=self.ends_as, ends_because=self.ends_because))


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
        detail = None if self.delay_seconds is None else detail_of(delay_seconds=self.delay_seconds)
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
        return EventFields(cause=self.reason)


class Cancel(Operation, frozen=True):
    """Cancel the job now. A client's cancel is hard: it revokes the lease.

    Without a reason, the job ends with the reason of its cancel request: this is how an owner carries out a request.
    """

    type: ClassVar[OperationType] = OperationType.CANCEL
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            check_text(self.reason, "cancel.reason", length_max=2000)

    def event_fields(self) -> EventFields:
        return NO_FIELDS if self.reason is None else EventFields(cause=self.reason)

    def cause_for(self, job: Job) -> str | None:
        return job.cancel_reason


class Stall(Operation, frozen=True):
    """Revoke the lease of a lost owner: the lease expired, or two heartbeats were missed.

    With cause `timeout`: the timeout of the status has passed. `on_timeout` decides what follows.
    """

    type: ClassVar[OperationType] = OperationType.STALL
    cause: str = "lease_expired"

    def __post_init__(self) -> None:
        check_text(self.cause, "stall.cause", length_max=200)

    @property
    def timed_out(self) -> bool:
        return self.cause == TIMEOUT

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


GiveUpCause = Literal["lost", "timeout", "exhausted_retries"]
"""Why a stalled job is given up: it lost its worker, it timed out, or it timed out at its last attempt."""


class GiveUp(_WithError, frozen=True):
    """Fail a stalled job that its policy does not run again."""

    type: ClassVar[OperationType] = OperationType.GIVE_UP
    cause: GiveUpCause = "lost"

    def __post_init__(self) -> None:
        check_choice(self.cause, "give_up.cause", get_args(GiveUpCause))

    def event_fields(self) -> EventFields:
        return EventFields(cause=self.cause, detail=with_error(self.error), digest=digest(self.error))


class TimeOut(_WithError, frozen=True):
    """Fail a job that stayed in its status longer than its policy allows."""

    type: ClassVar[OperationType] = OperationType.TIME_OUT

    def event_fields(self) -> EventFields:
        return EventFields(cause="timeout", detail=with_error(self.error), digest=digest(self.error))


class DeadLetter(Operation, frozen=True):
    """Dead-letter the job, with a record for an operator."""

    type: ClassVar[OperationType] = OperationType.DEAD_LETTER
    reason_code: ReasonCode
    stage: Stage
    error: str

    def event_fields(self) -> EventFields:
        detail = with_error(self.error, stage=self.stage.value)
        return EventFields(cause=self.reason_code.value, detail=detail, digest=digest(self.error))

    def content(self) -> str | None:
        return self.error
