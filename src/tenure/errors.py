"""Every error that tenure raises, in one tree. Each carries its facts as attributes; its message states the remedy.

TenureError
├── Refused                   an operation was not applied; nothing was written
│   ├── JobNotFound           no such job (never enqueued, or removed by retention)
│   ├── NotAuthorised         the role has no authority for the operation
│   ├── LeaseConflictError    another owner or another change came first
│   │   ├── LeaseLost         the token is not that of the current lease, or the lease has expired
│   │   └── RevisionConflict  the job changed since it was read; carries the current record
│   ├── IllegalTransition     no transition from the job's status for this operation
│   │   └── AlreadyCommitted  the job has committed; it can only be finished
│   ├── NotYet                legal, but not before a time that the database's clock has not reached
│   ├── RequestIdReused       the request id was used before with another body
│   ├── KeyUsed               the key belongs to an earlier job
│   ├── TooManySignals        the job was sent as many signals as it takes
│   └── DedupeKeyConflict     a live job of another kind has the dedupe key
├── InvalidInput              a value that no store accepts; also a ValueError
│   ├── UnknownKind           the app declares no job of this kind
│   ├── PayloadRefused        the arguments do not fit the job's function
│   └── ResultRefused         the result of the job's function cannot be stored
├── SignatureRefused          a webhook request is not signed by the sender, or not recent
├── AddressRefused            a webhook may not connect to this host; nothing was sent
├── JobError                  raised by a job's function; the class decides the outcome
│   ├── TransientError        retry after the backoff, or after `delay_seconds`; counts as a failure
│   │   └── DependencyUnavailable  the same; names the cause if it is the last failure
│   ├── PermanentError        no retry: the job fails
│   ├── ValidationError       invalid input: a dead letter of stage input
│   ├── PolicyViolation       the job is not allowed: a dead letter
│   ├── Snooze                run again later; counts no failure
│   └── CancelRequested       the job accepts a request to cancel
├── StepFailed                a step of a workflow has failed for good; carries type, message and traceback
├── StepUnreadable            the recorded result of a step does not fit the code's type; the step is not run again
├── StepCallRefused           a call of the run that could not be recorded in an order that a replay repeats
├── CheckpointNotSaved        the outcome of a step could not be saved; the attempt ends
├── DeadlinePassed            a commit block exceeded its deadline and was rolled back; also a TimeoutError
├── JobEnded                  the job ended without a result
│   ├── JobFailed             failed, or dead-lettered
│   ├── JobCancelled          cancelled
│   └── JobHalted             stopped at a limit; carries the partial result
└── StoreError
    ├── StoreUnavailable      the database did not answer; whether the last write took effect is unknown
    │   └── TooManyConnections  the server accepts no further connection of this role or database
    ├── JobLocked             another transaction keeps the job's row locked; nothing was written
    ├── DatabaseReplaced      the file was deleted or replaced while it was open; nothing was written
    ├── SchemaMismatch        the database is not migrated, or too new for this version
    ├── UsedAfterFork         a store was used in a forked child
    ├── RowPoisoned           one row makes its statement fail; it is quarantined, the rest of the batch is written
    ├── PrivilegeMissing      the role of the connection lacks a grant in the database
    └── GuardViolated         a guard in the database refused a write
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.lifecycle.records import Job


class TenureError(Exception):
    """The root of every error that tenure raises on purpose. Drivers and job functions raise their own."""


class Refused(TenureError):
    """The operation was not applied, and nothing was written. `current` is the job's record, where it is known."""

    def __init__(self, message: str, *, current: Job | None = None) -> None:
        super().__init__(message)
        self.current = current


class JobNotFound(Refused):
    """No job has this id. It may have existed: retention removes whole jobs."""

    def __init__(self, job_id: object) -> None:
        super().__init__(f"job {job_id} does not exist; it was never enqueued, or retention removed it")
        self.job_id = job_id


class NotAuthorised(Refused):
    """The actor's role has no authority for the operation, or a condition of its authority does not hold."""

    def __init__(self, job: Job | None, operation: str, *, role: str, allowed: Iterable[str], why: str = "") -> None:
        self.operation, self.role, self.allowed = operation, role, tuple(allowed)
        reason = why or f"only {', '.join(self.allowed) or 'no role'} may"
        which = "" if job is None else f" job {job.id}"
        super().__init__(f"role {role} may not {operation}{which}: {reason}", current=job)


class LeaseConflictError(Refused):
    """Another owner or another change came first: the lease is not the current one, or the revision is not."""


class LeaseLost(LeaseConflictError):
    """The token is not that of the current lease, or the lease has expired. Stop the work."""

    def __init__(self, job: Job, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"job {job.id} (attempt {job.attempt}, {job.status}): {operation} refused, since the lease has expired or "
            f"was revoked or replaced; stop the work, another attempt continues the job",
            current=job,
        )


class RevisionConflict(LeaseConflictError):
    """The job's revision is not the expected one. Decide again on `current`."""

    def __init__(self, job: Job, operation: str, *, expected_rev: int) -> None:
        self.operation, self.expected_rev = operation, expected_rev
        super().__init__(
            f"job {job.id} is at revision {job.rev}, not {expected_rev}, so {operation} was not applied; "
            f"decide again on the current record",
            current=job,
        )


class IllegalTransition(Refused):
    """The lifecycle has no transition for the operation from the job's status."""

    def __init__(self, job: Job, operation: str, *, allowed: Iterable[str], why: str = "") -> None:
        self.operation, self.status, self.allowed = operation, job.status, tuple(allowed)
        options = ", ".join(self.allowed) or "none, the status is terminal"
        because = f" ({why})" if why else ""
        super().__init__(
            f"job {job.id} is {job.status}, so {operation} is not allowed{because}; "
            f"allowed from {job.status}: {options}",
            current=job,
        )


class AlreadyCommitted(IllegalTransition):
    """The job has committed. It can be finished, and not run, retried or changed any more."""


class NotYet(Refused):
    """The operation is legal, but only from a time that the database's clock has not reached."""

    def __init__(self, job: Job, operation: str, *, waits_for: str) -> None:
        self.operation, self.waits_for = operation, waits_for
        super().__init__(f"job {job.id}: {operation} is not allowed yet: {waits_for}", current=job)


class RequestIdReused(Refused):
    """The request id was used before with another body. An id names one request for as long as its job is kept."""

    def __init__(self, request_id: str, *, current: Job | None = None) -> None:
        self.request_id = request_id
        super().__init__(
            f"request id {request_id!r} was used before with another body; use a new id for a new request",
            current=current,
        )


class KeyUsed(Refused):
    """The key was used before, by job `current`, and the enqueue refuses a used key. Nothing was enqueued for it."""

    def __init__(self, key: str, *, current: Job) -> None:
        self.key = key
        super().__init__(
            f"key {key!r} of kind {current.kind!r} was used before, by job {current.id}, which is {current.status}; "
            f'use another key, or if_used="return" to get that job',
            current=current,
        )


class TooManySignals(Refused):
    """The job was sent `signals_max` signals, read or not, and takes no more. Nothing was stored.

    `run.continue_as` continues the run as a new one, with the unread signals only. The option `signals_max` allows more
    for jobs that are enqueued from now on.
    """

    def __init__(self, job: Job, *, signals_max: int) -> None:
        self.signals_max = signals_max
        super().__init__(
            f"job {job.id} was sent {signals_max} signals, which is its limit, so this one was not stored; let the run "
            f"go on as a new one with run.continue_as, or declare {job.kind!r} with a greater signals_max",
            current=job,
        )


class DedupeKeyConflict(Refused):
    """The dedupe key is that of a live job of another kind, `job_id` of `kind`. Nothing was enqueued."""

    def __init__(self, dedupe_key: str, *, job_id: object, kind: str) -> None:
        self.dedupe_key, self.job_id, self.kind = dedupe_key, job_id, kind
        super().__init__(
            f"dedupe key {dedupe_key!r} belongs to live job {job_id} of kind {kind!r}, so no job of another kind was "
            f"enqueued under it; use another key, or enqueue again once that job has ended"
        )


class InvalidInput(TenureError, ValueError):
    """A value that no store accepts. `where` names the field. Nothing was written."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}")


class UnknownKind(InvalidInput):
    """The app declares no job of this kind."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        self.kind = kind
        names = ", ".join(sorted(known)) or "none"
        super().__init__("kind", f"{kind!r} is not declared; known are: {names}")


class PayloadRefused(InvalidInput):
    """The arguments do not match the signature of the job's function. `where` names the kind and the field."""


class ResultRefused(InvalidInput):
    """The result of a job's function cannot be stored: it is too large, or not JSON. The job is not retried."""


class SignatureRefused(TenureError):
    """A webhook request is not from the sender: it is not signed by a known secret, not recent, or not complete.

    Respond with status 400 or 401 and apply nothing.
    """


class AddressRefused(TenureError):
    """A webhook's host has no address, or one that webhooks may not connect to. Nothing was sent."""


class JobError(TenureError):
    """Raised by a job's function. The class decides the outcome of the attempt.

    >>> def charge(card: str) -> None:
    ...     raise TransientError("the bank timed out", delay_seconds=30)
    """


class TransientError(JobError):
    """The job is retried after its backoff, or after `delay_seconds`. It counts as a failure."""

    def __init__(self, message: str = "", *, delay_seconds: float | None = None) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class DependencyUnavailable(TransientError):
    """A service that the job needs is unavailable. Retried like any TransientError."""


class PermanentError(JobError):
    """The job fails at once, without a retry."""


class ValidationError(JobError):
    """The job's input is invalid. The job becomes a dead letter of stage input."""


class PolicyViolation(JobError):
    """The job violates a rule of the application. The job becomes a dead letter."""


class Snooze(JobError):
    """The job is released and runs again after `delay_seconds`. It counts no failure."""

    def __init__(self, delay_seconds: float, message: str = "") -> None:
        super().__init__(message or f"snoozed for {delay_seconds} s")
        self.delay_seconds = delay_seconds


class CancelRequested(JobError):
    """The job accepts a request to cancel, and ends as cancelled."""


class StepFailed(TenureError):
    """A step has failed for good, by an error of `error_type` with `error_message` and `traceback_text`."""

    def __init__(self, step: str, *, error_type: str, message: str, traceback_text: str | None = None) -> None:
        self.step, self.error_type, self.error_message, self.traceback_text = step, error_type, message, traceback_text
        super().__init__(f"step {step} failed: {error_type}: {message}")


class StepUnreadable(TenureError):
    """The recorded result or error of a step cannot be decoded by this code. The step is not run again."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(
            f"the recorded outcome of step {step} cannot be decoded: {problem}; make the step's type accept what was "
            f"recorded"
        )


class StepCallRefused(TenureError):
    """A call whose place in the run is not certain: from a task that the run did not start, or with a used key."""


class CheckpointNotSaved(TenureError):
    """The outcome of a step could not be saved, so the attempt ends: `checkpoint-save-failed`."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"checkpoint-save-failed: the outcome of step {step} was not saved: {problem}")


class DeadlinePassed(TenureError, TimeoutError):
    """A commit block exceeded its deadline. Its transaction was rolled back."""


class JobEnded(TenureError):
    """The job ended without a result. `job` is its last record."""

    def __init__(self, job: Job, how: str) -> None:
        self.job = job
        super().__init__(f"job {job.id} ({job.kind}) {how}")


class JobFailed(JobEnded):
    """The job failed or became a dead letter, by an error of `error_type` with `error_message` and `traceback_text`.

    They are the last error of the job; None where it ended without one, and for the traceback where it has none.
    """

    def __init__(self, job: Job, how: str, *, error: Mapping[str, str] | None = None) -> None:
        given = error or {}
        self.error_type, self.error_message = given.get("type"), given.get("message")
        self.traceback_text = given.get("traceback")
        what = ": ".join(part for part in (self.error_type, self.error_message) if part)
        super().__init__(job, f"{how}: {what}" if what else how)


class JobCancelled(JobEnded):
    """The job was cancelled."""


class JobHalted(JobEnded):
    """The job stopped at a limit. `job.partial_result` is what it had by then."""


class StoreError(TenureError):
    """A problem of the database, not of a job."""


class DatabaseReplaced(StoreError):
    """The SQLite file was deleted or replaced while it was open. Nothing was written; a worker stops."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        super().__init__(
            f"{path} was {what} while it was open, so nothing was written; stop every process that uses it, put the "
            f"right file in its place, and start them again"
        )


class StoreUnavailable(StoreError):
    """The database did not answer. Whether a write took effect is unknown: repeat it with the same request id.

    `where` names the database, as the store's `where` does; None if the error is not about one.
    """

    def __init__(self, message: str = "", *, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


class TooManyConnections(StoreUnavailable):
    """The server accepts no further connection: its own limit, that of the role or that of the database is reached."""


class JobLocked(StoreError):
    """Another transaction kept the job's row locked for as long as the request waited. Nothing was written."""

    def __init__(self, job: Job, *, holder: str | None, waited_seconds: float) -> None:
        self.job_id, self.holder, self.waited_seconds = job.id, holder, waited_seconds
        super().__init__(
            f"job {job.id} was not changed: another transaction has had its row locked for {waited_seconds:.0f} s "
            f"({holder or 'its session is not visible to this role'}); try again when that transaction has ended"
        )


class SchemaMismatch(StoreError):
    """The database has no schema, an older one, or one that is too new for this version of tenure."""


class UsedAfterFork(StoreError):
    """A store was used in a forked child. Its connections belong to the process that opened it."""


class RowPoisoned(StoreError):
    """One row makes its statement fail. It is quarantined, and the rest of its batch was written."""

    def __init__(self, job_id: object, problem: str) -> None:
        self.job_id, self.problem = job_id, problem
        super().__init__(
            f"job {job_id} is quarantined, since its row makes statements fail: {problem}; run `tenure verify`"
        )


class PrivilegeMissing(StoreError):
    """The role of the connection lacks a privilege. `needs` names the grants that include it: `reader`, `enqueuer` or
    `worker`; or `owner`, which no grant replaces."""

    def __init__(self, problem: str, *, needs: str, role: str | None = None) -> None:
        self.needs, self.role = needs, role
        remedy = f"`tenure migrate grants {needs} {role or 'ROLE'}` prints the SQL that grants what it needs"
        if needs == "owner":
            remedy = "connect as the owner of the database or of the schema tenure"
        super().__init__(f"role {role or 'of this connection'} lacks a privilege: {problem}; {remedy}")


class GuardViolated(StoreError):
    """A guard in the database refused a write: tenure has a bug, or the tables were changed by hand."""
