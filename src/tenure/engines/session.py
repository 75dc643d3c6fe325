"""The session of an engine: what its leases and claims are derived from, and the leases that a gateway holds for it.

Lease tokens and request ids follow from the secret of the session and the number of the claim. Another gateway derives
the same ones, so that an engine resumes its jobs there and an outcome that is sent twice is applied once. No gateway
keeps a session in the database.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from tenure.errors import RevisionConflict
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.operations import Heartbeat
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.seams import Seams
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure
from tenure.workers.leases import Lease, OnInterrupt

RESUME_TRIES = 5
RESUME_PAUSE_SECONDS = 0.05
ONCE = frozenset({"ack", "start", "end"})
"""What happens once in an attempt. A gateway that repeats it sends the same request id."""


class SessionKeys(msgspec.Struct, frozen=True):
    """Derives the tokens and request ids of one engine session. `token_id` is that of the engine's access token."""

    engine_id: str
    secret: str
    token_id: str

    def lease_token(self, claim: int) -> UUID:
        """The secret token of all leases of one claim."""
        return UUID(bytes=self._derive(f"lease/{claim}")[:16], version=4)

    def claim_request_id(self, claim: int) -> str:
        return f"{digest(self._derive('claims').hex())[:16]}.{claim}"

    @property
    def public_id(self) -> str:
        """Identifies the session without revealing its secret."""
        return digest(self._derive("session").hex())

    def _derive(self, purpose: str) -> bytes:
        message = f"{self.token_id}/{self.engine_id}/{purpose}"
        return hmac.new(self.secret.encode(), message.encode(), hashlib.sha256).digest()


class EngineLease(Lease):
    """The lease of a job that an engine runs. The gateway owns it on the engine's behalf."""

    __slots__ = ("_epoch", "claim", "trace")

    def __init__(
        self,
        job: Job,
        *,
        keys: SessionKeys,
        claim: int,
        epoch: int,
        sent_at_seconds: float,
        on_interrupt: OnInterrupt | None = None,
    ) -> None:
        token = keys.lease_token(claim)
        super().__init__(
            job, worker=keys.engine_id, token=token, sent_at_seconds=sent_at_seconds, on_interrupt=on_interrupt
        )
        self.actor = Actor(Role.GATEWAY, keys.engine_id, token)
        self.claim, self._epoch = claim, epoch
        self.trace: str | None = None
        """The traceparent of the engine's span of the attempt, once the engine has reported one."""
        self.overdue_at_seconds = float("inf")

    def request_id(self, verb: str) -> str:
        if verb in ONCE:
            return f"{self._request_prefix}.{verb}"
        return f"{super().request_id(verb)}.{self._epoch}"

    def restart_timeout(self, now_seconds: float) -> None:
        """Measure the timeout of the job's status from now: after the claim, the ack, and the start."""
        policy = self.job.policy
        limit_ms = {CLAIMED: policy.claimed_ms, RUNNING: policy.running_ms}.get(self.job.status)
        self.overdue_at_seconds = float("inf") if limit_ms is None else now_seconds + limit_ms / 1000
        self._end_at_deadline(now_seconds)

    def continue_timeout(self, now_seconds: float) -> None:
        """Continue the timeout that the job has by the database's clock, right after a write."""
        timeout_at = self.job.timeout_at
        left = float("inf") if timeout_at is None else (timeout_at - self.job.updated_at).total_seconds()
        self.overdue_at_seconds = now_seconds + left
        self._end_at_deadline(now_seconds)

    def _end_at_deadline(self, now_seconds: float) -> None:
        """A job that runs ends at its deadline. One that is only claimed has its timeout until it is started."""
        if self.job.status is RUNNING:
            self.end_by(now_seconds + self.seconds_to_deadline())


class LeaseReader(ApplyStore, Protocol):
    """The part of a store that resumes leases."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...


async def resume_leases(
    store: LeaseReader,
    seams: Seams,
    *,
    keys: SessionKeys,
    claims: Mapping[UUID, int],
    epoch: int,
    on_interrupt: OnInterrupt | None = None,
) -> dict[UUID, EngineLease]:
    """The leases of jobs that the session claimed, renewed by heartbeats. It does not hold the jobs that are missing.

    `claims` has the number of the claim of each job.
    """
    resumed: dict[UUID, EngineLease] = {}
    jobs = await store.read(list(claims)) if claims else {}
    for attempt in range(RESUME_TRIES):
        sent_at_seconds = seams.clock.monotonic_seconds()
        leases = [
            EngineLease(
                msgspec.structs.replace(job, token=keys.lease_token(claims[job.id])),
                keys=keys,
                claim=claims[job.id],
                epoch=epoch,
                # Unless the heartbeat renews the lease, at least half of it remains.
                sent_at_seconds=sent_at_seconds - job.policy.lease_seconds / 2,
                on_interrupt=on_interrupt,
            )
            for job in jobs.values()
            if job.leased
        ]
        if not leases:
            break
        name = seams.random.name()
        requests = [lease.request(Heartbeat(), f"{lease.request_id('resume')}.{name}") for lease in leases]
        jobs, is_busy = {}, False
        for lease, outcome in zip(leases, await store.apply(requests), strict=True):
            match outcome:
                case Applied(renewed=renewed):
                    lease.adopt(outcome.job)
                    if renewed:
                        lease.renewal_sent(sent_at_seconds)
                    lease.continue_timeout(sent_at_seconds)
                    resumed[lease.job.id] = lease
                case Failure(RevisionConflict(current=Job() as current)):
                    jobs[current.id] = current
                case Busy(job=job):
                    jobs[job.id], is_busy = job, True
        if is_busy:
            await seams.clock.sleep(RESUME_PAUSE_SECONDS * 2**attempt)
    return resumed


def former_lease(job: Job, *, keys: SessionKeys, claim: int, epoch: int) -> EngineLease:
    """A lease of a job that the session may no longer hold. The store refuses what it does not, and recognises a
    request that was applied before."""
    held = msgspec.structs.replace(job, token=keys.lease_token(claim))
    return EngineLease(held, keys=keys, claim=claim, epoch=epoch, sent_at_seconds=0.0)
