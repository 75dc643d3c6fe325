"""Verifies a webhook request, and decodes its message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tenure.errors import SignatureRefused
from tenure.inbox.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, decode_secret, is_signed

TOLERANCE_SECONDS = 300.0
PREVIOUS_HEADER = "tenure-previous"
"""Not signed: it is a fact of the delivery and not of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message whose signature is valid. `id` is the same in every attempt, so deduplicate by it.

    `previous` is the sequence of the message of this aggregate that the sender delivered before this one. If it is not
    the last sequence that was received, messages were dead-lettered or discarded in between.
    """

    id: str
    topic: str
    data: Any
    at: str | None = None
    aggregate: str | None = None
    sequence: int | None = None
    previous: int | None = None
    correlation_id: str | None = None
    job_id: str | None = None
    traceparent: str | None = None


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: datetime | None = None,
) -> ReceivedMessage:
    """The message of a request, if it has a valid signature by one of the secrets and a recent timestamp.

    `body` is the request's body as it arrived, and `now` the time to compare with, by default that of this machine.
    """
    if isinstance(secrets, str) or not secrets:
        raise SignatureRefused("no list of secrets to verify with; pass secrets=[...] with at least one")
    if not isinstance(body, bytes):
        raise SignatureRefused("the body must be the bytes of the request, not a decoded value")
    keys = [decode_secret(secret) for secret in secrets]
    given = {name.lower(): value for name, value in headers.items()}
    id_, timestamp, signature = (_required(given, name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    _check_timestamp(timestamp, now=now or datetime.now(UTC), tolerance_seconds=tolerance_seconds)  # noqa: TID251 - a receiver has no seams
    if not is_signed(signature, keys, id=id_, timestamp=timestamp, body=body):
        raise SignatureRefused("no signature of the request is valid; check the secret, and pass the body unchanged")
    return _decode(id_, body, given.get(PREVIOUS_HEADER))


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise SignatureRefused(f"the request has no header {name}")
    return value


def _check_timestamp(text: str, *, now: datetime, tolerance_seconds: float) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise SignatureRefused("the header webhook-timestamp is not a number of seconds since 1970")
    seconds = now.timestamp() - int(text)
    if abs(seconds) > tolerance_seconds:
        when = f"{seconds:.0f} s old" if seconds > 0 else f"{-seconds:.0f} s in the future"
        raise SignatureRefused(
            f"the timestamp of the request is {when}, and {tolerance_seconds:g} s are tolerated; check the clocks"
        )


def _decode(id_: str, body: bytes, previous: str | None) -> ReceivedMessage:
    """A CloudEvent as tenure sends it."""
    try:
        event = json.loads(body)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise SignatureRefused("the signature is valid, but the body is not a CloudEvent with a type")
    return ReceivedMessage(
        id=id_,
        topic=event["type"],
        data=event.get("data"),
        at=event.get("time"),
        aggregate=event.get("subject"),
        sequence=_number(event.get("sequence")),
        previous=_number(previous),
        correlation_id=event.get("correlationid"),
        job_id=event.get("jobid"),
        traceparent=event.get("traceparent"),
    )


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None
