"""What a caller does whose database is too busy to answer: it sends the same request again, under the same id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.errors import StoreUnavailable

T = TypeVar("T")
TRIES = 20


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer. Whether a try that was not answered took effect is not known, so `ask` must be repeatable."""
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except StoreUnavailable:
            continue
    return await ask()
