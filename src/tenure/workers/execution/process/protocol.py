"""What a worker and a child process of its own say to each other: JSON messages, each behind its length.

Nothing is pickled, and what to run is said by the program alone: the name of a function never comes from the database.
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


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run this job. `module` and `name` lead to its function, `database` is where the worker found the job.

    `trusted_until_seconds` is a moment of the monotonic clock, which all processes of a machine share.
    """

    module: str
    name: str
    database: str
    job: Job
    worker: str
    trusted_until_seconds: float
    log_level: int
    log_style: LogStyle | None = None
    """How the worker writes its log; None where the program does it in a way of its own."""


class News(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What has become known about the job that runs."""

    cancel_requested: bool
    stopping: bool
    trusted_until_seconds: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child is there; a job that it was given before this has not been touched."""


class Reported(msgspec.Struct, frozen=True, tag=True):
    """How far the job has come."""

    percent: int
    message: str | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """What the job came to, and what is to be kept of it if that is a success."""

    outcome: Outcome
    artifacts: tuple[Artifact, ...] = ()


ToChild = Begin | News
FromChild = Ready | Reported | Ended

to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)
_encoder = msgspec.json.Encoder()


def framed(message: ToChild | FromChild) -> bytes:
    """The message as it goes over the line."""
    body = _encoder.encode(message)
    return HEADER.pack(check_size(len(body))) + body


def check_size(size: int) -> int:
    """Neither side lets the other fill its memory."""
    if size > BYTES_MAX:
        raise InvalidInput(
            "message between worker and process", f"has {size} bytes, and at most {BYTES_MAX} are allowed"
        )
    return size
