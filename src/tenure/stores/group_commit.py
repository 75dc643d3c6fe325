"""Group commit: requests that arrive while a write is under way are written together by the next one.

A request that arrives at idle is written at once, by its caller. Nothing waits for a timer. Every request has its own
result or error: where a group is refused, its halves are written apart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tenure.errors import StoreUnavailable
from tenure.seams import Seams

Q = TypeVar("Q")
A = TypeVar("A")

GROUP_MAX = 500


class GroupCommit(Generic[Q, A]):
    """Writes requests in the order in which they were submitted, one group at a time. Callers on another event loop
    than the one that writes are not grouped.

    `write` writes all of its requests in one transaction or none, and returns one answer for each. A caller that is
    cancelled does not know whether its request was written; those of its group are.
    """

    def __init__(self, write: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], seams: Seams, *, name: str) -> None:
        self._write, self._seams, self._name = write, seams, name
        self._pending: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which a write is under way."""
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, request: Q) -> A:
        """The answer to this request, once it is committed."""
        here, writing = _running_loop(), self._loop
        if here is None:
            # A forked child is still inside its parent's loop. The store refuses its request.
            return (await self._write([request]))[0]
        if writing is here:
            answer: asyncio.Future[A] = here.create_future()
            self._pending.append((request, answer))
            return await answer
        if writing is not None and not writing.is_closed():
            return (await self._write([request]))[0]
        self._loop = here
        self._pending.clear()
        try:
            return (await self._write([request]))[0]
        finally:
            if self._pending:
                self._writer = self._seams.spawn.task(self._write_pending(), name=self._name)
            else:
                self._loop = None

    async def _write_pending(self) -> None:
        """Write groups until nothing is pending."""
        try:
            while self._pending:
                size = min(len(self._pending), GROUP_MAX)
                group = [self._pending.popleft() for _ in range(size)]
                await self._write_group([one for one in group if not one[1].done()])
                # One iteration of the event loop: callers that were answered submit their next requests together.
                await self._seams.clock.sleep(0)
        finally:
            # Only a cancelled writer leaves requests behind, none of which was written.
            while self._pending:
                self._pending.popleft()[1].cancel()
            self._loop = None

    async def _write_group(self, group: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        if not group:
            return
        try:
            answers = await self._write([request for request, _ in group])
        except asyncio.CancelledError:
            for _, waiting in group:
                waiting.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to the callers
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                _refuse(group, error)
                return
            middle = len(group) // 2
            await self._write_group(group[:middle])
            await self._write_group(group[middle:])
            return
        for (_, waiting), answer in zip(group, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _refuse(group: Sequence[tuple[Q, asyncio.Future[A]]], error: Exception) -> None:
    for _, answer in group:
        if not answer.done():
            answer.set_exception(error)
