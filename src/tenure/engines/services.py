"""What connections over WebSocket and requests over HTTP share: the transport, the store, and messages about jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from tenure.engines.outcomes import EngineOutcomes
from tenure.engines.protocol import AckMessage, JobDispatch, JobMessage
from tenure.engines.session import SessionKeys, former_lease
from tenure.engines.settings import GatewaySettings
from tenure.errors import StoreUnavailable
from tenure.lifecycle.records import Job
from tenure.observe.meter import Meter
from tenure.seams import Seams
from tenure.stores.contract import Store
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

T = TypeVar("T")


class SocketClosed(Exception):
    """The other side has closed the socket."""


class Socket(Protocol):
    """The transport of a connection: text messages in both directions."""

    async def receive(self) -> str:
        """The next message. SocketClosed: there is none any more. InvalidInput: it is not a text message."""
        ...

    async def send(self, text: str) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class ConnectionServices:
    """What all connections of a gateway share."""

    def __init__(
        self,
        store: Store,
        seams: Seams,
        *,
        settings: GatewaySettings,
        outcomes: EngineOutcomes,
        recovery: RecoveryWorker,
        meter: Meter,
        availability: DatabaseAvailability,
        name: str,
        code_version: str | None,
    ) -> None:
        self.store, self.seams, self.settings, self.name = store, seams, settings, name
        self.outcomes, self.recovery, self.meter, self.code_version = outcomes, recovery, meter, code_version
        self.availability = availability

    async def until_available(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until the database replies. Meanwhile the engine waits; its socket stays open."""
        backoff = ReconnectBackoff(self.seams, self.availability)
        try:
            while True:
                try:
                    reply = await ask()
                except StoreUnavailable as error:
                    await self.seams.clock.sleep(backoff.failed(what, error))
                else:
                    backoff.reset()
                    return reply
        finally:
            backoff.end()


async def record_without_lease(
    services: ConnectionServices, message: JobMessage, *, keys: SessionKeys, epoch: int
) -> AckMessage:
    """Record a message under a lease that the gateway has not kept. An end that was recorded before stays so."""
    job = (await services.store.read([message.job_id])).get(message.job_id)
    if job is None:
        return AckMessage(id=message.id, outcome="lost", reason=f"there is no job {message.job_id}")
    lease = former_lease(job, keys=keys, claim=message.claim, epoch=epoch)
    log_of_job = (await services.store.history([job.id]))[job.id]
    earlier = services.outcomes.recorded_before(lease, message, log_of_job)
    return earlier or await services.outcomes.record(lease, message)


def dispatch_message(job: Job, claim: int) -> JobDispatch:
    """The message that hands a claimed job to its engine."""
    origin, timeouts = job.origin, job.policy.timeouts
    return JobDispatch(
        job_id=job.id,
        claim=claim,
        kind=job.kind,
        attempt=job.attempt,
        payload=msgspec.Raw(origin.payload.encode()),
        correlation_id=job.correlation_id,
        trace=origin.trace,
        submitted_by=origin.submitted_by,
        claimed_seconds=timeouts.claimed_seconds,
        running_seconds=timeouts.running_seconds,
        lease_seconds=job.policy.lease_seconds,
        heartbeat_seconds=job.policy.heartbeat_ms / 1000,
    )
