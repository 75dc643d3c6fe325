"""Waiting, with a limit: for a database that is too busy to answer, and for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.errors import StoreUnavailable

T = TypeVar("T")
TRIES = 20
LOOK_SECONDS = 0.01


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer. Whether a try that was not answered took effect is not known, so `ask` must be repeatable."""
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except StoreUnavailable:
            continue
    return await ask()


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 20.0) -> None:
    """Wait until the condition holds, looking often, and fail when that takes too long."""
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(LOOK_SECONDS)
