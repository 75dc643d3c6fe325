"""Durations as the records have them: whole milliseconds."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1024)
def milliseconds(seconds: float) -> int:
    """A duration in whole milliseconds, at least 1 if it is not 0."""
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


def optional_milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)
