"""The leases of this process: each job's record as last written, and how long its lease is certain to run.

Renewal and completion both advance a job's revision, from different threads. Both read and replace the record here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from uuid import UUID

from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.steps import StepsDigest
from tenure.stores.contract import Request


class Interruption(StrEnum):
    """Why an attempt should stop. A function may react to a cancel request when it chooses to."""

    LOST = "lost"
    STOPPING = "stopping"
    OVERDUE = "overdue"
    CANCEL_REQUESTED = "cancel_requested"


OnInterrupt = Callable[["Lease", Interruption], None]
"""Called, from any thread, when the attempt under a lease should stop."""

REMAINING_SHARE_MIN = 0.25
"""A heartbeat that should renew a lease is sent while at least this share of the lease remains."""
REMAINING_SHARE_AT_RENEWAL = 0.4
"""The remaining share at which a heartbeat is sent when the next one by the policy would be too late."""
RETRY_SHARE = 0.05
"""The share of a lease between two heartbeats, at least."""


class Lease:
    """One job under a lease of this process. The record is replaced, never changed.

    All `_seconds` are readings of the process's monotonic clock. After `local_deadline_seconds` the database may have
    ended the lease.
    """

    __slots__ = (
        "_lock", "_on_interrupt", "_ordinal", "_request_prefix", "actor", "at_deadline", "completing", "function_ended",
        "job", "local_deadline_seconds", "lost", "next_renewal_at_seconds", "overdue_at_seconds", "past_deadline",
        "steps",
    )  # fmt: skip

    def __init__(
        self,
        job: Job,
        *,
        worker: str,
        token: UUID,
        sent_at_seconds: float,
        received_at_seconds: float | None = None,
        on_interrupt: OnInterrupt | None = None,
    ) -> None:
        self.job = job
        self._on_interrupt = on_interrupt
        self.actor, self._request_prefix = _owner(worker, token)
        self.lost = False
        self.completing = False
        """The outcome is being written. The lease is renewed until the store has replied."""
        self.steps: StepsDigest | None = None
        """The digest of the job's steps, once they were read. Events that end the attempt carry it."""
        self.function_ended = False
        """The function has ended, so that its slot is free."""
        running_ms = job.origin.policy.running_ms
        # From the reply of the claim: an attempt has at least the time that its policy gives it.
        starts_at_seconds = sent_at_seconds if received_at_seconds is None else received_at_seconds
        self.overdue_at_seconds = float("inf") if running_ms is None else starts_at_seconds + running_ms / 1000
        left_seconds = self.seconds_to_deadline()
        self.past_deadline = left_seconds <= 0
        """The deadline of the job had passed when it was claimed: nothing of it runs but what undoes its steps."""
        self.at_deadline = False
        """The time of the attempt ends at the deadline of the job."""
        if not self.past_deadline:
            self.end_by(starts_at_seconds + left_seconds)
        self._ordinal = 0
        self._lock = threading.Lock()
        self.renewal_sent(sent_at_seconds)

    def seconds_to_deadline(self) -> float:
        """The time from the last write of the record to the deadline of the job, by the database's clock. A job that
        undoes its steps has all the time that its policy gives to an attempt."""
        origin = self.job.origin
        if (origin.tags is None and origin.policy.deadline_seconds is None) or self.job.unwinding:
            return float("inf")
        deadline_at = deadline_of(self.job)
        return float("inf") if deadline_at is None else (deadline_at - self.job.updated_at).total_seconds()

    def end_by(self, deadline_seconds: float) -> None:
        """End the time of the attempt then, unless it ends before."""
        if deadline_seconds < self.overdue_at_seconds:
            self.overdue_at_seconds, self.at_deadline = deadline_seconds, True

    def request_id(self, verb: str) -> str:
        """The id of this lease's next request. It follows from the token, so no other owner can produce it."""
        with self._lock:
            self._ordinal += 1
            return f"{self._request_prefix}.{verb}.{self._ordinal}"

    def request(self, operation: Operation, request_id: str) -> Request:
        """A request of the owner, decided on the current record."""
        steps = None if self.steps is None else self.steps.recorded
        return Request(
            job=self.job, operations=(operation,), actor=self.actor, request_id=request_id, fresh=True, steps=steps
        )

    def adopt(self, job: Job) -> bool:
        """Replace the record by a newer one. False, and the lease is lost, if it is under another lease or none."""
        if job.token != self.actor.token:
            self.lose()
            return False
        with self._lock:
            cancel_is_new = job.cancel_requested and not self.job.cancel_requested
            if job.rev > self.job.rev:
                self.job = job
        if cancel_is_new:
            self.interrupt(Interruption.CANCEL_REQUESTED)
        return True

    def renewal_sent(self, sent_at_seconds: float, *, renewed: bool = True) -> None:
        """Set the local deadline and the time of the next heartbeat, after one that was sent at this time.

        The lease is certain until send time + lease, not reply time + lease: a slow reply must not prolong it.
        """
        policy = self.job.origin.policy
        lease_seconds = policy.lease_ms / 1000
        if renewed:
            self.local_deadline_seconds = sent_at_seconds + lease_seconds
        self.next_renewal_at_seconds = sent_at_seconds + policy.heartbeat_ms / 1000
        if self.next_renewal_at_seconds > self.local_deadline_seconds - REMAINING_SHARE_MIN * lease_seconds:
            # A heartbeat renews only once half of the lease has passed by the database's clock. One that was sent just
            # before that is followed by another soon, whatever interval the policy has.
            soon = self.local_deadline_seconds - REMAINING_SHARE_AT_RENEWAL * lease_seconds
            self.next_renewal_at_seconds = max(soon, sent_at_seconds + RETRY_SHARE * lease_seconds)

    def lose(self) -> None:
        """Mark the lease as lost and interrupt its attempt, once."""
        with self._lock:
            if self.lost:
                return
            self.lost = True
        self.interrupt(Interruption.LOST)

    def interrupt(self, reason: Interruption) -> None:
        if self._on_interrupt is not None:
            self._on_interrupt(self, reason)


class RenewalTimer:
    """Ends a wait of the lease renewer early, from any thread, for a lease that is due before the end of the wait."""

    def __init__(self) -> None:
        self.ends_at_seconds = float("inf")
        """When the wait ends by itself; infinity while the renewer reads the leases."""
        self._early = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self) -> None:
        """Called on the renewer's event loop before it reads the leases."""
        self._loop, self.ends_at_seconds = asyncio.get_running_loop(), float("inf")
        self._early.clear()

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._early.wait()
        except TimeoutError:
            return

    def end_wait(self) -> None:
        if self._loop is None:
            # The renewer has not begun, and reads all leases when it does.
            return
        try:
            self._loop.call_soon_threadsafe(self._early.set)
        except RuntimeError:
            # The maintenance loop is closed: the worker has stopped.
            return

    def end_before(self, at_seconds: float) -> None:
        if at_seconds < self.ends_at_seconds:
            self.end_wait()


class LeaseRegistry:
    """All leases of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._leases: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self.renewal_timer = RenewalTimer()
        self.deadline_timer = RenewalTimer()

    def add(self, lease: Lease) -> None:
        """Have the lease renewed. An earlier lease on the same job is lost, since the job was claimed again."""
        with self._lock:
            job_id = lease.job.origin.id
            earlier = self._leases.get(job_id)
            self._leases[job_id] = lease
        if earlier is not None:
            earlier.lose()
        self.renewal_timer.end_before(lease.next_renewal_at_seconds)
        self.deadline_timer.end_before(lease.overdue_at_seconds)

    def remove(self, lease: Lease) -> None:
        """The attempt has ended: renew and interrupt it no more."""
        with self._lock:
            job_id = lease.job.origin.id
            if self._leases.get(job_id) is lease:
                del self._leases[job_id]

    def all(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())


@lru_cache(maxsize=64)
def _owner(worker: str, token: UUID) -> tuple[Actor, str]:
    """The actor of all jobs of one claim, which share a token, and the prefix of their request ids."""
    return Actor(Role.RUNNER, worker, token), digest(token.hex)[:8]
