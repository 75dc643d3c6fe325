"""The leases of this process: each job's record as last written, and how long its lease is certain to run.

Renewal and completion both advance a job's revision, from different threads. Both read and replace the record here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from uuid import UUID

from tenure.lifecycle.json_text import digest
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import Request


class Interruption(StrEnum):
    """Why an attempt should stop. A function may react to a cancel request when it chooses to."""

    LOST = "lost"
    STOPPING = "stopping"
    OVERDUE = "overdue"
    CANCEL_REQUESTED = "cancel_requested"


OnInterrupt = Callable[[Interruption], None]

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
        "_callbacks", "_lock", "_ordinal", "_request_prefix", "actor", "completing", "job", "local_deadline_seconds",
        "lost", "next_renewal_at_seconds", "overdue_at_seconds",
    )  # fmt: skip

    def __init__(self, job: Job, *, worker: str, token: UUID, sent_at_seconds: float) -> None:
        self.job = job
        self.actor, self._request_prefix = _owner(worker, token)
        self.lost = False
        self.completing = False
        """The outcome is being written. The lease is renewed until the store has replied."""
        running_ms = job.origin.policy.running_ms
        self.overdue_at_seconds = float("inf") if running_ms is None else sent_at_seconds + running_ms / 1000
        self._callbacks: tuple[OnInterrupt, ...] = ()
        self._ordinal = 0
        self._lock = threading.Lock()
        self.renewal_sent(sent_at_seconds)

    def request_id(self, verb: str) -> str:
        """The id of this lease's next request. It follows from the token, so no other owner can produce it."""
        with self._lock:
            self._ordinal += 1
            return f"{self._request_prefix}.{verb}.{self._ordinal}"

    def request(self, operation: Operation, request_id: str) -> Request:
        """A request of the owner, decided on the current record."""
        return Request(job=self.job, operations=(operation,), actor=self.actor, request_id=request_id, fresh=True)

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

    def on_interrupt(self, callback: OnInterrupt) -> None:
        """Call back, from any thread, when the attempt should stop; at once if it should already."""
        with self._lock:
            self._callbacks = (*self._callbacks, callback)
            lost, cancel_requested = self.lost, self.job.cancel_requested
        if lost:
            callback(Interruption.LOST)
        elif cancel_requested:
            callback(Interruption.CANCEL_REQUESTED)

    def lose(self) -> None:
        """Mark the lease as lost and interrupt its attempt, once."""
        with self._lock:
            if self.lost:
                return
            self.lost = True
        self.interrupt(Interruption.LOST)

    def interrupt(self, reason: Interruption) -> None:
        for callback in self._callbacks:
            callback(reason)


class LeaseRegistry:
    """All leases of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._leases: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self._on_add: tuple[Callable[[Lease], None], ...] = ()

    def on_add(self, callback: Callable[[Lease], None]) -> None:
        """Call back for each lease that is added from now on, in the thread that adds it."""
        self._on_add = (*self._on_add, callback)

    def add(self, lease: Lease) -> None:
        """Have the lease renewed. An earlier lease on the same job is lost, since the job was claimed again."""
        with self._lock:
            job_id = lease.job.origin.id
            earlier = self._leases.get(job_id)
            self._leases[job_id] = lease
        if earlier is not None:
            earlier.lose()
        for callback in self._on_add:
            callback(lease)

    def remove(self, lease: Lease) -> None:
        """The attempt has ended: renew and interrupt it no more."""
        # The callbacks refer to the attempt, which refers to the lease: without this, only the collector frees them.
        lease._callbacks = ()  # noqa: SLF001 - the same module
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
