"""Waiting with a limit: for a busy database, and for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.errors import StoreUnavailable

T = TypeVar("T")
TRIES = 20
LOOK_SECONDS = 0.01


async def retry_while_busy(ask: Callable[[], Awaitable[T]]) -> T:
    """The result. Whether a failed try took effect is unknown, so `ask` must be repeatable."""
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except StoreUnavailable:
            continue
    return await ask()


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 20.0) -> None:
    """Wait until the condition holds, and fail after a limit."""
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(LOOK_SECONDS)
