"""What the kit needs of a store's time."""

from __future__ import annotations

from typing import Protocol


class DatabaseClock(Protocol):
    """The time by which the database decides. It stands still between calls of `advance`."""

    def advance(self, seconds: float) -> None:
        """Move it on, or back where the number is negative."""
        ...
