"""Decodes messages of the outbox, in the same way for every store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tenure.stores.contract.outbox import MessageRecord, StoredMessage

MESSAGE = MessageRecord.__struct_fields__
"""The columns of a message in statements that return whole messages, in their order."""
UNKNOWN_AT = datetime(1970, 1, 1, tzinfo=UTC)
UNREADABLE_AT = "its time is not one between the years 1 and 9999; run `tenure verify`, and repair or discard it"


def stored_message(values: Mapping[str, Any]) -> StoredMessage:
    """The message of these columns. `at` is None if it cannot be read."""
    if values["at"] is not None:
        return StoredMessage(**values)
    return StoredMessage(**{**values, "at": UNKNOWN_AT, "unreadable": UNREADABLE_AT})
