"""Recovers jobs whose lease has expired, whose heartbeats are missing, or that exceeded a time limit.

Recovery applies the policy that a job was enqueued with. Several recovery workers may run at once: each change is
decided on the current row, so one of them succeeds and the others are refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tenure.errors import IllegalTransition, NotYet, RevisionConflict, TenureError
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.decide import clock_allows
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import DeadLetter, GiveUp, Operation, Reconcile, Requeue, Stall, TimeOut
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import RUNNING, STALLED
from tenure.lifecycle.transitions import ClockGuard
from tenure.observe.log_context import job_fields
from tenure.seams import Seams
from tenure.stores.contract import Applied, Failure, Outcome, RecoverableStore, Request
from tenure.workers.reconnect import ReconnectBackoff

BATCH = 500
SCAN_TIME_SHARE = 0.02
"""The share of its time that a recovery worker scans, at most. A scan reads all leased jobs; while an old snapshot is
open, it also reads the dead index entries of all jobs that were leased since."""
PAUSE_SECONDS_MAX = 60.0
"""The longest pause that follows from it: lost jobs are found in about a minute, however long a scan takes."""
EXPECTED_REFUSALS = (RevisionConflict, NotYet, IllegalTransition)
"""The job was changed by another client, or needs no recovery any more."""

log = logging.getLogger("tenure.workers")


class RecoveryStore(RecoverableStore, Protocol):
    """The part of a store that recovery uses."""

    async def now(self) -> datetime: ...


def recovery_operations(job: Job, now: datetime) -> tuple[Operation, ...]:
    """The operations that the job's policy asks for; none if the job needs no recovery."""
    if job.status is STALLED:
        return (_after_stall(job),)
    if job.leased and clock_allows(job, ClockGuard.ORPHANED, now):
        counted = 1 if job.status is RUNNING and not job.committed else 0
        lost = msgspec.structs.replace(job, lost=True, failures=job.failures + counted)
        return (Stall(_cause(job, now)), _after_stall(lost))
    if clock_allows(job, ClockGuard.OVERDUE, now) and not job.committed:
        return (TimeOut(_error("Timeout", f"it was {job.status} for longer than its policy allows")),)
    return ()


def _after_stall(job: Job) -> Operation:
    if job.committed:
        return Reconcile()
    action = job.recovery_action()
    if action == "requeue":
        return Requeue()
    error = _error("WorkerLost", f"its worker vanished at attempt {job.attempt}, with {job.failures} failures")
    if action == "fail":
        return GiveUp(error)
    reason = ReasonCode.EXHAUSTED_RETRIES if job.exhausted else ReasonCode.INFRASTRUCTURE_FAILURE
    return DeadLetter(reason, Stage.EXEC, error)


def _cause(job: Job, now: datetime) -> str:
    expired = job.lease_expires_at is None or job.lease_expires_at <= now
    return "lease_expired" if expired else "heartbeats_missed"


def _error(kind: str, message: str) -> str:
    return encode({"type": kind, "message": message})


def pause_seconds(scan_seconds: float, read_seconds: Sequence[float]) -> float:
    """How long to wait before the next scan: longer if each of the last reads was slow. One slow read has no effect."""
    return max(scan_seconds, min(min(read_seconds) / SCAN_TIME_SHARE, PAUSE_SECONDS_MAX))


class RecoveryWorker:
    """Scans for jobs that need recovery, and recovers them."""

    def __init__(self, store: RecoveryStore, seams: Seams, *, name: str) -> None:
        self._store, self._seams = store, seams
        self._actor = Actor(Role.RECOVERY, name)
        self._read_seconds = deque([0.0], maxlen=2)

    async def run(self, *, scan_seconds: float) -> None:
        """Scan until cancelled. The pauses have jitter, so that the workers do not scan at the same time."""
        backoff = ReconnectBackoff(self._seams)
        while True:
            try:
                await self.scan()
                backoff.reset()
                pause = pause_seconds(scan_seconds, self._read_seconds)
                await self._seams.clock.sleep(pause * (0.75 + self._seams.random.fraction() / 2))
            except TenureError as error:
                seconds = backoff.next_seconds()
                log.warning("recovery scan failed, retrying in %.1f s: %s", seconds, error)
                await self._seams.clock.sleep(seconds)

    async def scan(self) -> int:
        """Recover every job that needs it, once. Returns how many jobs were changed."""
        changed = 0
        began_at_seconds = self._seams.clock.monotonic_seconds()
        jobs = await self._store.recoverable(limit=BATCH)
        self._read_seconds.append(self._seams.clock.monotonic_seconds() - began_at_seconds)
        while jobs:
            changed += await self._recover(jobs)
            jobs = await self._store.recoverable(limit=BATCH, after=jobs[-1].id)
        return changed

    async def _recover(self, jobs: Sequence[Job]) -> int:
        now = await self._store.now()
        requests = [self._request(job, operations) for job in jobs if (operations := recovery_operations(job, now))]
        outcomes = await self._store.apply(requests) if requests else []
        for outcome in outcomes:
            _log(outcome)
        return sum(isinstance(outcome, Applied) for outcome in outcomes)

    def _request(self, job: Job, operations: tuple[Operation, ...]) -> Request:
        # The same for every request of this worker about this revision, so that a repetition is recognised.
        request_id = f"{self._actor.name}.{operations[0].type}.{job.rev}"
        return Request(job=job, operations=operations, actor=self._actor, request_id=request_id, fresh=True)


def _log(outcome: Outcome) -> None:
    match outcome:
        case Applied(change):
            job = change.before
            template = "job %s (%s) recovered from %s: %s"
            log.warning(template, job.id, job.kind, job.status, change.name, extra=job_fields(job))
        case Failure(error) if not isinstance(error, EXPECTED_REFUSALS):
            log.error("job recovery failed: %s", error)
