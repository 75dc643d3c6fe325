"""The protocol over plain HTTP, for engines that cannot keep a socket: claim with a wait, renew, and report.

The gateway keeps nothing between two requests. The engine numbers its claims and renews its leases itself: by `renew`
at least every `heartbeat_seconds` of the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.engines.gateway import STOPPING, Gateway
from tenure.engines.protocol import (
    CAPACITY_MAX,
    KINDS_MAX,
    AckMessage,
    JobDispatch,
    JobMessage,
    Name,
    SessionSecret,
    UnfinishedJob,
)
from tenure.engines.services import dispatch_message, record_without_lease
from tenure.engines.session import EngineLease, SessionKeys, resume_leases
from tenure.errors import InvalidInput, TenureError
from tenure.lifecycle.records import Job, Role
from tenure.lifecycle.statuses import CLAIMED
from tenure.stores.contract import ClaimRequest

WAIT_SECONDS_MAX = 55.0
POLL_EPOCH = 1


class PollRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What every request has: the engine, and the secret of its session."""

    engine_id: Name
    session: SessionSecret


class PollClaim(PollRequest, frozen=True, kw_only=True):
    """Claim up to `capacity` jobs, and wait for one. The same claim number returns the same jobs."""

    kinds: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=KINDS_MAX)]
    claim: Annotated[int, Meta(ge=1, le=2**31)]
    capacity: Annotated[int, Meta(ge=1, le=CAPACITY_MAX)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 20.0


class PollJobs(msgspec.Struct, frozen=True):
    """The reply to a claim."""

    jobs: tuple[JobDispatch, ...]


class PollRenew(PollRequest, frozen=True, kw_only=True):
    """Renew the leases of these jobs."""

    jobs: Annotated[tuple[UnfinishedJob, ...], Meta(min_length=1, max_length=CAPACITY_MAX)]


class Renewal(msgspec.Struct, frozen=True):
    """Whether the engine still holds a job, and whether its end was requested."""

    job_id: str
    outcome: Literal["renewed", "lost"]
    cancel_requested: bool = False


class PollRenewals(msgspec.Struct, frozen=True):
    """The reply to a renewal, in its order."""

    jobs: tuple[Renewal, ...]


class GatewayStopping(TenureError):
    """The gateway claims nothing more."""

    def __init__(self) -> None:
        super().__init__(STOPPING)


class LongPoll:
    """Serves the requests of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._services = gateway, gateway.services
        self._store, self._seams = self._services.store, self._services.seams

    async def claim(
        self, request: PollClaim, *, token_id: str, disconnected: Callable[[], Awaitable[bool]]
    ) -> PollJobs:
        """Claim jobs, and wait for them. Nothing is claimed for an engine that has disconnected meanwhile."""
        unknown = sorted(set(request.kinds) - set(self._gateway.definitions))
        if unknown:
            raise InvalidInput("kinds", f"not declared as remote jobs of this app: {', '.join(unknown)}")
        keys = SessionKeys(request.engine_id, request.session, token_id)
        settings = self._services.settings
        wanted = ClaimRequest(
            queues=settings.queues,
            kinds=tuple(sorted(set(request.kinds))),
            limit=request.capacity,
            worker=request.engine_id,
            token=keys.lease_token(request.claim),
            request_id=keys.claim_request_id(request.claim),
            start=False,
            role=Role.GATEWAY,
            code_version=self._services.code_version,
        )
        deadline = self._seams.clock.monotonic_seconds() + request.wait_seconds
        async with self._store.wakeups(settings.queues) as wakeups:
            while True:
                if self._gateway.stopping:
                    raise GatewayStopping
                if await disconnected():
                    return PollJobs(())
                claimed = await self._store.claim(wanted)
                left = deadline - self._seams.clock.monotonic_seconds()
                if claimed or left <= 0:
                    self._services.meter.claimed(claimed)
                    return _dispatched(claimed, wanted, request.claim)
                await wakeups.wait(min(left, settings.poll_seconds))

    async def renew(self, request: PollRenew, *, token_id: str) -> PollRenewals:
        keys = SessionKeys(request.engine_id, request.session, token_id)
        claims = {held.job_id: held.claim for held in request.jobs}
        leases = await resume_leases(self._store, self._seams, keys=keys, claims=claims, epoch=POLL_EPOCH)
        return PollRenewals(tuple(_renewal(held, leases.get(held.job_id)) for held in request.jobs))

    async def report(self, message: JobMessage, *, keys: SessionKeys) -> AckMessage:
        """Record a message about a job, as over a socket."""
        return await record_without_lease(self._services, message, keys=keys, epoch=POLL_EPOCH)


def _renewal(held: UnfinishedJob, lease: EngineLease | None) -> Renewal:
    if lease is None or lease.claim != held.claim:
        return Renewal(str(held.job_id), "lost")
    return Renewal(str(held.job_id), "renewed", lease.job.cancel_requested)


def _dispatched(claimed: list[Job], request: ClaimRequest, number: int) -> PollJobs:
    held = [job for job in claimed if job.token == request.token and job.status is CLAIMED]
    return PollJobs(tuple(dispatch_message(job, number) for job in held))
