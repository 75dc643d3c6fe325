"""Wake-ups of this process at the time at which jobs become due, so that a retry does not wait for the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set
from math import floor
from weakref import WeakKeyDictionary

STEP_SECONDS = 0.02
"""Wake-ups within this time share a timer. A wake-up comes up to this time late, and never early."""
SECONDS_MAX = 60.0
"""Jobs that become due later than this are found by polling, which limits the number of timers."""


class LaterWakeups:
    """Wakes subscriptions of this process after a time, on the event loop that asked for it."""

    def __init__(self, wake: Callable[[Set[str]], None]) -> None:
        self._wake = wake
        self._names: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[str]]] = WeakKeyDictionary()
        """The names to wake, by the step of the event loop's time."""

    def add(self, names: Iterable[str], seconds: float) -> None:
        """Wake the subscriptions to these queues after a time. Does nothing if it is longer than `SECONDS_MAX`."""
        if seconds > SECONDS_MAX:
            return
        loop = asyncio.get_running_loop()
        names_at, step = self._names.setdefault(loop, {}), floor((loop.time() + seconds) / STEP_SECONDS) + 1
        if step in names_at:
            names_at[step].update(names)
        else:
            names_at[step] = set(names)
            loop.call_at(step * STEP_SECONDS, lambda: self._wake(names_at.pop(step)))
