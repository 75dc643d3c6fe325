"""Takes back what was lost. Recovery applies the policy that a job was enqueued with; it makes none.

Many may run at once: each change is decided on the row as it is, so one of them wins and the others are refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tenure.errors import IllegalTransition, NotYet, RevisionConflict, TenureError
from tenure.lifecycle.decide import clock_allows
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import DeadLetter, GiveUp, Operation, Reconcile, Requeue, Stall, TimeOut
from tenure.lifecycle.records import Actor, Job, ReasonCode, Role, Stage
from tenure.lifecycle.statuses import RUNNING, STALLED
from tenure.lifecycle.transitions import ClockGuard
from tenure.observe.log_context import job_fields
from tenure.seams import Seams
from tenure.stores.contract import Applied, Failure, Outcome, RecoverableStore, Request
from tenure.workers.reconnect import ReconnectBackoff

BATCH = 500
LOOKING_SHARE = 0.02
"""The share of its time that a recovery worker spends on looking, at most. A look reads all held jobs, and under an old
snapshot of anybody's also what is left in the index of all that were held since."""
PAUSE_SECONDS_MAX = 60.0
"""The longest pause that this leads to: what is lost is found in about a minute, whatever a look takes."""
RACED = (RevisionConflict, NotYet, IllegalTransition)
"""Refusals that mean that somebody else was there first, or that all is well again."""

log = logging.getLogger("tenure.workers")


class RecoveryStore(RecoverableStore, Protocol):
    """The part of a store that recovery holds."""

    async def now(self) -> datetime: ...


def remedy(job: Job, now: datetime) -> tuple[Operation, ...]:
    """What its policy says should be done with a job that nobody attends to; nothing where all is well again."""
    if job.status is STALLED:
        return (_end_of(job),)
    if job.leased and clock_allows(job, ClockGuard.ORPHANED, now):
        counted = 1 if job.status is RUNNING and not job.committed else 0
        lost = msgspec.structs.replace(job, lost=True, failures=job.failures + counted)
        return (Stall(_cause(job, now)), _end_of(lost))
    if clock_allows(job, ClockGuard.OVERDUE, now) and not job.committed:
        return (TimeOut(_said("Timeout", f"it was {job.status} for longer than its policy allows")),)
    return ()


def _end_of(job: Job) -> Operation:
    if job.committed:
        return Reconcile()
    recovery_action = job.recovery_action()
    if recovery_action == "requeue":
        return Requeue()
    said = _said("WorkerLost", f"its worker vanished at attempt {job.attempt}, with {job.failures} failures")
    if recovery_action == "fail":
        return GiveUp(said)
    reason = ReasonCode.EXHAUSTED_RETRIES if job.exhausted else ReasonCode.INFRASTRUCTURE_FAILURE
    return DeadLetter(reason, Stage.EXEC, said)


def _cause(job: Job, now: datetime) -> str:
    expired = job.lease_expires_at is None or job.lease_expires_at <= now
    return "lease_expired" if expired else "heartbeats_missed"


def _said(kind: str, message: str) -> str:
    return encode({"type": kind, "message": message})


def pause_seconds(scan_seconds: float, looks_seconds: Sequence[float]) -> float:
    """How long to wait before the next scan, given what the last looks took: longer where every one of them was slow. A
    single slow one means nothing."""
    return max(scan_seconds, min(min(looks_seconds) / LOOKING_SHARE, PAUSE_SECONDS_MAX))


class RecoveryWorker:
    """Scans for jobs that nobody attends to, and applies the remedy."""

    def __init__(self, store: RecoveryStore, seams: Seams, *, name: str) -> None:
        self._store, self._seams = store, seams
        self._actor = Actor(Role.RECOVERY, name)
        self._looks_seconds = deque([0.0], maxlen=2)

    async def live(self, *, scan_seconds: float) -> None:
        """Scan again and again until cancelled. Many do; each waits a little longer or shorter than the others."""
        outage = ReconnectBackoff(self._seams)
        while True:
            try:
                await self.scan()
                outage.over()
                pause = pause_seconds(scan_seconds, self._looks_seconds)
                await self._seams.clock.sleep(pause * (0.75 + self._seams.random.fraction() / 2))
            except TenureError as problem:
                log.warning("a scan for lost jobs was not finished and will be made again: %s", problem)
                await outage.pause()

    async def scan(self) -> int:
        """Look at every job that needs it once; how many were changed. A race that was lost is somebody else's win."""
        changed = 0
        began_seconds = self._seams.clock.monotonic_seconds()
        jobs = await self._store.recoverable(limit=BATCH)
        self._looks_seconds.append(self._seams.clock.monotonic_seconds() - began_seconds)
        while jobs:
            changed += await self._remedy(jobs)
            jobs = await self._store.recoverable(limit=BATCH, after=jobs[-1].id)
        return changed

    async def _remedy(self, jobs: Sequence[Job]) -> int:
        now = await self._store.now()
        requests = [self._request(job, operations) for job in jobs if (operations := remedy(job, now))]
        outcomes = await self._store.apply(requests) if requests else []
        for outcome in outcomes:
            _say(outcome)
        return sum(isinstance(outcome, Applied) for outcome in outcomes)

    def _request(self, job: Job, operations: tuple[Operation, ...]) -> Request:
        # The name is the same for everyone who saw this revision's trouble in this process, and for a repetition.
        request_id = f"{self._actor.name}.{operations[0].type}.{job.rev}"
        return Request(job=job, operations=operations, actor=self._actor, request_id=request_id, fresh=True)


def _say(outcome: Outcome) -> None:
    match outcome:
        case Applied(change):
            job = change.before
            log.warning("recovery: job %s was %s, now %s", job.id, job.status, change.name, extra=job_fields(job))
        case Failure(error) if not isinstance(error, RACED):
            log.error("recovery could not help a job: %s", error)
