"""How a message is returned whose row cannot be read, the same by every store."""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN_AT = datetime(1970, 1, 1, tzinfo=UTC)
UNREADABLE_AT = "its time is not one between the years 1 and 9999; run `tenure verify`, and repair or discard it"
