"""Makes an outbox message from a user's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_text, encode
from tenure.stores.contract import OutboxMessage
from tenure.stores.outbox_validation import check_topic

AGGREGATE_LENGTH_MAX = 500


def new_message(
    topic: str, body: Any, *, id: UUID, aggregate: str | None = None, headers: Mapping[str, str] | None = None
) -> OutboxMessage:
    """A message with a body that is stored as JSON. InvalidInput: something cannot be stored."""
    for name, value in (headers or {}).items():
        if not isinstance(value, str):
            raise InvalidInput("headers", f"{name!r} must be text, not {type(value).__name__}")
    return OutboxMessage(
        id=id,
        topic=check_topic(topic),
        body=encode(body, where=f"message {topic}"),
        aggregate=None if aggregate is None else check_text(aggregate, "aggregate", length_max=AGGREGATE_LENGTH_MAX),
        headers=None if headers is None else encode(dict(headers), where="headers"),
    )
