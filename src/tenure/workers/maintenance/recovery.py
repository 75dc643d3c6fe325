"""Recovers jobs whose lease has expired, whose heartbeats are missing, or that exceeded a time limit, and wakes jobs
that wait for children that have ended.

Recovery applies the policy that a job was enqueued with. Several recovery workers may run at once: each change is
decided on the current row, so one of them succeeds and the others are refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from tenure.errors import IllegalTransition, NotYet, RevisionConflict, TenureError
from tenure.lifecycle.causes import TIMEOUT
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.decide import clock_allows, decide
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import (
    Cancel,
    DeadLetter,
    GiveUp,
    GiveUpCause,
    Operation,
    Reconcile,
    Requeue,
    Stall,
    TimeOut,
    Unwind,
    Wake,
)
from tenure.lifecycle.records import Actor, EndsAs, Job, Role
from tenure.lifecycle.statuses import RUNNING, STALLED
from tenure.lifecycle.transitions import ClockGuard
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.seams import Seams
from tenure.stores.contract import Applied, Busy, Failure, Outcome, RecoverableStore, Request
from tenure.stores.contract.steps import has_steps_to_undo
from tenure.workers.maintenance.cancel_children import ChildrenStore, cancel_children
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff
from tenure.workers.timeouts import timeout_error

BATCH = 500
SCAN_TIME_SHARE = 0.02
"""The share of its time that a recovery worker scans, at most. A scan reads all leased jobs; while an old snapshot is
open, it also reads the dead index entries of all jobs that were leased since."""
PAUSE_SECONDS_MAX = 60.0
"""The longest pause that follows from it: lost jobs are found in about a minute, however long a scan takes."""
OWNER_TIME = timedelta(seconds=10)
"""How long the owner of a running job has to end it after its timeout: twice what it gives a function to stop."""
ENDS = (Cancel, DeadLetter, GiveUp, Reconcile, TimeOut)
EXPECTED_REFUSALS = (RevisionConflict, NotYet, IllegalTransition)
"""The job was changed by another client, or needs no recovery any more."""

log = logging.getLogger("tenure.workers")


class RecoveryStore(RecoverableStore, ChildrenStore, Protocol):
    """The part of a store that recovery uses."""

    async def now(self) -> datetime: ...


def recovery_operations(job: Job, now: datetime) -> tuple[Operation, ...]:
    """The operations that the job's policy asks for; none if the job needs no recovery."""
    if job.status is STALLED and (job.lost or job.due_at is None):
        return (_after_stall(job),)
    if job.leased and clock_allows(job, ClockGuard.ORPHANED, now):
        stall = Stall("lease_expired" if _passed(job.lease_expires_at, now) else "heartbeats_missed")
        return (stall, _after_stall(_stalled(job, stall)))
    if job.status is RUNNING:
        # The owner ends it first, because it has the outcome of the function: recovery waits for that.
        return _after_timeout(job) if _passed(job.timeout_at, now - OWNER_TIME) else ()
    if _passed(job.timeout_at, now):
        return _after_timeout(job)
    # The store has found that it waits for no further child. One that is due needs no wake.
    return (Wake(),) if job.children_max is not None and not _passed(job.due_at, now) else ()


def _after_timeout(job: Job) -> tuple[Operation, ...]:
    """The operations for a job whose timeout has passed. Without a lease there is no attempt to retry: it fails."""
    on_timeout = job.policy.on_timeout
    error = timeout_error(job)
    if job.leased and (on_timeout == "retry" or job.unwinding or job.committed):
        stalled = _stalled(job, Stall(TIMEOUT))
        if not (job.committed or job.unwinding) and stalled.recovery_action() == "dead_letter":
            return (DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, error),)
        return (Stall(TIMEOUT), _after_stall(stalled, error))
    if on_timeout == "dead_letter":
        return (DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC if job.status is RUNNING else Stage.FETCH, error),)
    return (TimeOut(error),)


def _stalled(job: Job, stall: Stall) -> Job:
    """The record that `_after_stall` decides on, as the stall leaves it."""
    return decide(job, stall, Actor(Role.RECOVERY, "recovery"), request_id="stall").after(job.updated_at)


def _after_stall(job: Job, error: str | None = None) -> Operation:
    """The operation for a stalled job; `error` if it did not lose its worker."""
    if job.committed:
        return Reconcile()
    action = job.recovery_action()
    if action == "requeue":
        return Requeue()
    error = error or _stall_error(job)
    if job.compensated:
        error = job.last_error or error
    if action == "cancel":
        return Cancel()
    if action == "fail":
        return GiveUp(error, _give_up_cause(job))
    return DeadLetter(_reason(job), Stage.EXEC, error)


def _give_up_cause(job: Job) -> GiveUpCause:
    if job.lost:
        return "lost"
    return "exhausted_retries" if job.policy.on_timeout == "retry" else "timeout"


def _stall_error(job: Job) -> str:
    if job.lost:
        message = f"its worker vanished at attempt {job.attempt}, with {counted(job.failures, 'failure')}"
        return encode({"type": "WorkerLost", "message": message})
    message = f"attempt {job.attempt} timed out, with {counted(job.failures, 'failure')}"
    return encode({"type": "Timeout", "message": message})


_REASONS = frozenset(reason.value for reason in ReasonCode)


def _reason(job: Job) -> ReasonCode:
    """A job that only ever lost its workers has not failed by itself: that is the infrastructure's failure."""
    if job.unwinding and not job.compensated:
        return ReasonCode.COMPENSATION_FAILED
    if job.compensated and job.ends_because in _REASONS:
        return ReasonCode(job.ends_because)
    if not job.lost:
        return ReasonCode.TIMEOUT
    only_losses = job.policy.on_lost == "dead_letter" or job.losses == job.failures
    return ReasonCode.INFRASTRUCTURE_FAILURE if only_losses else ReasonCode.EXHAUSTED_RETRIES


def _stall_of(operations: tuple[Operation, ...]) -> Operation:
    return operations[0] if isinstance(operations[0], Stall) else Stall(TIMEOUT)


def _unwind(end: DeadLetter | GiveUp | TimeOut) -> Unwind:
    """Let the job undo its steps, and record the end that follows."""
    ends_as: EndsAs = "dead_lettered" if isinstance(end, DeadLetter) else "failed"
    return Unwind(ends_as, end.event_fields().cause or TIMEOUT, end.error)


def _passed(deadline: datetime | None, now: datetime) -> bool:
    return deadline is not None and deadline <= now


def pause_seconds(scan_seconds: float, read_seconds: Sequence[float], *, previous_seconds: float) -> float:
    """How long to wait before the next scan: longer if each of the last reads was slow. One slow read has no effect.

    A pause is at most twice the previous one: reads that are slow for a second or two, because the machine is busy,
    must not delay the recovery of lost jobs by a minute.
    """
    wanted = max(scan_seconds, min(min(read_seconds) / SCAN_TIME_SHARE, PAUSE_SECONDS_MAX))
    return min(wanted, max(scan_seconds, 2 * previous_seconds))


class RecoveryWorker:
    """Scans for jobs that need recovery, and recovers them."""

    def __init__(
        self, store: RecoveryStore, seams: Seams, *, name: str, availability: DatabaseAvailability | None = None
    ) -> None:
        self._store, self._seams, self._availability = store, seams, availability
        self._actor = Actor(Role.RECOVERY, name)
        self._read_seconds = deque([0.0], maxlen=2)

    async def run(self, *, scan_seconds: float) -> None:
        """Scan until cancelled. The pauses have jitter, so that the workers do not scan at the same time."""
        backoff = ReconnectBackoff(self._seams, self._availability)
        pause = scan_seconds
        while True:
            try:
                await self.scan()
                backoff.reset()
                pause = pause_seconds(scan_seconds, self._read_seconds, previous_seconds=pause)
                await self._seams.clock.sleep(pause * (0.75 + self._seams.random.fraction() / 2))
            except TenureError as error:
                await self._seams.clock.sleep(backoff.failed("recovery scan", error))

    async def scan(self) -> int:
        """Recover every job that needs it, once. Returns how many jobs were changed."""
        changed = 0
        began_at_seconds = self._seams.clock.monotonic_seconds()
        jobs = await self._store.recoverable(limit=BATCH)
        self._read_seconds.append(self._seams.clock.monotonic_seconds() - began_at_seconds)
        while jobs:
            changed += await self.recover(jobs)
            jobs = await self._store.recoverable(limit=BATCH, after=jobs[-1].id)
        return changed

    async def recover(self, jobs: Sequence[Job]) -> int:
        """Recover those of these jobs that need it. Returns how many were changed."""
        now = await self._store.now()
        planned = [(job, operations) for job in jobs if (operations := recovery_operations(job, now))]
        requests = []
        for job, planned_operations in planned:
            operations = await self._undoing_first(job, planned_operations)
            if isinstance(operations[-1], ENDS):
                await cancel_children(self._store, job, reason="its parent has ended")
            requests.append(self._request(job, operations))
        outcomes = await self._store.apply(requests) if requests else []
        for outcome in outcomes:
            _log(outcome)
        applied = [outcome for outcome in outcomes if isinstance(outcome, Applied)]
        if stalled := [job for outcome in applied if (job := outcome.job).ends_by_policy]:
            await self.recover(stalled)
        return len(applied)

    async def _undoing_first(self, job: Job, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        """The operations, with an `unwind` instead of the end of a job that has steps to undo.

        A leased job that has steps is only stalled: its owner may still save one, which is to be undone too. Once
        stalled, it is read again.
        """
        end = operations[-1]
        if job.unwinding or job.committed or not isinstance(end, DeadLetter | GiveUp | TimeOut):
            return operations
        if job.leased:
            has_steps = bool(await self._store.steps(job.id, limit=1))
            return (_stall_of(operations),) if has_steps else operations
        return (_unwind(end),) if await has_steps_to_undo(self._store, job) else operations

    def _request(self, job: Job, operations: tuple[Operation, ...]) -> Request:
        # The same for every request of this worker about this revision, so that a repetition is recognised.
        request_id = f"{self._actor.name}.{operations[0].type}.{job.rev}"
        return Request(job=job, operations=operations, actor=self._actor, request_id=request_id, fresh=True)


def _log(outcome: Outcome) -> None:
    match outcome:
        case Applied(change):
            job = change.before
            reasons = ", ".join(event.cause for event in change.planned if event.cause)
            template = "job %s (%s) recovered from %s: %s%s"
            facts = (job.id, job.kind, job.status, change.planned[-1].to_status, f" ({reasons})" if reasons else "")
            log.warning(template, *facts, extra=job_fields(job))
        case Busy(job, holder):
            template = "job %s (%s) not recovered: its row is locked by %s; retrying at the next scan"
            log.warning(template, job.id, job.kind, holder or "another transaction", extra=job_fields(job))
        case Failure(error) if not isinstance(error, EXPECTED_REFUSALS):
            log.error("job recovery failed: %s", error)
