"""The header Retry-After of a response: a number of seconds, or a date."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRY_AFTER_SECONDS_MAX = 86_400.0


def retry_after_seconds(header: str | None, *, now: datetime) -> float | None:
    """The seconds that the receiver asks to wait, at most a day. None if the header is absent or invalid.

    >>> retry_after_seconds("120", now=datetime(2030, 1, 1, tzinfo=UTC))
    120.0
    >>> retry_after_seconds("Tue, 01 Jan 2030 00:01:00 GMT", now=datetime(2030, 1, 1, tzinfo=UTC))
    60.0
    """
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), RETRY_AFTER_SECONDS_MAX)
