"""Digests of the rows that are written with a job's commit: artifacts and outbox messages. Pure.

The event that commits carries the number of the rows and the sum of their digests. A sum has no order, as the rows have
none. Messages that a run writes with a step are not among them: their ids are derived from the step, whose record has
the id as its result.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from uuid import UUID

import msgspec

from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.steps import StoredStep

DIGEST_BYTES = 32
STEP_MESSAGE_VERSION = 8
"""The version of the ids of messages that steps write: a UUID made by its application's own rule."""

_canonical = msgspec.json.encode


class RowsDigest(msgspec.Struct, frozen=True):
    """How many rows there are, and the sum of their digests."""

    count: int
    digest: str

    @classmethod
    def of(cls, digests: Iterable[bytes]) -> RowsDigest:
        rows = list(digests)
        total = sum(int.from_bytes(row) for row in rows) % 2 ** (8 * DIGEST_BYTES)
        return cls(len(rows), urlsafe_b64encode(total.to_bytes(DIGEST_BYTES)).decode().rstrip("="))


class StoredContent(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a job beside its record: digests of its artifacts and messages, its signals (revision → name,
    payload), and its steps."""

    artifacts: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()
    signals: Mapping[int, tuple[str, str]] = {}
    steps: tuple[StoredStep, ...] = ()


class ContentDigests:
    """The digests of the artifacts and messages that one transaction writes with the commit of one job."""

    def __init__(self, *, artifacts: Iterable[bytes] = (), messages: Iterable[bytes] = ()) -> None:
        self.artifacts, self.messages = [*artifacts], [*messages]

    def detail(self) -> str | None:
        """The detail of the event that commits; None if there is nothing beside the result."""
        rows = {"artifacts": self.artifacts, "messages": self.messages}
        if not any(rows.values()):
            return None
        return encode({name: msgspec.structs.asdict(RowsDigest.of(found)) for name, found in rows.items() if found})


def logged_digests(detail: str | None) -> dict[str, RowsDigest]:
    """The digests in the detail of an event that commits, by `artifacts` and `messages`."""
    found = load(detail) if detail else {}
    if not isinstance(found, dict):
        return {}
    kinds = ("artifacts", "messages")
    return {name: msgspec.convert(found[name], RowsDigest) for name in kinds if name in found}


def artifact_digest(*, name: str, media_type: str, attempt: int, bytes_: int, body_sha256: bytes) -> bytes:
    """The digest of an artifact's row."""
    return _digest([name, media_type, attempt, bytes_, body_sha256.hex()])


def message_digest(*, id: UUID | str, aggregate: str | None, topic: str, body: str, headers: str | None) -> bytes:
    """The digest of a message's row, without its sequence number, which is assigned when it is written, and without
    its delivery."""
    return _digest([str(id), aggregate, topic, body, headers])


def step_message_id(job_id: UUID, step_key: str, number: int) -> UUID:
    """The id of the message that a step of a run writes as its `number`-th, from 0."""
    name = sha256(_canonical([job_id, step_key, number])).digest()
    return UUID(
        int=int.from_bytes(name[:16]) & ~(0xF << 76) & ~(0x3 << 62) | (STEP_MESSAGE_VERSION << 76) | (0x2 << 62)
    )


def is_of_step(message_id: UUID | str) -> bool:
    """Whether a step of a run has written the message. Ids of all other messages have another version."""
    id_ = message_id if isinstance(message_id, UUID) else UUID(message_id)
    return id_.version == STEP_MESSAGE_VERSION


def _digest(facts: list[object]) -> bytes:
    return sha256(_canonical(facts)).digest()
