"""The reference engine in Python: runs functions for the jobs that a gateway dispatches. It needs no database.

engine = Engine("ws://127.0.0.1:8080/engine", token=..., engine_id="e1")

@engine.handles("render")
async def render(job: EngineJob) -> str:
    await job.progress(50)
    return f"{job.payload['scene']}.png"

await engine.run()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import count
from typing import Any, Protocol
from uuid import UUID

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from tenure.engines.protocol import (
    ERROR_LENGTH_MAX,
    MESSAGE_BYTES_MAX,
    SUBPROTOCOL,
    AckMessage,
    CancelJob,
    EngineDrain,
    EngineError,
    EngineHeartbeat,
    EngineMessage,
    ErrorMessage,
    FailedAction,
    GatewayDrain,
    Hello,
    JobAck,
    JobComplete,
    JobDispatch,
    JobFailedMessage,
    JobMessage,
    JobProgress,
    JobStarted,
    UnfinishedJob,
    Welcome,
    decode_gateway_message,
    encode_message,
)
from tenure.errors import PermanentError, TenureError
from tenure.lifecycle.json_text import clean_text, load
from tenure.observe.log_format import counted
from tenure.seams import SYSTEM, Seams
from tenure.workers.execution.outcomes import describe_error
from tenure.workers.reconnect import ReconnectBackoff

RESULT_BYTES_MAX = MESSAGE_BYTES_MAX - 1000
LOGGED_LENGTH_MAX = 500
FINAL_STATUSES = {
    401: "its access token is missing or wrong",
    403: "its access token is missing or wrong, or the path is not /engine",
    404: "there is no gateway at this path",
}
"""HTTP statuses that the next connection would be refused with as well."""

log = logging.getLogger("tenure.engine")


class EngineSocket(Protocol):
    """What the engine needs of a WebSocket. After its end `send` raises; so does `recv`, while iteration stops."""

    async def send(self, message: str) -> None: ...

    async def recv(self) -> str | bytes: ...

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...


class EngineTracing(Protocol):
    """What traces the engine's attempts: `tenure.observe.tracing.Tracing`."""

    def engine_run(
        self, *, kind: str, job_id: str, attempt: int, trace: str | None
    ) -> AbstractContextManager[str | None]:
        """Around the handler: a span whose traceparent is entered."""
        ...


class EngineStopped(TenureError):
    """The gateway has refused the engine for good, for example because of its token."""


class EngineJob:
    """A dispatched job, as its handler sees it."""

    def __init__(self, engine: Engine, dispatch: JobDispatch) -> None:
        self._engine, self.dispatch = engine, dispatch
        self.payload: dict[str, Any] = msgspec.json.decode(dispatch.payload)
        self.cancel_requested = asyncio.Event()
        self.started: JobStarted | None = None
        self.trace = dispatch.trace
        """The W3C traceparent for calls that the handler makes: of the engine's span, or else of the enqueuer's."""

    @property
    def id(self) -> UUID:
        return self.dispatch.job_id

    @property
    def held(self) -> UnfinishedJob:
        return UnfinishedJob(self.dispatch.job_id, self.dispatch.claim)

    async def progress(self, percent: int, message: str | None = None) -> None:
        dispatch, number = self.dispatch, self._engine.next_id()
        text = None if message is None else clean_text(message)
        report = JobProgress(id=number, job_id=dispatch.job_id, claim=dispatch.claim, percent=percent, message=text)
        await self._engine.send(report)


Handler = Callable[[EngineJob], Awaitable[Any]]


class Engine:
    """Runs jobs until it is stopped. It connects again after a lost connection and continues its jobs.

    With `tracing` each attempt has a span, which is reported to the gateway: `Engine(..., tracing=Tracing())`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        engine_id: str,
        capacity: int = 4,
        version: str = "unknown",
        tracing: EngineTracing | None = None,
        seams: Seams = SYSTEM,
    ) -> None:
        self._url, self._token, self._engine_id, self._capacity = url, token, engine_id, capacity
        self._version, self._tracing, self._seams = version, tracing, seams
        self._session = f"{seams.random.token().hex}{seams.random.token().hex}"
        self._handlers: dict[str, Handler] = {}
        self._ids = count(1)
        self._epoch = self._claim = 0
        self._jobs: dict[UUID, EngineJob] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._unacknowledged: dict[int, JobMessage] = {}
        """Ends of jobs, which are sent again after a reconnect until the gateway has recorded them."""
        self._socket: EngineSocket | None = None
        self._stopping = asyncio.Event()
        self._backoff = ReconnectBackoff(seams)
        self._is_loss_logged = False

    def handles(self, kind: str) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self._handlers[kind] = handler
            return handler

        return register

    def next_id(self) -> int:
        return next(self._ids)

    def stop(self) -> None:
        """Take no more jobs, finish those that run, then disconnect."""
        self._stopping.set()

    async def run(self) -> None:
        """Run jobs until `stop`. EngineStopped: no gateway at this address would accept the engine."""
        if not self._handlers:
            raise EngineStopped("the engine handles no kind of job; declare a function with `@engine.handles(kind)`")
        while not self._is_done():
            try:
                await self._connect()
            except InvalidURI as problem:
                raise EngineStopped(f"{problem}; it must be as ws://127.0.0.1:8080/engine") from None
            except (OSError, WebSocketException) as error:
                # A load balancer whose gateways restart replies with a status, too.
                status = error.response.status_code if isinstance(error, InvalidStatus) else 0
                if (refusal := FINAL_STATUSES.get(status)) is not None:
                    raise EngineStopped(f"{self._url} refused the engine: {refusal} (HTTP {status})") from None
                self._lost(str(error) or type(error).__name__)
            if not self._is_done():
                await self._backoff.wait()

    def _lost(self, reason: str) -> None:
        """Log the loss of a connection, once until there is another."""
        level = logging.DEBUG if self._is_loss_logged else logging.WARNING
        self._is_loss_logged = True
        log.log(level, "connection to %s lost or refused, connecting again: %s", self._url, reason)

    def _is_done(self) -> bool:
        return self._stopping.is_set() and not self._jobs and not self._unacknowledged

    async def _connect(self) -> None:
        self._epoch += 1
        async with self._open_socket() as socket:
            await socket.send(encode_message(self._hello()))
            welcome = decode_gateway_message(await socket.recv())
            if isinstance(welcome, ErrorMessage):
                if welcome.code in ("unknown_kinds", "invalid_message"):
                    raise EngineStopped(f"{self._url} refused the engine: {welcome.message}")
                self._lost(f"{welcome.message} ({welcome.code})")
                return
            if not isinstance(welcome, Welcome):
                self._lost("the first message was no welcome")
                return
            await self._welcomed(socket, welcome)
            await self._serve(socket, welcome.heartbeat_seconds)

    def _open_socket(self) -> AbstractAsyncContextManager[EngineSocket]:
        headers = {"Authorization": f"Bearer {self._token}"}
        return connect(self._url, subprotocols=[Subprotocol(SUBPROTOCOL)], additional_headers=headers)

    def _hello(self) -> Hello:
        return Hello(
            engine_id=self._engine_id,
            session=self._session,
            kinds=tuple(self._handlers),
            capacity=self._capacity,
            version=self._version,
            epoch=self._epoch,
            claim=self._claim,
            jobs=tuple(job.held for job in self._jobs.values()),
        )

    async def _welcomed(self, socket: EngineSocket, welcome: Welcome) -> None:
        kept = {held.job_id for held in welcome.jobs}
        for job_id in [job_id for job_id in self._tasks if job_id not in kept]:
            self._abandon(job_id)
        self._backoff.reset()
        self._is_loss_logged = False
        log.info("engine %s connected to %s with %s", self._engine_id, self._url, counted(len(kept), "running job"))
        # A start may have been lost with the last connection. Sent again, it changes nothing.
        started = [job.started for job in self._jobs.values() if job.started is not None]
        unacknowledged = list(self._unacknowledged.values())
        # A job that ends while these are sent reports its end itself.
        self._socket = socket
        for message in [*started, *unacknowledged]:
            await socket.send(encode_message(message))

    async def _serve(self, socket: EngineSocket, heartbeat_seconds: float) -> None:
        spawn = self._seams.spawn.task
        tasks = {
            spawn(self._receive(socket), name="engine-receives"),
            spawn(self._beat(socket, heartbeat_seconds), name="engine-heartbeats"),
            spawn(self._finish(socket), name="engine-stops"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._socket = None
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)
        for task in done:
            task.result()

    async def _beat(self, socket: EngineSocket, seconds: float) -> None:
        while True:
            await self._seams.clock.sleep(seconds)
            await socket.send(encode_message(EngineHeartbeat(id=self.next_id())))

    async def _finish(self, socket: EngineSocket) -> None:
        await self._stopping.wait()
        await socket.send(encode_message(EngineDrain(id=self.next_id())))
        while not self._is_done():
            await self._seams.clock.sleep(0.02)

    async def _receive(self, socket: EngineSocket) -> None:
        async for text in socket:
            match decode_gateway_message(text):
                case JobDispatch() as dispatch:
                    self._take(dispatch)
                case CancelJob(job_id=job_id, hard=True):
                    self._abandon(job_id)
                case CancelJob(job_id=job_id):
                    if (job := self._jobs.get(job_id)) is not None:
                        job.cancel_requested.set()
                case AckMessage(id=number) as ack:
                    end = self._unacknowledged.pop(number, None)
                    if end is not None and ack.outcome != "recorded":
                        log.warning("end of job %s not recorded (%s): %s", end.job_id, ack.outcome, ack.reason)
                case GatewayDrain(reason=reason):
                    log.info("no more jobs from %s: %s", self._url, reason)
                case ErrorMessage(code=code, message=message):
                    self._lost(f"{message} ({code})")
                    return
        self._lost("the gateway closed the socket")

    def _take(self, dispatch: JobDispatch) -> None:
        self._claim = max(self._claim, dispatch.claim)
        if dispatch.job_id in self._jobs and self._jobs[dispatch.job_id].held.claim == dispatch.claim:
            return
        self._abandon(dispatch.job_id)
        job = self._jobs[dispatch.job_id] = EngineJob(self, dispatch)
        self._tasks[job.id] = self._seams.spawn.task(self._run(job), name=f"engine-job-{job.id}")

    def _abandon(self, job_id: UUID) -> None:
        """The lease is lost: stop the local work, and report nothing."""
        self._jobs.pop(job_id, None)
        if (task := self._tasks.pop(job_id, None)) is not None:
            task.cancel()

    async def _run(self, job: EngineJob) -> None:
        about: dict[str, Any] = {"job_id": job.id, "claim": job.dispatch.claim}
        await self.send(JobAck(id=self.next_id(), **about))
        end: JobMessage
        try:
            with self._span(job) as trace:
                if trace is not None:
                    about["trace"] = job.trace = trace
                job.started = JobStarted(id=self.next_id(), **about)
                await self.send(job.started)
                result = _encoded(await self._handlers[job.dispatch.kind](job))
            end = JobComplete(id=self.next_id(), result=result, **about)
        except (Exception, asyncio.CancelledError) as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # The lease is lost, or the program ends.
            action: FailedAction = "fail" if isinstance(error, PermanentError) else "retry"
            facts = _described(error)
            log.warning(
                "job %s (%s) failed (%s: %s)", job.id, job.dispatch.kind, facts.type, facts.message[:LOGGED_LENGTH_MAX]
            )
            end = JobFailedMessage(id=self.next_id(), error=facts, action=action, **about)
        self._unacknowledged[end.id] = end
        self._jobs.pop(job.id, None)
        self._tasks.pop(job.id, None)
        await self.send(end)

    def _span(self, job: EngineJob) -> AbstractContextManager[str | None]:
        if self._tracing is None:
            return contextlib.nullcontext()
        dispatch = job.dispatch
        return self._tracing.engine_run(
            kind=dispatch.kind, job_id=str(job.id), attempt=dispatch.attempt, trace=dispatch.trace
        )

    async def send(self, message: EngineMessage) -> None:
        """Send a message if the engine is connected. Ends of jobs are sent again later."""
        if self._socket is not None:
            with contextlib.suppress(OSError, WebSocketException):
                await self._socket.send(encode_message(message))


def _encoded(result: Any) -> msgspec.Raw:
    text = msgspec.json.encode(result)
    if len(text) > RESULT_BYTES_MAX:
        raise PermanentError(f"the result has {len(text)} bytes of JSON, and a message has room for {RESULT_BYTES_MAX}")
    return msgspec.Raw(text)


def _described(error: BaseException) -> EngineError:
    facts = load(describe_error(error))
    return EngineError(facts["type"], facts["message"][:ERROR_LENGTH_MAX], facts["traceback"][-ERROR_LENGTH_MAX:])
