"""The messages between an engine and a gateway, as `docs/reference/asyncapi.yaml` documents them. Pure.

A message is one JSON object with its `type`. Fields that a reader does not know are ignored, so that later versions can
add some.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import clean_text, parse
from tenure.lifecycle.size_limits import PROGRESS_LENGTH_MAX

SUBPROTOCOL = "tenure.v1"
MESSAGE_BYTES_MAX = 1024 * 1024
"""The size of one message. A larger one closes the socket."""
CAPACITY_MAX = 1000
KINDS_MAX = 500

Name = Annotated[str, Meta(min_length=1, max_length=200)]
SessionSecret = Annotated[str, Meta(min_length=32, max_length=128)]
"""Random text that the engine makes at its start and keeps secret. The tokens of its leases are derived from it."""
MessageId = Annotated[int, Meta(ge=1, le=2**53)]
ClaimNumber = Annotated[int, Meta(ge=1, le=2**31)]
Trace = Annotated[str, Meta(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
Percent = Annotated[int, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
FailedAction = Literal["retry", "fail", "cancel", "release"]
"""What follows a failure: a retry by the job's policy, no retry, the end that a cancel request asked for, or another
attempt without counting a failure."""
AckOutcome = Literal["recorded", "lost", "refused"]


class UnfinishedJob(msgspec.Struct, frozen=True):
    """A job that an engine still runs, or whose outcome was not acknowledged, by the claim that dispatched it."""

    job_id: UUID
    claim: ClaimNumber


class EngineMessage(msgspec.Struct, frozen=True, tag_field="type"):
    """A message from an engine."""


class Hello(EngineMessage, frozen=True, tag="hello", kw_only=True):
    """The first message of a connection. `epoch` grows with each connection of a session; `claim` is the last claim
    that the engine has seen, 0 for none."""

    engine_id: Name
    session: SessionSecret
    kinds: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=KINDS_MAX)]
    capacity: Annotated[int, Meta(ge=1, le=CAPACITY_MAX)] = 1
    version: Name = "unknown"
    epoch: Annotated[int, Meta(ge=1, le=2**31)] = 1
    claim: Annotated[int, Meta(ge=0, le=2**31)] = 0
    jobs: Annotated[tuple[UnfinishedJob, ...], Meta(max_length=CAPACITY_MAX)] = ()


class JobMessage(EngineMessage, frozen=True, kw_only=True):
    """A message about one job. The gateway replies to it with an ack that has its id."""

    id: MessageId
    job_id: UUID
    claim: ClaimNumber


class JobAck(JobMessage, frozen=True, tag="job_ack", kw_only=True):
    """The engine has received the job."""


class JobReport(JobMessage, frozen=True, kw_only=True):
    """A message that may have the W3C traceparent of the engine's own span of the attempt as `trace`."""

    trace: Trace | None = None


class JobStarted(JobReport, frozen=True, tag="job_started", kw_only=True):
    """The engine runs the job."""


class JobProgress(JobMessage, frozen=True, tag="job_progress", kw_only=True):
    """The progress of the job, in percent."""

    percent: Percent
    message: Annotated[str, Meta(max_length=PROGRESS_LENGTH_MAX)] | None = None


class JobComplete(JobReport, frozen=True, tag="job_complete", kw_only=True):
    """The job has its result."""

    result: msgspec.Raw


ERROR_LENGTH_MAX = 16_000


class EngineError(msgspec.Struct, frozen=True):
    """An error as the engine reports it."""

    type: Name
    message: Annotated[str, Meta(max_length=ERROR_LENGTH_MAX)]
    traceback: Annotated[str, Meta(max_length=ERROR_LENGTH_MAX)] | None = None


class JobFailedMessage(JobReport, frozen=True, tag="job_failed", kw_only=True):
    """The job has no result."""

    error: EngineError
    action: FailedAction = "retry"
    delay_seconds: Seconds | None = None


class EngineHeartbeat(EngineMessage, frozen=True, tag="heartbeat", kw_only=True):
    """The engine is alive. Every other message counts as one too."""

    id: MessageId


class EngineDrain(EngineMessage, frozen=True, tag="drain", kw_only=True):
    """The engine takes no more jobs, and finishes those that it has."""

    id: MessageId


FromEngine = Hello | JobAck | JobStarted | JobProgress | JobComplete | JobFailedMessage | EngineHeartbeat | EngineDrain


class GatewayMessage(msgspec.Struct, frozen=True, tag_field="type"):
    """A message from a gateway."""


class Welcome(GatewayMessage, frozen=True, tag="welcome", kw_only=True):
    """The reply to hello. `jobs` are those of the hello that the engine still holds; the others are lost, or ended."""

    gateway: str
    epoch: int
    heartbeat_seconds: float
    silence_seconds: float
    jobs: tuple[UnfinishedJob, ...] = ()


class JobDispatch(GatewayMessage, frozen=True, tag="job_dispatch", kw_only=True):
    """A job for the engine to run. `trace` is the W3C traceparent of its enqueuer: the parent of the engine's span."""

    job_id: UUID
    claim: int
    kind: str
    attempt: int
    payload: msgspec.Raw
    correlation_id: str
    trace: str | None = None
    submitted_by: str | None = None
    claimed_seconds: float | None = None
    running_seconds: float | None = None
    lease_seconds: float
    heartbeat_seconds: float


class CancelJob(GatewayMessage, frozen=True, tag="cancel", kw_only=True):
    """Stop the job. Soft: the engine may finish it, or report `job_failed` with the action `cancel`. Hard: the engine
    no longer holds the job, and nothing that it reports about it is recorded."""

    job_id: UUID
    claim: int
    hard: bool
    reason: str


class GatewayDrain(GatewayMessage, frozen=True, tag="drain", kw_only=True):
    """The gateway stops. It dispatches nothing more and still records outcomes."""

    reason: str


class AckMessage(GatewayMessage, frozen=True, tag="ack", kw_only=True):
    """The reply to one message. `lost`: another attempt has the job, or it has ended. `refused`: see `reason`."""

    id: int
    outcome: AckOutcome = "recorded"
    status: str | None = None
    reason: str | None = None


ErrorCode = Literal[
    "invalid_message", "hello_expected", "unknown_kinds", "stale_epoch", "too_slow", "silent", "stopping"
]


class ErrorMessage(GatewayMessage, frozen=True, tag="error", kw_only=True):
    """The gateway closes the socket after this message."""

    code: ErrorCode
    message: str


FromGateway = Welcome | JobDispatch | CancelJob | GatewayDrain | AckMessage | ErrorMessage

_from_engine: msgspec.json.Decoder[FromEngine] = msgspec.json.Decoder(FromEngine)
_from_gateway: msgspec.json.Decoder[FromGateway] = msgspec.json.Decoder(FromGateway)
_encode = msgspec.json.Encoder().encode


def encode_message(message: EngineMessage | GatewayMessage) -> str:
    return _encode(message).decode()


def decode_engine_message(text: str) -> FromEngine:
    """The message of an engine. InvalidInput: what is wrong, and where."""
    if len(text) > MESSAGE_BYTES_MAX:
        raise InvalidInput("message", f"has {len(text)} characters, and at most {MESSAGE_BYTES_MAX} are allowed")
    try:
        parse(text, where="message", bytes_max=MESSAGE_BYTES_MAX)
        return _from_engine.decode(text)
    except msgspec.ValidationError as problem:
        raise InvalidInput("message", str(problem)) from None


class _End(msgspec.Struct, frozen=True):
    """What has to be valid in an end, so that it counts."""

    type: Literal["job_complete", "job_failed"]
    id: MessageId
    job_id: UUID
    claim: ClaimNumber
    action: FailedAction = "retry"


def decode_reply(text: str) -> FromEngine:
    """The message of an engine over a socket. An end that is not valid is a failure of its job: an engine whose socket
    were closed for it would send it again after each reconnect."""
    try:
        return decode_engine_message(text)
    except InvalidInput as invalid:
        problem = invalid
    try:
        end = msgspec.convert(json.loads(text), _End)
    except (ValueError, RecursionError, msgspec.ValidationError):
        raise problem from None
    error = EngineError("InvalidMessage", clean_text(f"{end.type} is not valid: {problem}")[:ERROR_LENGTH_MAX])
    action = "fail" if end.type == "job_complete" else end.action
    return JobFailedMessage(id=end.id, job_id=end.job_id, claim=end.claim, error=error, action=action)


def decode_gateway_message(text: str | bytes) -> FromGateway:
    return _from_gateway.decode(text)


def error_json(error: EngineError) -> str:
    """The error as it is stored with the job."""
    return _encode(error).decode()
