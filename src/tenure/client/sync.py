"""An event loop on a background thread, for code without an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tenure.seams import Spawner

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for synchronous code. The first call starts the thread; after a fork the child starts its own."""

    def __init__(self, spawn: Spawner) -> None:
        self._spawn = spawn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine and return its result. RuntimeError: the calling thread runs an event loop."""
        if _in_event_loop():
            raise RuntimeError("this call would block the running event loop; use the async method and await it")
        return asyncio.run_coroutine_threadsafe(make(), self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            loop = asyncio.new_event_loop()
            self._spawn.thread(loop.run_forever, name="tenure-background")
            self._loop, self._pid = loop, os.getpid()
        return self._loop


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
