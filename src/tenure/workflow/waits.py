"""What a run waits for, and whether all of it can happen without a worker.

A run is suspended only while every branch waits for a time, a signal or a child. The waits of asyncio's tasks show
that: a task waits durably if it awaits a durable wait, a task that waits durably, or several such tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID


class DurableWait(asyncio.Future[Any]):
    """A wait that others can end: for a time, a signal until a deadline, or the end of a child."""

    def __init__(
        self,
        *,
        deadline: datetime | None = None,
        signal: str | None = None,
        child_id: UUID | None = None,
        is_leaf: bool = False,
    ) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.deadline, self.signal, self.child_id, self.is_leaf = deadline, signal, child_id, is_leaf

    def __repr__(self) -> str:
        return f"DurableWait(deadline={self.deadline}, signal={self.signal!r}, child={self.child_id})"


class Join(asyncio.Future[None]):
    """Done when the first, or the last, of these tasks has ended."""

    def __init__(self, tasks: Iterable[asyncio.Task[Any]], *, first: bool = False) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.tasks = list(tasks)
        self._first = first
        for task in self.tasks:
            task.add_done_callback(self._ended)
        self._ended(None)

    def _ended(self, _task: object) -> None:
        ended = [task.done() for task in self.tasks]
        if not self.done() and (any(ended) if self._first and ended else all(ended)):
            self.set_result(None)


def waits_durably(task: asyncio.Task[Any]) -> bool:
    """Whether nothing but a time, a signal or a child can make this task continue. False if it is about to run."""
    awaited = getattr(task, "_fut_waiter", None)
    return awaited is not None and _is_durable(awaited)


def _is_durable(awaited: Any) -> bool:
    if awaited.done():
        return False
    if isinstance(awaited, DurableWait):
        return True
    if isinstance(awaited, asyncio.Task):
        return waits_durably(awaited)
    # `asyncio.gather` and `Join` wait for several; those that have ended do not count.
    parts = awaited.tasks if isinstance(awaited, Join) else getattr(awaited, "_children", ())
    live = [part for part in parts if not part.done()]
    return bool(live) and all(_is_durable(part) for part in live)


def undurable_wait(task: asyncio.Task[Any]) -> str | None:
    """What the task awaits that is not durable, for a warning. None if it is about to run."""
    awaited = getattr(task, "_fut_waiter", None)
    while isinstance(awaited, asyncio.Task):
        awaited = getattr(awaited, "_fut_waiter", None)
    return None if awaited is None else repr(awaited)
