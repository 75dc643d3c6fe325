"""Every error that tenure raises, in one tree. Each carries its facts as attributes and says what to do next.

TenureError
├── Refused                   a change was asked for and not made; nothing was written
│   ├── JobNotFound           no such job (never added, or removed by retention)
│   ├── NotAuthorised         this role may not do that, or not now
│   ├── LeaseLost             the caller does not hold the current lease, or it has expired
│   ├── RevisionConflict      the job changed since it was read; carries the current record
│   ├── IllegalTransition     the table has no such arrow from the job's status
│   │   └── AlreadyCommitted  the job's effect has been applied; it can only be finished
│   ├── NotYet                the arrow waits for a moment that the database's clock has not reached
│   └── RequestIdReused       this request id was used before, with another body
├── InvalidInput              a value that no store can hold, or that makes no sense; also a ValueError
│   ├── UnknownKind           no job of this kind is declared
│   └── PayloadRefused        the arguments do not fit the job's function
├── JobError                  raised by a job's own function, to say what should become of its job
│   ├── TransientError        try again, after the backoff or the delay that it names; counts as a failure
│   │   └── DependencyUnavailable  the same, and if it is the last failure the record names the cause
│   ├── PermanentError        trying again would not help: the job fails
│   ├── ValidationError       the input is not what it should be: a dead letter of stage input
│   ├── PolicyViolation       what was asked for is not allowed: a dead letter
│   ├── Snooze                look at it again later; counts no failure
│   └── CancelRequested       the job gives way to a request to cancel
├── DeadlinePassed            a commit block was open for too long and was rolled back; also a TimeoutError
├── JobEnded                  somebody waited for a result, and there is none
│   ├── JobFailed             it failed, or was dead-lettered
│   ├── JobCancelled          it was cancelled
│   └── JobHalted             it reached a limit; carries what there is
└── StoreError
    ├── StoreUnavailable      the database cannot be reached; whether the last write took effect is unknown
    ├── SchemaMismatch        the database is not migrated, or too new for this code
    ├── UsedAfterFork         a store was carried over a fork
    ├── RowPoisoned           one row cannot be written, for a reason of its own; the rest of the batch was
    └── GuardViolated         the database refused what the code should never have sent
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.lifecycle.records import Job


class TenureError(Exception):
    """The root of every error that tenure raises on purpose."""


class Refused(TenureError):
    """A change that was asked for and not made. `current` is the job as it stands, where it is known."""

    def __init__(self, message: str, *, current: Job | None = None) -> None:
        super().__init__(message)
        self.current = current


class JobNotFound(Refused):
    """There is no such job. Retention removes whole jobs, so it may have existed."""

    def __init__(self, job_id: object) -> None:
        super().__init__(f"job {job_id} does not exist; it was never added, or retention has removed it")
        self.job_id = job_id


class NotAuthorised(Refused):
    """The actor's role has no authority for this operation, or lacks the condition that goes with it."""

    def __init__(self, job: Job | None, operation: str, *, role: str, allowed: Iterable[str], why: str = "") -> None:
        self.operation, self.role, self.allowed = operation, role, tuple(allowed)
        reason = why or f"only {', '.join(self.allowed) or 'nobody'} may"
        which = "" if job is None else f" job {job.id}"
        super().__init__(f"role {role} may not {operation}{which}: {reason}", current=job)


class LeaseLost(Refused):
    """The caller's token is not that of the current lease, or the lease has expired. Stop the work."""

    def __init__(self, job: Job, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"job {job.id} cannot {operation} under this lease: it is {job.status} at attempt {job.attempt}, "
            f"and the lease was replaced, revoked or has expired; stop the work, another attempt goes on from here",
            current=job,
        )


class RevisionConflict(Refused):
    """The job has another revision than the one that was decided upon. `current` is what to decide upon now."""

    def __init__(self, job: Job, operation: str, *, expected_rev: int) -> None:
        self.operation, self.expected_rev = operation, expected_rev
        super().__init__(
            f"job {job.id} is at revision {job.rev}, not {expected_rev}, so {operation} was not applied; "
            f"read it again and decide anew",
            current=job,
        )


class IllegalTransition(Refused):
    """The lifecycle has no such arrow from here."""

    def __init__(self, job: Job, operation: str, *, allowed: Iterable[str], why: str = "") -> None:
        self.operation, self.status, self.allowed = operation, job.status, tuple(allowed)
        options = ", ".join(self.allowed) or "nothing, it is terminal"
        because = f" ({why})" if why else ""
        super().__init__(
            f"job {job.id} is {job.status}, so it cannot take {operation}{because}; "
            f"allowed from {job.status}: {options}",
            current=job,
        )


class AlreadyCommitted(IllegalTransition):
    """The job's effect has been applied, once and for good: it can be finished, but no longer changed or repeated."""


class NotYet(Refused):
    """The operation is legal, but waits for a moment that has not come by the database's clock."""

    def __init__(self, job: Job, operation: str, *, waits_for: str) -> None:
        self.operation, self.waits_for = operation, waits_for
        super().__init__(f"job {job.id} cannot take {operation} yet: {waits_for}", current=job)


class RequestIdReused(Refused):
    """A request id names one request for ever; this one was used before for something else."""

    def __init__(self, request_id: str, *, current: Job | None = None) -> None:
        self.request_id = request_id
        super().__init__(
            f"request id {request_id!r} was used before with another body; make a new id for a new request",
            current=current,
        )


class InvalidInput(TenureError, ValueError):
    """A value that cannot be held or makes no sense. `where` names the field. Nothing was written."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}")


class UnknownKind(InvalidInput):
    """No job of this kind is declared in the app that was asked."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        self.kind = kind
        names = ", ".join(sorted(known)) or "none"
        super().__init__("kind", f"{kind!r} is not declared; known are: {names}")


class PayloadRefused(InvalidInput):
    """Arguments that do not fit the function that would run. `where` names the kind and the field."""


class JobError(TenureError):
    """Raised by a job's own function. Its class decides what becomes of the job.

    >>> def charge(card: str) -> None:
    ...     raise TransientError("the bank does not answer", delay_seconds=30)
    """


class TransientError(JobError):
    """A passing error: the job is tried again after its backoff, or after `delay_seconds` where that is given."""

    def __init__(self, message: str = "", *, delay_seconds: float | None = None) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class DependencyUnavailable(TransientError):
    """Something that the job needs is not there just now."""


class PermanentError(JobError):
    """Trying again would not help: the job fails at once."""


class ValidationError(JobError):
    """The input is not what it should be. The job becomes a dead letter, for a person to look at."""


class PolicyViolation(JobError):
    """What the job was asked to do is not allowed. It becomes a dead letter."""


class Snooze(JobError):
    """Hand the job back and look at it again later. No failure is counted."""

    def __init__(self, delay_seconds: float, message: str = "") -> None:
        super().__init__(message or f"snoozed for {delay_seconds} s")
        self.delay_seconds = delay_seconds


class CancelRequested(JobError):
    """Somebody asked for the job's end, and it gives way: it ends as cancelled."""


class DeadlinePassed(TenureError, TimeoutError):
    """A commit block was open for longer than it may be. Everything in it was rolled back."""


class JobEnded(TenureError):
    """There is no result to be had. `job` is the record as it ended."""

    def __init__(self, job: Job, says: str) -> None:
        self.job = job
        super().__init__(f"job {job.id} ({job.kind}) {says}")


class JobFailed(JobEnded):
    """The job failed, or was set aside as a dead letter. `job.last_error` has the error as JSON."""


class JobCancelled(JobEnded):
    """The job was cancelled."""


class JobHalted(JobEnded):
    """The job reached a limit and stopped cleanly. `job.partial_result` has what there is."""


class StoreError(TenureError):
    """Something about the database rather than about a job."""


class StoreUnavailable(StoreError):
    """The database did not answer. A write that was under way may or may not have taken effect:
    repeat it with the same request id."""


class SchemaMismatch(StoreError):
    """The database has no schema, an older one, or one that no longer admits this version of the code."""


class UsedAfterFork(StoreError):
    """A store belongs to the process that opened it: its connections cannot be shared with a child."""


class RowPoisoned(StoreError):
    """One row makes its statement fail. It was set aside, and the rest of its batch went through."""

    def __init__(self, job_id: object, problem: str) -> None:
        self.job_id, self.problem = job_id, problem
        super().__init__(
            f"job {job_id} is spoilt: {problem}; others go on without it. Run `tenure verify` to see what is wrong"
        )


class GuardViolated(StoreError):
    """The database's own guard refused a write. Either tenure has a bug, or the tables were written by hand."""
