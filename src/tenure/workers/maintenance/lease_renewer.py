"""Renews the leases of this process, in batches, from the maintenance thread.

A busy event loop must not lose its leases, so this runs on another loop with a store of its own. It interrupts an
attempt as soon as its lease is lost, when the local deadline passes because the database did not reply, and when the
attempt has run for as long as its policy allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from tenure.errors import LeaseLost, Refused, RevisionConflict, TenureError
from tenure.lifecycle.operations import Heartbeat
from tenure.lifecycle.records import Job
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.seams import Seams
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Outcome, WakeupStore, worker_wakeup
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

WAIT_SECONDS_MAX = 5.0
DEADLINE_CHECK_SECONDS_MAX = 1.0
REFRESH_SECONDS_MIN = 0.1
WAKEUP_SECONDS_MAX = 60.0
BATCH_MAX = 1000

log = logging.getLogger("tenure.workers")


class LeaseRenewerStore(ApplyStore, WakeupStore, Protocol):
    """The part of a store that the renewer uses: heartbeats, and wake-ups for changes to its jobs."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...


class LeaseRenewer:
    """Sends heartbeats for every lease, each at its own interval, and watches for changes that others made."""

    def __init__(
        self,
        store: LeaseRenewerStore,
        leases: LeaseRegistry,
        seams: Seams,
        *,
        worker: str,
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._store, self._leases, self._seams, self._worker = store, leases, seams, worker
        self._availability = availability or DatabaseAvailability(seams)
        self._timer = leases.renewal_timer

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        try:
            while True:
                self._timer.reset()
                await self._timer.wait(await self.renew())
        finally:
            self._availability.ended(self)

    async def check_deadlines(self) -> None:
        """Interrupt attempts at their deadlines, until cancelled; also while a heartbeat waits for its reply."""
        timer = self._leases.deadline_timer
        while True:
            timer.reset()
            self.expire_locally()
            leases = [lease for lease in self._leases.all() if not lease.lost]
            deadlines = [min(lease.local_deadline_seconds, lease.overdue_at_seconds) for lease in leases]
            now = self._seams.clock.monotonic_seconds()
            wait_seconds = min(max(min(deadlines, default=float("inf")) - now, 0.01), DEADLINE_CHECK_SECONDS_MAX)
            timer.ends_at_seconds = now + wait_seconds
            await timer.wait(wait_seconds)

    async def watch_changes(self) -> None:
        """Refresh the leased jobs whenever another client has changed one, until cancelled."""
        backoff = ReconnectBackoff(self._seams, self._availability)
        try:
            while True:
                try:
                    await self._refresh_when_woken(backoff)
                except TenureError as error:
                    await self._seams.clock.sleep(backoff.failed("wake-ups for leased jobs", error))
        finally:
            backoff.end()

    async def _refresh_when_woken(self, backoff: ReconnectBackoff) -> None:
        async with self._store.wakeups((worker_wakeup(self._worker),)) as wakeups:
            # A change before the subscription woke nothing.
            await self.refresh()
            backoff.reset()
            while True:
                if await wakeups.wait(WAKEUP_SECONDS_MAX):
                    await self.refresh()
                    backoff.reset()
                    await self._seams.clock.sleep(REFRESH_SECONDS_MIN)

    async def renew(self) -> float:
        """Send the heartbeats that are due. Returns the seconds until the next one is."""
        # Until the next time is known, every lease that is added ends the wait.
        self._timer.ends_at_seconds = float("inf")
        now = self._seams.clock.monotonic_seconds()
        due = [lease for lease in self._leases.all() if not lease.lost and lease.next_renewal_at_seconds <= now]
        for start in range(0, len(due), BATCH_MAX):
            await self._send(due[start : start + BATCH_MAX], now)
        times = [lease.next_renewal_at_seconds for lease in self._leases.all() if not lease.lost]
        if not times:
            self._availability.replied(self)
        now = self._seams.clock.monotonic_seconds()
        wait_seconds = min(max(min(times, default=float("inf")) - now, 0.005), WAIT_SECONDS_MAX)
        self._timer.ends_at_seconds = now + wait_seconds
        return wait_seconds

    async def refresh(self) -> None:
        """Read the leased jobs, so that a cancel or a revoked lease is known before the next heartbeat."""
        leases = {lease.job.id: lease for lease in self._leases.all() if not (lease.lost or lease.completing)}
        jobs = await self._store.read(list(leases)) if leases else {}
        for job_id, lease in leases.items():
            job = jobs.get(job_id)
            if lease.completing:
                # The record may show the outcome that this process has just written.
                continue
            if job is None or not job.leased or job.attempt != lease.job.attempt:
                _log_lost(lease, "another client ended it")
                lease.lose()
            elif job.cancel_requested and not lease.job.cancel_requested:
                lease.next_renewal_at_seconds = 0.0
                self._timer.end_wait()

    def expire_locally(self) -> list[Lease]:
        """Lose each lease whose local deadline has passed: the database may have ended it. Interrupt attempts whose
        timeout has passed; their leases are returned."""
        now = self._seams.clock.monotonic_seconds()
        overdue: list[Lease] = []
        for lease in self._leases.all():
            if not lease.lost and lease.local_deadline_seconds <= now:
                _log_lost(lease, "no heartbeat succeeded for a whole lease")
                lease.lose()
            elif not lease.lost and lease.overdue_at_seconds <= now:
                lease.overdue_at_seconds = float("inf")
                lease.interrupt(Interruption.OVERDUE)
                overdue.append(lease)
        return overdue

    async def _send(self, due: list[Lease], sent_at_seconds: float) -> None:
        requests = [lease.request(Heartbeat(), lease.request_id("heartbeat")) for lease in due]
        # A reply that takes longer is not waited for, so that the next try comes before the leases end.
        limit_seconds = max(1.0, min(lease.job.policy.heartbeat_ms for lease in self._leases.all() or due) / 1000)
        try:
            async with asyncio.timeout(limit_seconds):
                outcomes = await self._store.apply(requests)
        except (TenureError, TimeoutError) as error:
            self._availability.failed(self, f"{counted(len(due), 'heartbeat')} failed, retrying", error)
            for lease in due:
                lease.next_renewal_at_seconds = _soon(lease, self._seams.clock.monotonic_seconds())
            return
        self._availability.replied(self)
        for lease, outcome in zip(due, outcomes, strict=True):
            self._renewed(lease, outcome, sent_at_seconds)

    def _renewed(self, lease: Lease, outcome: Outcome, sent_at_seconds: float) -> None:
        match outcome:
            case Applied(renewed=renewed):
                lease.adopt(outcome.job)
                lease.renewal_sent(sent_at_seconds, renewed=renewed)
            case Failure(RevisionConflict(current=Job() as current)):
                # Another write of this owner, or a cancel request, came in between. Send the next heartbeat at once.
                if lease.adopt(current):
                    lease.next_renewal_at_seconds = sent_at_seconds
            case Failure(LeaseLost() as refusal):
                _log_lost(lease, str(refusal))
                lease.lose()
            case Failure(Refused() as refusal):
                job = lease.job
                log.warning("job %s (%s) heartbeat refused: %s", job.id, job.kind, refusal, extra=job_fields(job))
                lease.lose()
            case Busy() | _:
                lease.next_renewal_at_seconds = _soon(lease, sent_at_seconds)


def _soon(lease: Lease, now: float) -> float:
    return now + min(0.5, lease.job.policy.heartbeat_ms / 4000)


def _log_lost(lease: Lease, reason: str) -> None:
    # While the outcome is being written, the lease may have ended by that write.
    if not (lease.lost or lease.completing):
        job = lease.job
        template = "job %s (%s) lost its lease at attempt %s: %s; stopping the attempt"
        log.warning(template, job.id, job.kind, job.attempt, reason, extra=job_fields(job))
