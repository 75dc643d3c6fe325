"""Keeps the leases of this process alive, in batches, from a loop of its own.

A busy event loop must not lose its leases, so this runs in a thread with a store of its own. It tells at once when a
lease is lost, and when trust in one has run out because the database did not answer.
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
from tenure.seams import Seams
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Outcome, WakeupStore, worker_wakeup
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.reconnect import ReconnectBackoff

TICK_SECONDS_MOST = 5.0
WATCH_SECONDS_MOST = 1.0
LOOK_SECONDS_LEAST = 0.1
BATCH_MAX = 1000

log = logging.getLogger("tenure.workers")


class LeaseRenewerStore(ApplyStore, WakeupStore, Protocol):
    """The part of a store that the heart holds: it changes jobs by heartbeats, and hears of changes to them."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...


class LeaseRenewer:
    """Beats for every job that is held, each at its own interval, and listens for what others do to them."""

    def __init__(self, store: LeaseRenewerStore, held: LeaseRegistry, seams: Seams, *, worker: str) -> None:
        self._store, self._held, self._seams, self._worker = store, held, seams, worker
        self._loop = asyncio.get_running_loop()
        self._taken = asyncio.Event()
        self._wakes_at_seconds = 0.0
        held.when_taken = self._nudge

    async def watch(self) -> None:
        """Tell holders when their trust runs out, until cancelled; also while a heartbeat waits for its answer."""
        while True:
            self.doubt()
            ends = [held.trusted_until_seconds for held in self._held.all() if not held.lost]
            left = min(ends, default=float("inf")) - self._seams.clock.monotonic_seconds()
            await self._seams.clock.sleep(min(max(left, 0.01), WATCH_SECONDS_MOST))

    async def live(self) -> None:
        """Beat until cancelled."""
        while True:
            self._taken.clear()
            wait_seconds = await self.beat()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._taken.wait()
            except TimeoutError:
                continue

    async def listen(self) -> None:
        """Look at the held jobs whenever somebody else has changed one, until cancelled."""
        outage = ReconnectBackoff(self._seams)
        while True:
            try:
                async with self._store.wakeups((worker_wakeup(self._worker),)) as wakeups:
                    while True:
                        if await wakeups.wait(60.0):
                            await self.look()
                            outage.over()
                            await self._seams.clock.sleep(LOOK_SECONDS_LEAST)
            except TenureError as problem:
                log.warning("cannot listen for changes to held jobs; heartbeats will find them: %s", problem)
                await outage.pause()

    async def beat(self) -> float:
        """Send the heartbeats that are due; how long until the next one is."""
        # Until that is known, whoever takes a job says so.
        self._wakes_at_seconds = float("inf")
        now = self._seams.clock.monotonic_seconds()
        due = [held for held in self._held.all() if self._wants_beat(held, now)]
        for start in range(0, len(due), BATCH_MAX):
            await self._send(due[start : start + BATCH_MAX], now)
        left = [held.next_beat_at_seconds for held in self._held.all() if not held.lost]
        now = self._seams.clock.monotonic_seconds()
        wait_seconds = min(max(min(left, default=float("inf")) - now, 0.005), TICK_SECONDS_MOST)
        self._wakes_at_seconds = now + wait_seconds
        return wait_seconds

    async def look(self) -> None:
        """Read the held jobs as they stand, so that a cancel or a revoked lease is known before the next heartbeat."""
        held = {one.job.id: one for one in self._held.all() if not (one.lost or one.closing)}
        jobs = await self._store.read(list(held))
        for job_id, one in held.items():
            job = jobs.get(job_id)
            if one.closing:
                # What was read may be what we have written ourselves.
                continue
            if job is None or not job.leased or job.attempt != one.job.attempt:
                _say_lost(one, "somebody else ended its lease")
                one.lose()
            elif job.cancel_requested and not one.job.cancel_requested:
                one.next_beat_at_seconds = 0.0
                self._taken.set()

    @staticmethod
    def _wants_beat(held: Lease, now: float) -> bool:
        return not held.lost and held.next_beat_at_seconds <= now

    async def _send(self, due: list[Lease], sent_at_seconds: float) -> None:
        requests = [held.request(Heartbeat(), held.request_id("heartbeat")) for held in due]
        # Better to give up on an answer and to ask again than to wait while the leases run out.
        limit_seconds = max(1.0, min(held.job.policy.heartbeat_ms for held in self._held.all() or due) / 1000)
        try:
            async with asyncio.timeout(limit_seconds):
                outcomes = await self._store.apply(requests)
        except (TenureError, TimeoutError) as outage:
            log.warning("%d heartbeats did not get through: %s", len(due), str(outage) or "no answer in time")
            for held in due:
                held.next_beat_at_seconds = _soon(held, self._seams.clock.monotonic_seconds())
            return
        for held, outcome in zip(due, outcomes, strict=True):
            self._heard(held, outcome, sent_at_seconds)

    def _heard(self, held: Lease, outcome: Outcome, sent_at_seconds: float) -> None:
        match outcome:
            case Applied(renewed=renewed):
                held.adopt(outcome.job)
                held.beat_sent(sent_at_seconds, renewed=renewed)
            case Failure(RevisionConflict(current=Job() as current)):
                # Settled, told something, or asked to cancel in between: the next beat goes out at once.
                if held.adopt(current):
                    held.next_beat_at_seconds = sent_at_seconds
            case Busy():
                held.next_beat_at_seconds = _soon(held, sent_at_seconds)
            case Failure(LeaseLost() as refusal):
                _say_lost(held, str(refusal))
                held.lose()
            case Failure(Refused() as refusal):
                log.warning("a heartbeat was refused: %s", refusal)
                held.lose()
            case _:
                held.next_beat_at_seconds = _soon(held, sent_at_seconds)

    def doubt(self) -> None:
        """Nobody may work on under a lease that the database may have ended."""
        now = self._seams.clock.monotonic_seconds()
        for held in self._held.all():
            if not held.lost and held.trusted_until_seconds <= now:
                _say_lost(held, "no heartbeat got through for a whole lease")
                held.lose()
            elif held.overdue_at_seconds <= now and held.job.committed:
                # Recovery may not fail what is committed, so its owner ends it: all that matters is done.
                held.overdue_at_seconds = float("inf")
                held.interrupt(Interruption.OVERDUE)

    def _nudge(self, held: Lease) -> None:
        """From any thread: a job was taken whose first beat may be due before the heart would wake by itself."""
        if held.next_beat_at_seconds >= self._wakes_at_seconds:
            return
        try:
            self._loop.call_soon_threadsafe(self._taken.set)
        except RuntimeError:
            # The heart's loop is closed, so that nobody beats any more: the worker is at its end.
            return


def _soon(held: Lease, now: float) -> float:
    return now + min(0.5, held.job.policy.heartbeat_ms / 4000)


def _say_lost(held: Lease, why: str) -> None:
    # While its outcome is being written, the end that is heard of may be the one that we have just recorded.
    if not (held.lost or held.closing):
        job = held.job
        log.warning(
            "lease lost: job %s, attempt %s: %s; its work stops", job.id, job.attempt, why, extra=job_fields(job)
        )
