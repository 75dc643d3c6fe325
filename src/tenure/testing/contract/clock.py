"""The clock that the kit needs."""

from __future__ import annotations

from typing import Protocol


class DatabaseClock(Protocol):
    """The database's clock. It stands still between calls of `advance`."""

    def advance(self, seconds: float) -> None:
        """Advance it, or set it back by a negative number."""
        ...
