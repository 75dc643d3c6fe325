"""Claims due jobs: only as many as have a free slot, and only of kinds that this worker has. It ends no job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tenure.errors import DatabaseReplaced, StoreUnavailable, TenureError
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import Job
from tenure.observe.log_context import job_fields
from tenure.observe.meter import Meter
from tenure.seams import Seams
from tenure.stores.contract import ClaimRequest, ClaimStore, Subscription
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

BATCH_MIN, BATCH_MAX = 50, 500
REMAINING_SHARE_MIN = 0.2
"""The share of its lease that must remain for a job to be started, when the reply to its claim was slow."""

WAIT_SHARE_MAX = 1 / 3
"""The share of the shortest lease for which a claim may wait for a lock in the database. A later one takes nothing."""
WAIT_SECONDS_MIN = 0.5
"""A claim may wait for this long, however short a lease is."""

TRIES_AFTER_STOP = 3

log = logging.getLogger("tenure.workers")


class WorkerPoolStore(ClaimStore, Protocol):
    """The part of a store that the pool uses."""

    async def now(self) -> datetime: ...


TakeJob = Callable[[Job, UUID, float], None]
"""Called with a claimed job, the token of its claim, and the start of its lease by the monotonic clock."""


class Slots:
    """The slots of a worker for running jobs. The pool takes them, and the end of the function frees its slot.

    The outcome is written after that, while the next job is claimed and runs. As many outcomes may be unwritten as
    there are slots: while the database writes none, nothing more is claimed.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._unwritten = 0
        self.taken = 0
        """How many jobs run, or have an outcome that is not written."""
        self.changed = asyncio.Event()
        """Set when a slot was freed."""
        self.idle = asyncio.Event()
        """Set while no slot is taken."""
        self.idle.set()

    @property
    def free(self) -> int:
        """How many more jobs can be started."""
        return self._concurrency - self.taken + min(self._unwritten, self._concurrency)

    def take(self) -> None:
        self.taken += 1
        self.idle.clear()

    def function_ended(self) -> None:
        """The job does not run any more; its outcome is to be written."""
        self._unwritten += 1
        self.changed.set()

    def release(self, *, after_function: bool = False) -> None:
        """The attempt is over; `after_function`: the end of its function was reported before."""
        self._unwritten -= after_function
        self.taken -= 1
        self.changed.set()
        if not self.taken:
            self.idle.set()


class WorkerPool:
    """Claims while slots are free. Pools, in one process or in many, do not coordinate with each other.

    `start` gets each claimed job; `release` gets those whose claim was answered too late to start them.
    """

    def __init__(
        self,
        store: WorkerPoolStore,
        seams: Seams,
        *,
        worker: str,
        queues: Sequence[str],
        kinds: Sequence[str],
        slots: Slots,
        poll_seconds: float,
        start: TakeJob,
        release: TakeJob,
        lease_seconds_min: float = 60.0,
        code_version: str | None = None,
        meter: Meter | None = None,
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._store, self._seams, self._meter = store, seams, meter
        self._start, self._release, self._code_version = start, release, code_version
        self._worker, self._queues, self._kinds = worker, tuple(queues), tuple(kinds)
        self._poll_seconds, self._slots = poll_seconds, slots
        self._wait_seconds_max = max(WAIT_SECONDS_MIN, lease_seconds_min * WAIT_SHARE_MAX)
        # Half of many slots at once, so that the next half is claimed while the first runs and is recorded.
        self._batch = max(BATCH_MIN, min(BATCH_MAX, slots.free // 2))
        self._stopped = asyncio.Event()
        self._waiting: asyncio.Task[bool] | None = None
        self._backoff = ReconnectBackoff(seams, availability)
        # Short, because each claim event stores it, and unique to this pool.
        self._request_prefix = digest(seams.random.token().hex)[:11]
        self._claims = 0

    def stop(self) -> None:
        """Claim no more. Jobs of a claim that was sent before are still started."""
        self._stopped.set()
        self._slots.changed.set()
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Claim until stopped. While the database is unavailable, claims are retried."""
        while not self._stopped.is_set():
            try:
                async with self._store.wakeups(self._queues) as wakeups:
                    while not self._stopped.is_set():
                        await self._claim_or_wait(wakeups)
            except DatabaseReplaced:
                # No retry restores the file, and a new file has other jobs.
                raise
            except TenureError as error:
                await self._back_off(error)

    async def _claim_or_wait(self, wakeups: Subscription) -> None:
        if self._slots.free <= 0:
            self._slots.changed.clear()
            await self._slots.changed.wait()
        elif not await self.claim():
            await self._wait_for_work(wakeups)

    async def claim(self) -> int:
        """Claim due jobs, up to the free slots, and start them. Returns how many were started."""
        self._claims += 1
        request = ClaimRequest(
            queues=self._queues,
            kinds=self._kinds,
            limit=min(self._slots.free, self._batch),
            worker=self._worker,
            token=self._seams.random.token(),
            request_id=f"{self._request_prefix}.{self._claims}",
            wait_seconds_max=self._wait_seconds_max,
            code_version=self._code_version,
        )
        sent_at_seconds = self._seams.clock.monotonic_seconds()
        jobs, tries = await self._send(request)
        claimed = [job for job in jobs if job.token == request.token and job.leased]
        if self._meter is not None:
            self._meter.claimed(claimed)
        if len(claimed) < len(jobs):
            self._report_lost(jobs, claimed)
        slow = tries > 1 or self._seams.clock.monotonic_seconds() - sent_at_seconds > self._wait_seconds_max
        began = await self._lease_starts(claimed) if claimed and slow else {}
        started = self._start_in_time(claimed, request.token, began, sent_at_seconds)
        if started and len(jobs) < request.limit:
            # Few jobs are due: let these start before the next claim. After a full batch the next claim is sent
            # first, so that the database works while the jobs run.
            await self._seams.clock.sleep(0)
        return started

    def _start_in_time(self, jobs: Sequence[Job], token: UUID, began: dict[UUID, float], sent_at_seconds: float) -> int:
        now_seconds = self._seams.clock.monotonic_seconds()
        started = 0
        for job in jobs:
            began_at_seconds = began.get(job.origin.id, sent_at_seconds) if began else sent_at_seconds
            in_time = self._in_time(job, now_seconds - began_at_seconds)
            started += in_time
            self._slots.take()
            (self._start if in_time else self._release)(job, token, began_at_seconds)
        return started

    async def _send(self, request: ClaimRequest) -> tuple[list[Job], int]:
        """The claimed jobs, and how often the request was sent. It is sent again under the same id while the database
        is unavailable. A stopping pool sends it a few times more, since jobs may have been claimed by it."""
        tries = tries_after_stop = 0
        while True:
            tries += 1
            try:
                jobs = await self._store.claim(request)
            except StoreUnavailable as error:
                tries_after_stop += self._stopped.is_set()
                if tries_after_stop >= TRIES_AFTER_STOP:
                    return [], tries
                await self._back_off(error)
            else:
                self._backoff.reset()
                return jobs, tries

    async def _back_off(self, error: TenureError) -> None:
        await self._seams.clock.sleep(self._backoff.failed("claim", error))

    async def _lease_starts(self, jobs: Sequence[Job]) -> dict[UUID, float]:
        """When the leases began by the monotonic clock, rather too early than too late.

        It is unknown which of several tries claimed the jobs, or how long the only one waited in the database, so the
        database is asked how much of each lease remains.
        """
        asked_at_seconds = self._seams.clock.monotonic_seconds()
        now = await self._store.now()
        return {
            job.id: asked_at_seconds + (job.lease_expires_at - now).total_seconds() - job.policy.lease_ms / 1000
            for job in jobs
            if job.lease_expires_at is not None
        }

    def _in_time(self, job: Job, passed_seconds: float) -> bool:
        """Whether enough of the lease remains to start the job."""
        if passed_seconds * 1000 <= job.origin.policy.lease_ms * (1 - REMAINING_SHARE_MIN):
            return True
        template = "job %s (%s) not started: the reply to its claim was too slow; releasing it"
        log.warning(template, job.id, job.kind, extra=job_fields(job))
        if self._meter is not None:
            self._meter.not_started(job, "late")
        return False

    def _report_lost(self, jobs: Sequence[Job], claimed: Sequence[Job]) -> None:
        ours = {job.id for job in claimed}
        for job in jobs:
            if job.id not in ours:
                template = "job %s (%s) not started: its lease was lost before the reply; the job is %s"
                log.warning(template, job.id, job.kind, job.status, extra=job_fields(job))
                if self._meter is not None:
                    self._meter.not_started(job, "taken")

    async def _wait_for_work(self, wakeups: Subscription) -> None:
        """Until a wake-up comes or the poll interval has passed."""
        seconds = self._poll_seconds * (0.75 + self._seams.random.fraction() / 2)
        waiting = self._waiting = self._seams.spawn.task(wakeups.wait(seconds), name="tenure-pool-waits")
        try:
            if self._stopped.is_set():
                waiting.cancel()
            await asyncio.wait({waiting})
        finally:
            waiting.cancel()
        if not waiting.cancelled():
            waiting.result()
