"""The messages between a worker and its child processes: JSON, each preceded by its length.

Nothing is pickled. The name of the function to run comes from the program, never from the database.
"""

from __future__ import annotations

import struct

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.observe.log_format import LogStyle
from tenure.stores.contract import Artifact
from tenure.workers.execution.outcomes import Outcome

HEADER = struct.Struct("!Q")
BYTES_MAX = 256 * 1024 * 1024


class RunJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the child: run this job. `module` and `name` locate its function; `database` is the worker's database.

    `local_deadline_seconds` is a reading of the monotonic clock, which all processes of a machine share.
    """

    module: str
    name: str
    database: str
    job: Job
    worker: str
    where: str
    """The `where` of the worker's store."""
    local_deadline_seconds: float
    log_level: int
    log_style: LogStyle | None = None
    """The format of the worker's log; None if the program configures logging by itself."""


class AttemptUpdate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the child: what has changed for the running job."""

    cancel_reason: str | None
    stopping: bool
    local_deadline_seconds: float


class CallFunction(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the child: await this function of the program with this text, and send the text that it returns.

    `job_path` locates the job on whose behalf it is called: loading it imports the program as for the job itself.
    """

    module: str
    name: str
    text: str
    job_path: tuple[str, str] | None
    log_level: int
    log_style: LogStyle | None = None


class ChildReady(msgspec.Struct, frozen=True, tag=True):
    """From the child: it is ready. It has not started a job that was sent before this."""


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """From the child: the job's progress."""

    percent: int
    message: str | None


class AttemptEnded(msgspec.Struct, frozen=True, tag=True):
    """From the child: the outcome, and the artifacts to keep if it is a success."""

    outcome: Outcome
    artifacts: tuple[Artifact, ...] = ()


class CallEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: what the function returned, or the error with which the call could not be made, as JSON text."""

    text: str | None = None
    error: str | None = None


ToChild = RunJob | AttemptUpdate | CallFunction
FromChild = ChildReady | ProgressReport | AttemptEnded | CallEnded

to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)
_encoder = msgspec.json.Encoder()


def encode_frame(message: ToChild | FromChild) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(check_size(len(body))) + body


def check_size(size: int) -> int:
    """Refuse a message that would fill the receiver's memory."""
    if size > BYTES_MAX:
        raise InvalidInput(
            "message between worker and process", f"has {size} bytes, and at most {BYTES_MAX} are allowed"
        )
    return size
