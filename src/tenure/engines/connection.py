"""One connection of an engine: claims jobs while the engine has capacity, dispatches them, and records its replies.

While the connection lives, the gateway renews the leases of the engine's jobs. A connection that ends renews nothing
more and ends no job: the engine may have connected again, here or to another gateway. A job that no gateway renews is
recovered by its policy once its heartbeat deadline has passed by the database's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from uuid import UUID
from weakref import WeakValueDictionary

from tenure.engines.outcomes import ENGINE_STOPS
from tenure.engines.protocol import (
    AckMessage,
    CancelJob,
    EngineDrain,
    EngineHeartbeat,
    ErrorCode,
    ErrorMessage,
    FromEngine,
    GatewayDrain,
    GatewayMessage,
    Hello,
    JobComplete,
    JobFailedMessage,
    JobMessage,
    UnfinishedJob,
    Welcome,
    decode_reply,
    encode_message,
)
from tenure.engines.services import ConnectionServices, Socket, SocketClosed, dispatch_message, record_without_lease
from tenure.engines.session import EngineLease, SessionKeys, resume_leases
from tenure.errors import InvalidInput, RequestIdReused, TenureError
from tenure.lifecycle.records import Job, Role
from tenure.lifecycle.statuses import CLAIMED, LEASED
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.stores.contract import ClaimRequest, Subscription
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workers.reconnect import ReconnectBackoff

CLAIM_BATCH_MAX = 100
CLAIM_SHARE_MIN = 0.25
"""The share of an engine's capacity that should be free for the next claim while there is a backlog."""
CLAIM_PAUSE_SECONDS = 0.02
"""How long a claim waits for that, once."""
REPLIES_AT_ONCE = 64
"""How many messages of one engine are recorded at a time. The others wait in its socket."""
OUTGOING_MARGIN = 100
CLOSE_SECONDS_MAX = 1.0
ENDS = JobComplete, JobFailedMessage
LEASE_LOST = "the lease is lost; another attempt continues the job"

log = logging.getLogger("tenure.engines")


class ConnectionEnded(Exception):
    """The gateway ends the connection, for this reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code


class EngineConnection:
    """One socket of one engine, after its hello."""

    def __init__(
        self, services: ConnectionServices, socket: Socket, hello: Hello, *, keys: SessionKeys, kinds: tuple[str, ...]
    ) -> None:
        self._services, self._socket, self._hello, self.keys, self._kinds = services, socket, hello, keys, kinds
        self._store, self._seams = services.store, services.seams
        self.leases = LeaseRegistry()
        self._held: dict[UUID, EngineLease] = {}
        self._claim = hello.claim
        self._has_backlog = self._is_claiming = False
        self._outgoing: asyncio.Queue[GatewayMessage] = asyncio.Queue(2 * hello.capacity + OUTGOING_MARGIN)
        self._credit_changed = asyncio.Event()
        self._ended: asyncio.Future[ConnectionEnded] = asyncio.get_running_loop().create_future()
        self._replies: set[asyncio.Task[None]] = set()
        self._reply_slots = asyncio.Semaphore(REPLIES_AT_ONCE)
        self._job_locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
        self._heard_at_seconds = self._seams.clock.monotonic_seconds()
        self._waits_for_engine = True
        self._is_welcomed = False
        self._after_welcome: list[GatewayMessage] = []
        self.draining = False
        self.retired = False

    @property
    def engine_id(self) -> str:
        return self.keys.engine_id

    @property
    def epoch(self) -> int:
        return self._hello.epoch

    @property
    def capacity(self) -> int:
        return self._hello.capacity

    @property
    def unfinished(self) -> int:
        """How many jobs the engine holds and has not finished."""
        return len(self._held)

    @property
    def is_idle(self) -> bool:
        """The engine holds no job, and no claim for it is under way."""
        return not self._held and not self._is_claiming

    @property
    def credit(self) -> int:
        """How many more jobs the engine can take."""
        return 0 if self.draining or self.retired else self._hello.capacity - len(self._held)

    def drain(self, reason: str) -> None:
        """Dispatch nothing more. Leases are renewed and outcomes recorded until the engine has none left."""
        if not self.draining:
            self.draining = True
            self._send(GatewayDrain(reason=reason))
        self._credit_changed.set()

    def retire(self, code: ErrorCode, message: str) -> None:
        """End the connection. From now on it dispatches and records nothing."""
        self.retired = True
        if not self._ended.done():
            self._ended.set_result(ConnectionEnded(code, message))

    async def run(self) -> None:
        """Serve the engine until its socket closes, it is silent, or the gateway ends the connection."""
        welcome = self._seams.spawn.task(self._welcome(), name="tenure-engine-welcome")
        until: set[asyncio.Future[object]] = {welcome, self._ended}  # type: ignore[arg-type]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        if not welcome.done():
            welcome.cancel()
            await self._finish([welcome])
            return
        welcome.result()
        renewer = LeaseRenewer(
            self._store,
            self.leases,
            self._seams,
            worker=self.engine_id,
            availability=self._services.availability,
        )
        spawn = self._seams.spawn.task
        tasks: set[asyncio.Task[None]] = {
            spawn(renewer.run(), name="tenure-engine-renewer"),
            spawn(renewer.check_deadlines(), name="tenure-engine-deadlines"),
            spawn(renewer.watch_changes(), name="tenure-engine-changes"),
            spawn(self._claim_jobs(), name="tenure-engine-claims"),
            spawn(self._receive(), name="tenure-engine-receives"),
            spawn(self._write(), name="tenure-engine-sends"),
            spawn(self._watch_silence(), name="tenure-engine-silence"),
        }
        waited: set[asyncio.Future[object]] = {*tasks, self._ended}  # type: ignore[arg-type]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.retired = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5.0)
            await self._finish(tasks)

    async def _finish(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Log why the connection ended. Replies that were received are recorded."""
        if self._replies:
            await asyncio.wait(self._replies, timeout=self._services.settings.silence_seconds)
        if self._ended.done():
            ended = self._ended.result()
            await self._close(4000, ErrorMessage(code=ended.code, message=str(ended)))
            reason = str(ended)
        else:
            failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
            reason = next((str(one) for one in failures if isinstance(one, SocketClosed)), "")
            for error in failures:
                if not isinstance(error, SocketClosed):
                    log.error("connection of engine %s failed", self.engine_id, exc_info=error)
            await self._close(1011, None)
        left = counted(self.unfinished, "unfinished job")
        log.info("engine %s disconnected (%s) with %s", self.engine_id, reason or "socket closed", left)

    async def _close(self, code: int, last: ErrorMessage | None) -> None:
        # An engine that reads nothing does not take the message either; the socket is closed all the same.
        if last is not None:
            with contextlib.suppress(SocketClosed, TimeoutError, RuntimeError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._socket.send(encode_message(last))
        with contextlib.suppress(SocketClosed, TimeoutError, RuntimeError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._socket.close(code, "" if last is None else last.code)

    async def _welcome(self) -> None:
        resumed = await self._services.until_available("resuming jobs of an engine", self._resume)
        for lease in resumed.values():
            self._hold(lease)
        settings = self._services.settings
        welcome = Welcome(
            gateway=self._services.name,
            epoch=self.epoch,
            heartbeat_seconds=settings.heartbeat_seconds,
            silence_seconds=settings.silence_seconds,
            jobs=tuple(UnfinishedJob(job_id, lease.claim) for job_id, lease in resumed.items()),
        )
        self._is_welcomed = True
        for message in (welcome, *self._after_welcome):
            self._send(message)
        facts = (self.engine_id, ", ".join(self._kinds), self._hello.capacity, counted(len(resumed), "resumed job"))
        log.info("engine %s connected for %s, capacity %s, %s", *facts)

    async def _resume(self) -> dict[UUID, EngineLease]:
        return await resume_leases(
            self._store,
            self._seams,
            keys=self.keys,
            claims={held.job_id: held.claim for held in self._hello.jobs},
            epoch=self.epoch,
            on_interrupt=self._interrupted,
        )

    # From the engine.

    async def _receive(self) -> None:
        while True:
            self._waits_for_engine = True
            try:
                message = decode_reply(await self._socket.receive())
            except InvalidInput as problem:
                self.retire("invalid_message", str(problem))
                return
            self._waits_for_engine = False
            self._heard_at_seconds = self._seams.clock.monotonic_seconds()
            await self._reply_slots.acquire()
            reply = self._seams.spawn.task(self._reply(message), name="tenure-engine-reply")
            self._replies.add(reply)
            reply.add_done_callback(self._replied)

    def _replied(self, reply: asyncio.Task[None]) -> None:
        self._replies.discard(reply)
        self._reply_slots.release()
        if not reply.cancelled() and (error := reply.exception()) is not None:
            log.error("message of engine %s not recorded", self.engine_id, exc_info=error)

    async def _reply(self, message: FromEngine) -> None:
        match message:
            case Hello():
                self.retire("invalid_message", "a connection has one hello")
            case EngineHeartbeat(id=number):
                self._send(AckMessage(id=number))
            case EngineDrain(id=number):
                self.draining = True
                self._send(AckMessage(id=number))
            case JobMessage():
                # Messages about one job are recorded in their order.
                async with self._job_locks.setdefault(message.job_id, asyncio.Lock()):
                    self._send(await self._record(message))

    async def _record(self, message: JobMessage) -> AckMessage:
        lease = self._held.get(message.job_id)
        if lease is None or lease.claim != message.claim:
            # It was sent again after a reconnect, or comes too late.
            return await self._services.until_available(
                "recording a message of an engine",
                lambda: record_without_lease(self._services, message, keys=self.keys, epoch=self.epoch),
            )
        ack = await self._services.outcomes.record(lease, message)
        if lease.lost or lease.job.status not in LEASED or _ends(message, ack):
            if ack.outcome == "lost" and not isinstance(message, ENDS):
                self._take_back(lease, LEASE_LOST)
            self._drop(lease)
        else:
            self.leases.deadline_timer.end_before(lease.overdue_at_seconds)
        return ack

    async def _watch_silence(self) -> None:
        limit = self._services.settings.silence_seconds
        while True:
            if not self._waits_for_engine:
                # The gateway records what the engine has sent, and reads nothing meanwhile.
                self._heard_at_seconds = self._seams.clock.monotonic_seconds()
            silent_seconds = self._seams.clock.monotonic_seconds() - self._heard_at_seconds
            if silent_seconds >= limit:
                self.retire("silent", f"no message for {limit} s; connect again")
                return
            # The difference of two times may be too small to advance a clock.
            await self._seams.clock.sleep(max(limit - silent_seconds, 0.001))

    # To the engine.

    def _send(self, message: GatewayMessage) -> None:
        if not self._is_welcomed:
            # The welcome is the first message: a cancel or a drain may come while jobs are resumed.
            self._after_welcome.append(message)
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self.retire("too_slow", f"{self._outgoing.qsize()} messages are unread; connect again")

    async def _write(self) -> None:
        while True:
            await self._socket.send(encode_message(await self._outgoing.get()))

    async def _claim_jobs(self) -> None:
        settings, backoff = self._services.settings, ReconnectBackoff(self._seams, self._services.availability)
        try:
            while True:
                try:
                    async with self._store.wakeups(settings.queues) as wakeups:
                        while True:
                            await self._claim_or_wait(wakeups)
                            backoff.reset()
                except TenureError as error:
                    await self._seams.clock.sleep(backoff.failed("claim for an engine", error))
        finally:
            backoff.end()

    async def _claim_or_wait(self, wakeups: Subscription) -> None:
        self._credit_changed.clear()
        if self.credit <= 0:
            await self._credit_changed.wait()
        elif self._has_backlog and self.credit < CLAIM_SHARE_MIN * self.capacity:
            # The engine has work: one claim for the next jobs that it finishes instead of a claim for each.
            self._has_backlog = False
            await self._seams.clock.sleep(CLAIM_PAUSE_SECONDS)
        else:
            self._is_claiming = True
            try:
                claimed = await self._claim_once()
            finally:
                self._is_claiming = False
            if not claimed:
                await wakeups.wait(self._services.settings.poll_seconds)

    async def _claim_once(self) -> int:
        """Claim up to the engine's credit, and dispatch. Sent again under the same number until the store replies."""
        number = self._claim + 1
        request = ClaimRequest(
            queues=self._services.settings.queues,
            kinds=self._kinds,
            limit=min(self.credit, CLAIM_BATCH_MAX),
            worker=self.engine_id,
            token=self.keys.lease_token(number),
            request_id=self.keys.claim_request_id(number),
            start=False,
            role=Role.GATEWAY,
            code_version=self._services.code_version,
        )
        sent_at_seconds = self._seams.clock.monotonic_seconds()
        try:
            jobs = await self._services.until_available("claim for an engine", lambda: self._store.claim(request))
        except RequestIdReused:
            # An earlier gateway claimed for this session under this number, with another credit.
            self._claim = number
            return 1
        self._has_backlog = bool(jobs)
        if not jobs:
            return 0
        self._claim = number
        self._services.meter.claimed(jobs)
        for job in jobs:
            if job.token == request.token and job.status is CLAIMED and job.id not in self._held:
                await self._dispatch(job, number, sent_at_seconds)
        return len(jobs)

    async def _dispatch(self, job: Job, claim: int, sent_at_seconds: float) -> None:
        lease = EngineLease(
            job,
            keys=self.keys,
            claim=claim,
            epoch=self.epoch,
            sent_at_seconds=sent_at_seconds,
            on_interrupt=self._interrupted,
        )
        if self.draining:
            # The drain came while the claim was sent.
            await self._services.outcomes.release(lease, ENGINE_STOPS)
            return
        lease.restart_timeout(self._seams.clock.monotonic_seconds())
        self._hold(lease)
        self._send(dispatch_message(job, claim))

    def _hold(self, lease: EngineLease) -> None:
        self._held[lease.job.id] = lease
        self.leases.add(lease)

    def _drop(self, lease: EngineLease) -> None:
        """The engine no longer holds the job: it has finished it, or lost it."""
        if self._held.get(lease.job.id) is lease:
            del self._held[lease.job.id]
            self.leases.remove(lease)
            self._credit_changed.set()

    # Interruptions of leases.

    def _interrupted(self, lease: Lease, reason: Interruption) -> None:
        assert isinstance(lease, EngineLease)
        if self.retired:
            return
        match reason:
            case Interruption.CANCEL_REQUESTED:
                self._cancel(lease, hard=False, reason=lease.job.cancel_reason or "requested")
            case Interruption.OVERDUE:
                task = self._seams.spawn.task(self._time_out(lease), name="tenure-engine-timeout")
                self._replies.add(task)
                task.add_done_callback(self._replies.discard)
            case _:
                self._take_back(lease, LEASE_LOST)

    def _take_back(self, lease: EngineLease, reason: str) -> None:
        """The engine no longer holds the job. It receives a hard cancel, once."""
        if self._held.get(lease.job.id) is lease:
            self._cancel(lease, hard=True, reason=reason)
            self._drop(lease)

    def _cancel(self, lease: EngineLease, *, hard: bool, reason: str) -> None:
        self._send(CancelJob(job_id=lease.job.id, claim=lease.claim, hard=hard, reason=reason))

    async def _time_out(self, lease: EngineLease) -> None:
        """End an attempt whose timeout has passed: by the job's owner if it runs, and by recovery if it never
        started."""
        job = lease.job
        async with self._job_locks.setdefault(job.id, asyncio.Lock()):
            if self._held.get(job.id) is not lease or lease.job.status is not job.status:
                return
            try:
                if job.status is CLAIMED:
                    await self._services.recovery.recover([job])
                else:
                    await self._services.outcomes.time_out(lease)
            except TenureError as error:
                template = "job %s (%s) timeout not recorded; recovery takes it over: %s"
                log.warning(template, job.id, job.kind, error, extra=job_fields(job))
            self._take_back(lease, f"it was {job.status} for too long")


def _ends(message: JobMessage, ack: AckMessage) -> bool:
    """Whether the engine has finished the job by this message, or the gateway no longer holds it."""
    return ack.outcome == "lost" or (ack.outcome == "recorded" and isinstance(message, ENDS))
