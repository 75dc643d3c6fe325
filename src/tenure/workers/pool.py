"""Claims jobs: only as many as can start now, only of kinds that this worker has. It starts them and never ends one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tenure.errors import StoreUnavailable, TenureError
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import Job
from tenure.observe.meter import Meter
from tenure.seams import Seams
from tenure.stores.contract import ClaimRequest, ClaimStore, Subscription
from tenure.workers.reconnect import ReconnectBackoff

BATCH_LEAST, BATCH_MAX = 50, 500
TRUST_LEAST = 0.2
"""The share of its lease that a job must have left to be started, when the answer to its claim came late."""

TRIES_AFTER_STOP = 3

log = logging.getLogger("tenure.workers")


class WorkerPoolStore(ClaimStore, Protocol):
    """The part of a store that the pool holds."""

    async def now(self) -> datetime: ...


Begin = Callable[[Job, UUID, float], None]
"""Starts a job that was won with this token by a request that was sent at this moment."""


class WorkerPool:
    """Takes work while there is room for it. Several pools, in one process or in many, do not know of each other."""

    def __init__(
        self,
        store: WorkerPoolStore,
        seams: Seams,
        *,
        worker: str,
        queues: Sequence[str],
        kinds: Sequence[str],
        concurrency: int,
        poll_seconds: float,
        begin: Begin,
        meter: Meter | None = None,
    ) -> None:
        self._store, self._seams, self._begin = store, seams, begin
        self._meter = meter
        self._worker, self._queues, self._kinds = worker, tuple(queues), tuple(kinds)
        self._poll_seconds = poll_seconds
        self._free = concurrency
        # Of many places half at once, so that the next half is claimed while the first runs and is written down.
        self._batch = max(BATCH_LEAST, min(BATCH_MAX, concurrency // 2))
        self._room = asyncio.Event()
        self._stopped = asyncio.Event()
        self._resting: asyncio.Task[bool] | None = None
        self._outage = ReconnectBackoff(seams)
        # Short, since it is written with every event of a claim, and like no other's.
        self._seal = digest(seams.random.token().hex)[:11]
        self._claims = 0

    def stop(self) -> None:
        """Claim no more. What was asked for and not answered yet is still taken in."""
        self._stopped.set()
        self._room.set()
        if self._resting is not None:
            self._resting.cancel()

    def freed(self) -> None:
        """A job's outcome is written or refused: its place is free."""
        self._free += 1
        self._room.set()

    async def work(self) -> None:
        """Claim until stopped, also over outages of the database."""
        while not self._stopped.is_set():
            try:
                async with self._store.wakeups(self._queues) as wakeups:
                    while not self._stopped.is_set():
                        await self._turn(wakeups)
            except TenureError as problem:
                log.warning("no jobs can be claimed just now: %s", problem)
                await self._outage.pause()

    async def _turn(self, wakeups: Subscription) -> None:
        if self._free <= 0:
            self._room.clear()
            await self._room.wait()
        elif not await self.claim():
            await self._rest(wakeups)

    async def claim(self) -> int:
        """Take what is due, up to the free places, and start it. How many were started."""
        self._claims += 1
        request = ClaimRequest(
            queues=self._queues,
            kinds=self._kinds,
            limit=min(self._free, self._batch),
            worker=self._worker,
            token=self._seams.random.token(),
            request_id=f"{self._seal}.{self._claims}",
        )
        sent_at_seconds = self._seams.clock.monotonic_seconds()
        jobs, tries = await self._ask(request)
        won = [job for job in jobs if job.token == request.token and job.leased]
        if self._meter is not None:
            self._meter.claimed(won)
        if len(won) < len(jobs):
            self._say_taken(jobs, won)
        began = await self._leases_began(won) if won and tries > 1 else {}
        now_seconds = self._seams.clock.monotonic_seconds()
        started = 0
        for job in won:
            began_at_seconds = began.get(job.origin.id, sent_at_seconds) if began else sent_at_seconds
            if self._in_time(job, now_seconds - began_at_seconds):
                started += 1
                self._free -= 1
                self._begin(job, request.token, began_at_seconds)
        if started and len(jobs) < request.limit:
            # There is hardly more to claim: let these set out before it is looked for. Of a full batch the next one is
            # asked for first, so that the database works while they do.
            await self._seams.clock.sleep(0)
        return started

    async def _ask(self, request: ClaimRequest) -> tuple[list[Job], int]:
        """The answer to one request, asked again under the same id for as long as the database is away; and how often
        it was asked. A pool that stops asks a few times more, so as not to leave jobs behind that it has won."""
        tries = tries_after_stop = 0
        while True:
            tries += 1
            try:
                jobs = await self._store.claim(request)
            except StoreUnavailable as outage:
                tries_after_stop += self._stopped.is_set()
                if tries_after_stop >= TRIES_AFTER_STOP:
                    return [], tries
                log.warning("a claim waits for the database: %s", outage)
                await self._outage.pause()
            else:
                self._outage.over()
                return jobs, tries

    async def _leases_began(self, jobs: Sequence[Job]) -> dict[UUID, float]:
        """When the leases began, as moments of our own clock and rather too early than too late.

        Which of several tries won is not known, so the database is asked how much of each lease is left.
        """
        asked_at_seconds = self._seams.clock.monotonic_seconds()
        now = await self._store.now()
        return {
            job.id: asked_at_seconds + (job.lease_expires_at - now).total_seconds() - job.policy.lease_ms / 1000
            for job in jobs
            if job.lease_expires_at is not None
        }

    def _in_time(self, job: Job, passed_seconds: float) -> bool:
        """Whether enough of the lease is left to begin."""
        if passed_seconds * 1000 <= job.origin.policy.lease_ms * (1 - TRUST_LEAST):
            return True
        log.warning("job %s was claimed, but the answer came too late to start it; recovery will take it", job.id)
        if self._meter is not None:
            self._meter.not_started(job, "late")
        return False

    def _say_taken(self, jobs: Sequence[Job], won: Sequence[Job]) -> None:
        ours = {job.id for job in won}
        for job in jobs:
            if job.id not in ours:
                log.warning("job %s was claimed, but is no longer ours; it is %s now", job.id, job.status)
                if self._meter is not None:
                    self._meter.not_started(job, "taken")

    async def _rest(self, wakeups: Subscription) -> None:
        """Until there may be work, by a hint or because it is time to look."""
        seconds = self._poll_seconds * (0.75 + self._seams.random.fraction() / 2)
        rest = self._resting = self._seams.spawn.task(wakeups.wait(seconds), name="tenure-pool-rests")
        try:
            if self._stopped.is_set():
                rest.cancel()
            await asyncio.wait({rest})
        finally:
            rest.cancel()
        if not rest.cancelled():
            rest.result()
