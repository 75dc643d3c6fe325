"""Lets a plain thread use an async context on an event loop that runs elsewhere.

Everything happens in one task of that loop, from entering to leaving, so that deadlines and context variables work as
they do for async code; the thread sends what it wants done and waits for each answer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from tenure.seams import Spawner

T = TypeVar("T")
Step = Callable[[], Awaitable[Any]]


class Bridge(Generic[T]):
    """One async context, entered and left from a thread."""

    def __init__(
        self, context: AbstractAsyncContextManager[T], loop: asyncio.AbstractEventLoop, spawn: Spawner
    ) -> None:
        self._context, self._loop, self._spawn = context, loop, spawn
        self._entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._steps: asyncio.Queue[tuple[Step, concurrent.futures.Future[Any]] | BaseException | None] = asyncio.Queue()

    def enter(self) -> T:
        self._loop.call_soon_threadsafe(self._begin)
        return self._entered.result()

    def do(self, step: Step) -> Any:
        """The result of one step inside the context."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._steps.put_nowait, (step, answer))
        # When the context ends by itself, at its deadline, nobody takes steps any more.
        concurrent.futures.wait([answer, self._left], return_when=concurrent.futures.FIRST_COMPLETED)
        return answer.result() if answer.done() else self._left.result()

    def leave(self, error: BaseException | None) -> None:
        """Leave the context with this error, or normally. What the context itself raises is raised here."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, error)
        self._left.result()

    def _begin(self) -> None:
        self._task = self._spawn.task(self._run(), name="tenure-bridge")

    async def _run(self) -> None:
        try:
            async with self._context as inside:
                self._entered.set_result(inside)
                await self._serve()
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the thread on the other side
            _answer(self._left, error)
            _answer(self._entered, error)
        else:
            self._left.set_result(None)

    async def _serve(self) -> None:
        while (step := await self._steps.get()) is not None:
            if isinstance(step, BaseException):
                raise step
            action, answer = step
            try:
                answer.set_result(await action())
            except Exception as error:  # noqa: BLE001 - the same
                answer.set_exception(error)


def _answer(future: concurrent.futures.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
