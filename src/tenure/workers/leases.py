"""The jobs that this process holds: their records as last written, and how long their leases can be trusted.

Heartbeats and settlement both advance a job's revision, from different threads; this is where they meet.
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
    """What whoever works on a job is told, so that they stop. A request to cancel they may answer in their own time."""

    LOST = "lost"
    STOPPING = "stopping"
    OVERDUE = "overdue"
    CANCEL_REQUESTED = "cancel_requested"


Told = Callable[[Interruption], None]

LEFT_LEAST = 0.25
"""The share of its lease that is left at the latest when a beat is sent that should renew it."""
LEFT_AT_RENEWAL = 0.4
"""The share that is left when a beat is sent because the next one by the policy would come too late."""
TRY_AGAIN = 0.05
"""The share that lies at least between two beats."""


class Lease:
    """One job under a lease. The record is replaced, never changed; whoever learns of a newer one brings it here.

    `trusted_until_seconds` and `next_beat_at_seconds` are moments of the process's own monotonic clock.
    """

    __slots__ = (
        "_door", "_ordinal", "_seal", "_told", "actor", "closing", "job", "lost", "next_beat_at_seconds",
        "overdue_at_seconds", "trusted_until_seconds",
    )  # fmt: skip

    def __init__(self, job: Job, *, worker: str, token: UUID, sent_at_seconds: float) -> None:
        self.job = job
        self.actor, self._seal = _owner(worker, token)
        self.lost = False
        self.closing = False
        """Its outcome is known and being written. Its heartbeats go on until that is answered."""
        self.overdue_at_seconds = _overdue_at(job, sent_at_seconds)
        self._told: tuple[Told, ...] = ()
        self._ordinal = 0
        self._door = threading.Lock()
        self.beat_sent(sent_at_seconds)

    def request_id(self, verb: str) -> str:
        """A name for the next request of this lease: nobody without its token could have made it."""
        with self._door:
            self._ordinal += 1
            return f"{self._seal}.{verb}.{self._ordinal}"

    def request(self, operation: Operation, request_id: str) -> Request:
        """This asked of the job as its holder, decided upon the record as last heard of."""
        return Request(job=self.job, operations=(operation,), actor=self.actor, request_id=request_id, fresh=True)

    def adopt(self, job: Job) -> bool:
        """Take over a newer record, if it is still under our lease; otherwise the lease is lost."""
        if job.token != self.actor.token:
            self.lose()
            return False
        with self._door:
            news = job.cancel_requested and not self.job.cancel_requested
            if job.rev > self.job.rev:
                self.job = job
        if news:
            self.interrupt(Interruption.CANCEL_REQUESTED)
        return True

    def beat_sent(self, sent_at_seconds: float, *, renewed: bool = True) -> None:
        """Trust ends at send time + lease, not at reply time: a slow reply must not stretch our ownership."""
        policy = self.job.origin.policy
        lease_seconds = policy.lease_ms / 1000
        if renewed:
            self.trusted_until_seconds = sent_at_seconds + lease_seconds
        self.next_beat_at_seconds = sent_at_seconds + policy.heartbeat_ms / 1000
        if self.next_beat_at_seconds > self.trusted_until_seconds - LEFT_LEAST * lease_seconds:
            # A beat renews only once half of the lease is gone by the database's clock. One that came a moment too soon
            # for that is followed by another soon after, however seldom the policy has them.
            soon = self.trusted_until_seconds - LEFT_AT_RENEWAL * lease_seconds
            self.next_beat_at_seconds = max(soon, sent_at_seconds + TRY_AGAIN * lease_seconds)

    def when_interrupted(self, told: Told) -> None:
        """Call this, from any thread, when the work should stop; at once, where it should already."""
        with self._door:
            self._told = (*self._told, told)
            lost, asked = self.lost, self.job.cancel_requested
        if lost:
            told(Interruption.LOST)
        elif asked:
            told(Interruption.CANCEL_REQUESTED)

    def lose(self) -> None:
        """The lease is gone: whoever works under it is told, once."""
        with self._door:
            if self.lost:
                return
            self.lost = True
        self.interrupt(Interruption.LOST)

    def interrupt(self, why: Interruption) -> None:
        for told in self._told:
            told(why)


class LeaseRegistry:
    """All jobs that this process holds, for the threads that care for them."""

    def __init__(self) -> None:
        self._held: dict[UUID, Lease] = {}
        self._door = threading.Lock()
        self.when_taken: Callable[[Lease], None] = lambda _held: None

    def take(self, held: Lease) -> None:
        """Care for this job. An earlier lease on the same job is gone: otherwise nobody could have claimed it."""
        with self._door:
            job_id = held.job.origin.id
            before = self._held.get(job_id)
            self._held[job_id] = held
        if before is not None:
            before.lose()
        self.when_taken(held)

    def let_go(self, held: Lease) -> None:
        with self._door:
            job_id = held.job.origin.id
            if self._held.get(job_id) is held:
                del self._held[job_id]

    def all(self) -> list[Lease]:
        with self._door:
            return list(self._held.values())


@lru_cache(maxsize=64)
def _owner(worker: str, token: UUID) -> tuple[Actor, str]:
    """Who holds the jobs that were won with this token, and the mark of their requests. A whole batch has one token."""
    return Actor(Role.RUNNER, worker, token), digest(token.hex)[:8]


def _overdue_at(job: Job, sent_at_seconds: float) -> float:
    allowed_ms = job.policy.running_ms
    return float("inf") if allowed_ms is None else sent_at_seconds + allowed_ms / 1000
