"""Validation of leases of log cursors and of messages about events, the same for every store."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.lifecycle.json_text import check_name, check_seconds, check_text
from tenure.stores.contract.log_cursors import EventMessage
from tenure.stores.validation import validate_message

LEASE_SECONDS_MAX = 3600.0


def validate_cursor_lease(name: str, *, owner: str, lease_seconds: float) -> None:
    check_name(name, "cursor")
    check_name(owner, "owner")
    check_seconds(lease_seconds, "lease_seconds", least=0.001, most=LEASE_SECONDS_MAX)


def validate_event_messages(messages: Sequence[EventMessage]) -> None:
    for one in messages:
        validate_message(one.message)
        check_text(one.correlation_id, "correlation_id")
