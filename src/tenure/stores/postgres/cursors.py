"""Places in the log to go on from: what a page gave, and nothing else, is taken back."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_datetime, check_text

NO_ID = UUID(int=0)


def tail_cursor(after: str | None) -> tuple[int, UUID, int]:
    """Transaction, job and revision of the event to go on after."""
    if after is None:
        return 0, NO_ID, 0
    check_text(after, "position")
    try:
        tx, job_id, rev = after.split("/")
        return _within(int(tx), 2**63), UUID(job_id), _within(int(rev), 2**31)
    except ValueError:
        raise InvalidInput("position", f"{after!r} is not a position of this log") from None


def before_transaction(tx: int) -> str:
    """The position in the log before everything that this transaction writes."""
    return f"{tx}/{NO_ID}/0"


def event_cursor(after: str | None) -> tuple[datetime | None, UUID, int]:
    """Time, job and revision of the event to go on after."""
    if after is None or after == "":
        return None, NO_ID, 0
    check_text(after, "after")
    try:
        at, job_id, rev = after.split("/")
        return check_datetime(datetime.fromisoformat(at), "after"), UUID(job_id), _within(int(rev), 2**31)
    except ValueError:
        raise InvalidInput("after", f"{after!r} is not a cursor of this list") from None


def _within(number: int, beyond: int) -> int:
    if not 0 <= number < beyond:
        raise ValueError(f"{number} is out of range")
    return number
